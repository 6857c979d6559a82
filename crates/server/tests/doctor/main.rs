//! Tests the doctor (`crore doctor`) on simulated hosts made of files: small and large ones, containers, old kernels, and hosts that tell
//! nothing.

mod account;
mod groups;
mod memory;
mod network;
mod tree;

use tree::Tree;

const MILLION: &[&str] = &["--connections", "1000000"];
const TEN: &[&str] = &["--connections", "10000000"];

#[test]
fn host_tuned_for_ten_million_connections_passes() {
    let findings = Tree::large().findings(TEN);
    assert_eq!(findings.all_in("change"), [""; 0]);
    assert_eq!(findings.all_in("advice"), [""; 0]);
    // A directory of files has no clock and no network card.
    assert_eq!(findings.all_in("unknown"), ["network cards", "clock"]);
    assert!(findings.estimate().0 >= 10_000_000);
}

#[test]
fn doctor_without_a_number_judges_a_host_by_its_likely_use() {
    let findings = Tree::large().findings(&[]);
    assert_eq!(
        (&findings.0["connections"], &findings.0["fits"]),
        (&10_000.into(), &true.into())
    );
    let settings = "[limits]\nconnections_max = 77000\n";
    let findings = Tree::large()
        .with_file("crore.toml", settings)
        .findings(&[]);
    assert_eq!(findings.0["connections"], 77_000);
}

#[test]
fn each_bound_binds_and_is_named() {
    /// A file, its content, the bound that then limits the host, the number of connections that this bound leaves, and the setting to
    /// change.
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
        let findings = Tree::large().with_file(path, text).findings(TEN);
        assert_eq!(findings.estimate(), (*holds, *name), "{path}");
        assert_eq!(findings.state(setting), "change", "{setting}");
        assert_ne!(findings.change(setting), "[]", "{setting}");
        assert_eq!(findings.0["fits"], false);
    }
}

#[test]
fn quotas_and_cpusets_say_how_many_cores_there_are() {
    let host = Tree::large()
        .with_file(
            "proc/self/status",
            "Uid: 0 0 0 0\nCpus_allowed_list: 2-5,8\n",
        )
        .with_file("sys/fs/cgroup/system.slice/cpu.max", "250000 100000\n");
    let findings = host.findings(MILLION);
    assert_eq!(findings.0["cores"], 2);
    assert_eq!(findings.0["shards"], 2);
    // Two cores never exceed a quota of 2.5.
    assert_eq!(findings.state("cores"), "fits");
    let findings = host.findings(&["--connections", "1000000", "--cores", "4"]);
    assert_eq!(findings.0["cores"], 4);
    assert_eq!(findings.state("cores"), "advice");
}

#[test]
fn host_without_information_is_reported_as_unknown() {
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
    let text = host.doctor(&["--connections", "1000", "--all"]);
    assert!(text.status.success());
    assert!(
        String::from_utf8(text.stdout)
            .unwrap()
            .contains("cannot be read here")
    );
    // A file in an unexpected form counts as missing.
    let host = Tree::large()
        .with_file("proc/sys/net/ipv4/tcp_mem", "a b c")
        .with_file("proc/meminfo", "MemTotal: many")
        .with_file("proc/sys/fs/file-max", "-1");
    let unknown = host.findings(MILLION);
    assert_eq!(unknown.state("net.ipv4.tcp_mem"), "unknown");
    assert_eq!(unknown.state("memory"), "unknown");
    assert_eq!(unknown.state("fs.file-max"), "unknown");
}

#[test]
fn the_first_screen_fits_a_terminal_and_tells_what_to_change() {
    let host = Tree::large()
        .with_file("proc/sys/fs/file-max", "102048")
        .with_file("proc/sys/vm/min_free_kbytes", "8192")
        .with_file("proc/sys/net/core/somaxconn", "128")
        .with_file("proc/sys/net/core/netdev_max_backlog", "1000")
        .with_file("proc/sys/net/ipv4/tcp_max_orphans", "262144")
        .with_file("proc/sys/net/ipv4/tcp_max_tw_buckets", "262144")
        .with_file("proc/sys/net/ipv4/tcp_syncookies", "0")
        .with_file("proc/sys/net/ipv4/tcp_wmem", "4096 16384 4194304");
    let text = String::from_utf8(host.doctor(TEN).stdout).unwrap();
    assert!(text.lines().count() <= 25, "{text}");
    let first = text.lines().find(|line| line.starts_with("change"));
    assert!(
        first.is_some_and(|line| line.contains("fs.file-max: 102,048; should be")),
        "{text}"
    );
    for words in [
        "sysctl -w fs.file-max=",
        "and 2 more",
        "do not fit",
        "--all",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let full_report = String::from_utf8(host.doctor(&[TEN, &["--all"]].concat()).stdout).unwrap();
    assert!(full_report.lines().count() > 100, "{full_report}");
}

#[test]
fn settings_of_old_guides_are_all_judged() {
    let findings = Tree::large().findings(MILLION);
    // Settings that experiments with a million connections found necessary (docs/DOCTOR.md).
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
        let reason = findings.check(setting)["why"].as_str().unwrap();
        assert!(!reason.is_empty(), "{setting}");
    }
    assert_eq!(findings.all_in("obsolete"), ["net.ipv4.tcp_tw_recycle"]);
}

#[test]
fn an_old_kernel_that_recycles_is_stopped() {
    let host = Tree::large()
        .with_file("proc/sys/kernel/osrelease", "3.9.0\n")
        .with_file("proc/sys/net/ipv4/tcp_tw_recycle", "1\n")
        .without_file("proc/sys/net/ipv4/tcp_ehash_entries");
    let findings = host.findings(MILLION);
    assert_eq!(findings.state("net.ipv4.tcp_tw_recycle"), "change");
    assert_eq!(findings.0["fits"], false);
    // With 128 GiB the kernel makes its largest table without a setting.
    let table = findings.check("net.ipv4.tcp_ehash_entries");
    assert!(table["is"].as_str().unwrap().starts_with("524,288 by"));
    assert_eq!(table["state"], "fits");
    let host = host.with_file("proc/sys/net/ipv4/tcp_tw_recycle", "0\n");
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
        // On 32 cores 960,000 sockets may be busy. A limit above their need, but below the kernel's default share, is reached early.
        (
            "net/ipv4/tcp_mem",
            "600000 800000 1200000",
            "net.ipv4.tcp_mem",
            "2097152",
        ),
    ];
    for (path, value, setting, change) in table {
        let host = Tree::large().with_file(&format!("proc/sys/{path}"), value);
        let findings = host.findings(TEN);
        assert_eq!(findings.state(setting), "advice", "{setting}");
        let text = findings.change(setting);
        assert!(text.contains(change), "{setting}: {text}");
        assert_eq!(findings.0["fits"], true, "advice refuses no host");
    }
    let host = Tree::large().with_file("proc/sys/net/ipv4/tcp_mem", "1 2 3");
    assert_eq!(host.findings(TEN).state("net.ipv4.tcp_mem"), "change");
}

#[test]
fn another_host_can_be_planned() {
    // For a planned host with more memory, the limit of the present group does not count.
    let host = Tree::large().with_file("sys/fs/cgroup/memory.max", "1000000\n");
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
fn server_with_a_certificate_is_assumed_to_use_tls() {
    let host = Tree::large().with_file(
        "crore.toml",
        "[tls]\ncertificate = 'cert.pem'\nkey = 'key.pem'\n",
    );
    let findings = host.findings(MILLION);
    assert_eq!(findings.0["tls"], true);
    assert_eq!(findings.0["bytes_per_connection"], 164 + 84 + 4_074);
}

#[test]
fn settings_that_the_server_refuses_are_refused_here_too() {
    let output = Tree::large()
        .with_file("crore.toml", "shard = 2\n")
        .doctor(MILLION);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("did you mean `shards`?")
    );
    for wrong in [
        &["--connections", "0"][..],
        &["--connections", "many"],
        &["--memory", "lots"],
        &["--apply"],
    ] {
        let output = Tree::large().doctor(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn the_page_about_the_doctor_names_every_setting() {
    let page = include_str!("../../../../docs/DOCTOR.md");
    let tracking = Tree::large()
        .with_file("proc/sys/net/netfilter/nf_conntrack_count", "9")
        .with_file("proc/sys/net/netfilter/nf_conntrack_max", "9");
    let findings = tracking.findings(MILLION);
    for check in findings.0["checks"].as_array().unwrap() {
        let setting = check["setting"].as_str().unwrap();
        assert!(
            page.contains(&format!("`{setting}`")),
            "docs/DOCTOR.md lacks `{setting}`"
        );
    }
}
