//! The doctor on prepared hosts: small and large ones, containers, old kernels, and hosts that say nothing.

mod account;
mod apply;
mod groups;
mod tree;

use tree::Tree;

const MILLION: &[&str] = &["--connections", "1000000"];
const TEN: &[&str] = &["--connections", "10000000"];

#[test]
fn a_host_that_was_made_for_ten_million_fits() {
    let findings = Tree::large().findings(TEN);
    assert_eq!(findings.all_in("change"), [""; 0]);
    assert_eq!(findings.all_in("advice"), [""; 0]);
    // No clock and no card in a directory of files.
    assert_eq!(findings.all_in("unknown"), ["network cards", "clock"]);
    assert!(findings.holds().0 >= 10_000_000);
}

#[test]
fn each_bound_binds_and_is_named() {
    /// A file, what it says, what binds then, how many that leaves, and the setting to change.
    type Row = (&'static str, &'static str, &'static str, u64, &'static str);
    let table: &[Row] = &[
        (
            "proc/self/limits",
            "Max open files 1024 20000 files\n",
            "descriptors of the shards",
            (20_000 - 16 - 32 - 256) * 32,
            "RLIMIT_NOFILE",
        ),
        (
            "proc/sys/fs/nr_open",
            "20000",
            "descriptors of the shards",
            (20_000 - 16 - 32 - 256) * 32,
            "fs.nr_open",
        ),
        (
            "proc/sys/fs/file-max",
            "102048",
            "fs.file-max",
            100_000,
            "fs.file-max",
        ),
        (
            "proc/sys/fs/epoll/max_user_watches",
            "500",
            "fs.epoll.max_user_watches",
            500,
            "fs.epoll.max_user_watches",
        ),
        (
            "crore.toml",
            "[limits]\nconnections_max = 77\n",
            "limits.connections_max",
            77,
            "limits.connections_max",
        ),
        (
            "crore.toml",
            "[limits]\nconnections_per_shard = 10\n",
            "limits.connections_per_shard",
            320,
            "limits.connections_per_shard",
        ),
        (
            "crore.toml",
            "[limits]\ntopics_max = 640\n",
            "limits.topics_per_shard, limits.topics_max",
            640,
            "limits.topics_per_shard",
        ),
    ];
    for (path, text, name, holds, setting) in table {
        let findings = Tree::large().with(path, text).findings(TEN);
        assert_eq!(findings.holds(), (*holds, *name), "{path}");
        assert_eq!(findings.state(setting), "change", "{setting}");
        assert_ne!(findings.change(setting), "[]", "{setting}");
        assert_eq!(findings.0["fits"], false);
    }
}

#[test]
fn memory_is_what_is_left_beside_the_server_and_its_logs() {
    let host = Tree::large()
        .with(
            "proc/meminfo",
            "MemTotal: 9765625 kB\nMemAvailable: 976562 kB\n",
        )
        .with("crore.toml", "[limits]\nlog_bytes = \"1 MiB\"\n");
    let findings = host.findings(TEN);
    // 6 MB of server, 32 shards of 75 KB; 164 + 4,074 B a connection.
    let expected = (976_562 * 1024 - 6_000_000 - 32 * 75_000 - (1 << 20)) / 4_238;
    assert_eq!(findings.holds(), (expected, "memory"));
    assert_eq!(findings.state("memory"), "change");
}

#[test]
fn a_container_is_bounded_by_its_group_and_by_all_above_it() {
    const GIB: u64 = 1 << 30;
    let group = "sys/fs/cgroup/system.slice/crore.service";
    let settings = "shards = 32\n[limits]\nlog_bytes = \"1 MiB\"\nconnections_max = 20000000\n";
    let fixed = 6_000_000 + 32 * 75_000 + (1 << 20);
    // Files' pages and spare slabs can be given back, tmpfs cannot.
    let stat = "anon 1\nfile 300000000\nshmem 100000000\nslab_reclaimable 50000000\n";
    let host = Tree::large()
        .with("crore.toml", settings)
        .with(&format!("{group}/memory.max"), "8589934592\n")
        .with(&format!("{group}/memory.current"), "600000000\n")
        .with(&format!("{group}/memory.stat"), stat)
        .with("sys/fs/cgroup/system.slice/memory.max", "17179869184\n")
        .with("sys/fs/cgroup/memory.max", "max\n");
    let findings = host.findings(TEN);
    let inner = format!("memory of the control group /{group}");
    let held = 600_000_000 - 200_000_000 - 50_000_000;
    let expected = (8 * GIB - held - fixed) / (164 + 3_832);
    assert_eq!(findings.holds(), (expected, inner.as_str()));
    assert_eq!(
        findings.state(&format!("memory limit of /{group}")),
        "change"
    );
    let outer = "memory limit of /sys/fs/cgroup/system.slice";
    assert_eq!(findings.state(outer), "change");
    assert_eq!(host.findings(MILLION).state(outer), "fits");

    // Before Linux 6.12 the sockets that a server accepts belong to no group.
    let host = host.with("proc/sys/kernel/osrelease", "5.15.0-100-generic\n");
    let expected = (8 * GIB - held - fixed) / (164 + 1_456);
    assert_eq!(host.findings(TEN).holds(), (expected, inner.as_str()));
}

#[test]
fn version_1_counts_sockets_once_they_have_a_limit() {
    let group = "sys/fs/cgroup/memory/docker/abc";
    let host = Tree::large()
        .with("crore.toml", "[limits]\nlog_bytes = \"1 MiB\"\n")
        .with(
            "proc/self/cgroup",
            "9:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n",
        )
        .with(&format!("{group}/memory.limit_in_bytes"), "1073741824\n")
        .with(&format!("{group}/memory.usage_in_bytes"), "9000000\n")
        .with(
            &format!("{group}/memory.stat"),
            "cache 5\ntotal_cache 4000000\ntotal_shmem 0\n",
        )
        .with(
            &format!("{group}/memory.kmem.tcp.limit_in_bytes"),
            "9223372036854771712\n",
        )
        .with(
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
    let free = (1 << 30) - 5_000_000 - 6_000_000 - 32 * 75_000 - (1 << 20);
    assert_eq!(
        host.findings(MILLION).bound("docker/abc"),
        Some(free / (164 + 1_456))
    );
    let host = host.with(
        &format!("{group}/memory.kmem.tcp.limit_in_bytes"),
        "1099511627776\n",
    );
    let findings = host.findings(MILLION);
    assert_eq!(findings.bound("docker/abc"), Some(free / (164 + 3_832)));
    assert!(
        !findings.0["bounds"]
            .to_string()
            .contains("\"memory of the control group /sys/fs/cgroup/memory\"")
    );
}

#[test]
fn quotas_and_cpusets_say_how_many_cores_there_are() {
    let host = Tree::large()
        .with(
            "proc/self/status",
            "Uid: 0 0 0 0\nCpus_allowed_list: 2-5,8\n",
        )
        .with("sys/fs/cgroup/system.slice/cpu.max", "250000 100000\n");
    let findings = host.findings(MILLION);
    assert_eq!(findings.0["cores"], 2);
    assert_eq!(findings.0["shards"], 2);
    // Two cores under a quota of 2.5 are never stopped.
    assert_eq!(findings.state("cores"), "fits");
    let findings = host.findings(&["--connections", "1000000", "--cores", "4"]);
    assert_eq!(findings.0["cores"], 4);
    assert_eq!(findings.state("cores"), "advice");
}

#[test]
fn a_host_that_says_nothing_is_told_so_and_not_refused() {
    let host = Tree::bare();
    let findings = host.findings(&["--connections", "1000"]);
    assert_eq!(findings.all_in("change"), [""; 0]);
    let unknown = findings.all_in("unknown");
    for setting in [
        "memory",
        "RLIMIT_NOFILE",
        "fs.file-max",
        "net.ipv4.tcp_mem",
        "clock",
    ] {
        assert!(unknown.contains(&setting), "{setting} of {unknown:?}");
    }
    let text = host.doctor(&["--connections", "1000"]);
    assert!(text.status.success());
    assert!(
        String::from_utf8(text.stdout)
            .unwrap()
            .contains("cannot be read here")
    );
    // A file in an unexpected form is as good as none.
    let host = Tree::large()
        .with("proc/sys/net/ipv4/tcp_mem", "a b c")
        .with("proc/meminfo", "MemTotal: many")
        .with("proc/sys/fs/file-max", "-1");
    let unknown = host.findings(MILLION);
    assert_eq!(unknown.state("net.ipv4.tcp_mem"), "unknown");
    assert_eq!(unknown.state("memory"), "unknown");
    assert_eq!(unknown.state("fs.file-max"), "unknown");
}

#[test]
fn settings_of_old_guides_are_all_judged() {
    let findings = Tree::large().findings(MILLION);
    // The experiments of 2012 and 2013.
    for setting in [
        "fs.nr_open",
        "RLIMIT_NOFILE",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_mem",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
        "net.ipv4.tcp_moderate_rcvbuf",
        "net.ipv4.tcp_tw_recycle",
        "net.ipv4.tcp_tw_reuse",
        "net.core.rmem_max",
        "net.core.wmem_max",
        "net.ipv4.tcp_max_tw_buckets",
        "net.core.netdev_max_backlog",
        "vm.min_free_kbytes",
        "vm.swappiness",
    ] {
        let why = findings.check(setting)["why"].as_str().unwrap();
        assert!(!why.is_empty(), "{setting}");
    }
    assert_eq!(findings.all_in("obsolete"), ["net.ipv4.tcp_tw_recycle"]);
}

#[test]
fn an_old_kernel_that_recycles_is_stopped() {
    let host = Tree::large()
        .with("proc/sys/kernel/osrelease", "3.9.0\n")
        .with("proc/sys/net/ipv4/tcp_tw_recycle", "1\n")
        .without("proc/sys/net/ipv4/tcp_ehash_entries");
    let findings = host.findings(MILLION);
    assert_eq!(findings.state("net.ipv4.tcp_tw_recycle"), "change");
    assert_eq!(findings.0["fits"], false);
    // 128 GiB give the kernel's largest table by itself.
    let table = findings.check("net.ipv4.tcp_ehash_entries");
    assert!(table["is"].as_str().unwrap().starts_with("524,288 by"));
    assert_eq!(table["state"], "fits");
    let host = host.with("proc/sys/net/ipv4/tcp_tw_recycle", "0\n");
    assert_eq!(
        host.findings(MILLION).state("net.ipv4.tcp_tw_recycle"),
        "fits"
    );
}

#[test]
fn advice_is_given_where_connections_would_be_served_worse() {
    let table: &[(&str, &str, &str, &str)] = &[
        ("vm/min_free_kbytes", "8192", "vm.min_free_kbytes", "524288"),
        ("net/core/somaxconn", "128", "net.core.somaxconn", "4096"),
        (
            "net/core/netdev_max_backlog",
            "1000",
            "net.core.netdev_max_backlog",
            "2048",
        ),
        (
            "net/ipv4/tcp_ehash_entries",
            "524288",
            "net.ipv4.tcp_ehash_entries",
            "thash_entries=8388608",
        ),
        (
            "net/ipv4/tcp_ehash_entries",
            "-524288",
            "net.ipv4.tcp_ehash_entries",
            "thash_entries=8388608",
        ),
        (
            "net/ipv4/tcp_max_orphans",
            "262144",
            "net.ipv4.tcp_max_orphans",
            "1250000",
        ),
        (
            "net/ipv4/tcp_max_tw_buckets",
            "262144",
            "net.ipv4.tcp_max_tw_buckets",
            "9600000",
        ),
        (
            "net/ipv4/tcp_wmem",
            "4096 16384 4194304",
            "net.ipv4.tcp_wmem",
            "limits.send_buffer_bytes = 65536",
        ),
        (
            "net/ipv4/tcp_syncookies",
            "0",
            "net.ipv4.tcp_max_syn_backlog",
            "8192",
        ),
        // 960,000 sockets may be busy on 32 cores; more than that, and less than the kernel's share, is pressed early.
        (
            "net/ipv4/tcp_mem",
            "600000 800000 1200000",
            "net.ipv4.tcp_mem",
            "2097152",
        ),
    ];
    for (path, value, setting, change) in table {
        let host = Tree::large().with(&format!("proc/sys/{path}"), value);
        let findings = host.findings(TEN);
        assert_eq!(findings.state(setting), "advice", "{setting}");
        let text = findings.change(setting);
        assert!(text.contains(change), "{setting}: {text}");
        assert_eq!(findings.0["fits"], true, "advice refuses no host");
    }
    let host = Tree::large().with("proc/sys/net/ipv4/tcp_mem", "1 2 3");
    assert_eq!(host.findings(TEN).state("net.ipv4.tcp_mem"), "change");
}

#[test]
fn swap_is_a_matter_only_where_there_is_some() {
    let swap = "MemTotal: 134217728 kB\nMemAvailable: 130000000 kB\nSwapTotal: 8388608 kB\n";
    let host = Tree::large().with("proc/meminfo", swap);
    assert_eq!(host.findings(TEN).state("vm.swappiness"), "advice");
    let host = host.with("proc/sys/vm/swappiness", "1");
    assert_eq!(host.findings(TEN).state("vm.swappiness"), "fits");
}

#[test]
fn drops_that_happened_ask_for_more_than_the_formula() {
    let host = Tree::large().with("proc/net/softnet_stat", "ff 0 0\nff 10 0\n");
    let findings = host.findings(TEN);
    let check = findings.check("net.core.netdev_max_backlog");
    assert_eq!(check["state"], "advice");
    assert!(check["why"].as_str().unwrap().contains("16 were dropped"));
    assert!(
        findings
            .change("net.core.netdev_max_backlog")
            .contains("8192")
    );
}

#[test]
fn tracked_connections_need_entries() {
    let tracker = "proc/sys/net/netfilter";
    let loaded = Tree::large()
        .with(&format!("{tracker}/nf_conntrack_max"), "262144")
        .with(&format!("{tracker}/nf_conntrack_buckets"), "65536")
        .with(&format!("{tracker}/nf_conntrack_count"), "0");
    let findings = loaded.findings(MILLION);
    assert_eq!(findings.state("net.netfilter.nf_conntrack_max"), "note");
    assert_eq!(findings.bound("nf_conntrack_max"), None);

    let tracking = loaded.with(&format!("{tracker}/nf_conntrack_count"), "90");
    let findings = tracking.findings(MILLION);
    assert_eq!(
        findings.holds(),
        (262_144, "net.netfilter.nf_conntrack_max")
    );
    assert_eq!(findings.state("net.netfilter.nf_conntrack_max"), "change");
    assert!(
        findings
            .change("net.netfilter.nf_conntrack_max")
            .contains("1250000")
    );
    assert_eq!(
        findings.state("net.netfilter.nf_conntrack_buckets"),
        "advice"
    );
    assert_eq!(findings.0["bytes_per_connection"], 164 + 4_074 + 328);
}

#[test]
fn memory_that_may_not_be_promised_is_no_memory() {
    let host = Tree::large()
        .with("proc/sys/vm/overcommit_memory", "2")
        .with(
            "proc/meminfo",
            "MemTotal: 134217728 kB\nMemAvailable: 130000000 kB\nCommitLimit: 20000000 kB\nCommitted_AS: 10000000 kB\n",
        )
        .with("crore.toml", "[limits]\nlog_bytes = \"9 GiB\"\n");
    let findings = host.findings(TEN);
    assert_eq!(findings.holds().1, "memory that may be promised");
    assert_eq!(findings.state("vm.overcommit_memory"), "change");
}

#[test]
fn one_queue_is_not_enough_for_many_cores() {
    let card = "sys/class/net/eth0";
    let host = Tree::large()
        .with("proc/self/status", "Uid: 0 0 0 0\nCpus_allowed_list: 0-3\n")
        .with("sys/class/net/lo/queues/rx-0/rps_cpus", "0")
        .with(&format!("{card}/device/vendor"), "0x1af4")
        .with(&format!("{card}/queues/rx-0/rps_cpus"), "00000000\n")
        .with(&format!("{card}/queues/tx-0/xps_cpus"), "0")
        .with(
            "proc/interrupts",
            "    CPU0 CPU1 CPU2 CPU3\n 38: 0 26663 0 0 PCI-MSIX 1-edge eth0-rx-0\n",
        );
    let findings = host.findings(MILLION);
    assert_eq!(findings.state("interrupts of eth0"), "advice");
    let change = findings.change("interrupts of eth0");
    assert!(
        change.contains("echo 0000000f > /sys/class/net/eth0/queues/rx-0/rps_cpus"),
        "{change}"
    );
    assert!(change.contains("ethtool -L eth0 combined 4"), "{change}");
    let steered = host.with(&format!("{card}/queues/rx-0/rps_cpus"), "f\n");
    assert_eq!(
        steered.findings(MILLION).state("interrupts of eth0"),
        "fits"
    );
    // Four queues whose interrupts all go to one core are one queue.
    let gathered = (1..4).fold(steered, |host, queue| {
        host.with(&format!("{card}/queues/rx-{queue}/rps_cpus"), "0")
    });
    let gathered = gathered.with(&format!("{card}/queues/rx-0/rps_cpus"), "0");
    let findings = gathered.findings(MILLION);
    assert_eq!(findings.state("interrupts of eth0"), "advice");
    assert!(findings.change("interrupts of eth0").contains("irqbalance"));
}

#[test]
fn another_host_can_be_planned() {
    // Nobody has limited the memory that is not there yet.
    let host = Tree::large().with("sys/fs/cgroup/memory.max", "1000000\n");
    let plan = [
        "--connections",
        "2000000",
        "--memory",
        "16GiB",
        "--cores",
        "4",
    ];
    let findings = host.findings(&plan);
    assert_eq!(
        (&findings.0["cores"], &findings.0["shards"]),
        (&4.into(), &4.into())
    );
    let memory: u64 = 16 << 30;
    let expected = (memory - memory / 20 - memory / 8 - 6_000_000 - 4 * 75_000) / 4_238;
    assert_eq!(findings.bound("memory"), Some(expected));
    assert_eq!(findings.bound("control group"), None);
    let mqtt = host.findings(&[&plan[..], &["--protocol", "mqtt"]].concat());
    assert_eq!(mqtt.0["bytes_per_connection"], 238 + 4_074);
}

#[test]
fn a_server_with_a_certificate_is_taken_to_speak_tls() {
    let host = Tree::large().with(
        "crore.toml",
        "[tls]\ncertificate = 'cert.pem'\nkey = 'key.pem'\n",
    );
    let findings = host.findings(MILLION);
    assert_eq!(findings.0["tls"], true);
    assert_eq!(findings.0["bytes_per_connection"], 164 + 84 + 4_074);
}

#[test]
fn connections_through_proxies_are_counted_in_addresses() {
    let host = Tree::large().with(
        "crore.toml",
        "listen = ['127.0.0.1:1', '127.0.0.1:2']\n[http]\ntrusted_proxies = ['10.0.0.0/8']\n",
    );
    let findings = host.findings(MILLION);
    let ports = findings.check("net.ipv4.ip_local_port_range");
    assert_eq!(ports["state"], "note");
    let why = ports["why"].as_str().unwrap();
    // 1,000,000 / (28,232 x 2), rounded up.
    assert!(why.contains("need 18 local addresses"), "{why}");
    assert!(why.contains("trusted_proxies"), "{why}");
}

#[test]
fn settings_that_the_server_refuses_are_refused_here_too() {
    let output = Tree::large()
        .with("crore.toml", "shard = 2\n")
        .doctor(MILLION);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("unknown field")
    );
    for wrong in [
        &["--connections", "0"][..],
        &["--connections", "many"],
        &["--memory", "lots"],
        &["--script", "--json"],
        &["--apply", "--memory", "1GiB"],
        &["--apply", "--cores", "1"],
    ] {
        let output = Tree::large().doctor(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn the_page_about_the_doctor_names_every_setting() {
    let page = include_str!("../../../../docs/DOCTOR.md");
    let tracking = Tree::large()
        .with("proc/sys/net/netfilter/nf_conntrack_count", "9")
        .with("proc/sys/net/netfilter/nf_conntrack_max", "9");
    let findings = tracking.findings(MILLION);
    for check in findings.0["checks"].as_array().unwrap() {
        let setting = check["setting"].as_str().unwrap();
        assert!(
            page.contains(&format!("`{setting}`")),
            "docs/DOCTOR.md lacks `{setting}`"
        );
    }
}
