//! Tests how much memory the doctor counts as free: what the host and its control groups leave beside what is already promised.

use crate::tree::Tree;
use crate::{MILLION, TEN};

#[test]
fn memory_is_what_is_left_beside_the_server_and_its_logs() {
    let host = Tree::large()
        .with_file(
            "proc/meminfo",
            "MemTotal: 9765625 kB\nMemAvailable: 976562 kB\n",
        )
        .with_file("crore.toml", "[limits]\nlog_bytes = \"1 MiB\"\n");
    let findings = host.findings(TEN);
    // The server takes 6 MB, each of 32 shards 75 KB, and each connection 164 bytes in the server and 4,074 in the kernel.
    let expected = (976_562 * 1024 - 6_000_000 - 32 * 75_000 - (1 << 20)) / 4_238;
    assert_eq!(findings.estimate(), (expected, "memory"));
    assert_eq!(findings.state("memory"), "change");
}

#[test]
fn memory_of_a_container_is_limited_by_its_group_and_all_parents() {
    const GIB: u64 = 1 << 30;
    let group = "sys/fs/cgroup/system.slice/crore.service";
    let settings = "shards = 32\n[limits]\nlog_bytes = \"1 MiB\"\nconnections_max = 20000000\n";
    let fixed = 6_000_000 + 32 * 75_000 + (1 << 20);
    // Pages of files and spare slabs can be given back; tmpfs cannot.
    let stat = "anon 1\nfile 300000000\nshmem 100000000\nslab_reclaimable 50000000\n";
    let host = Tree::large()
        .with_file("crore.toml", settings)
        .with_file(&format!("{group}/memory.max"), "8589934592\n")
        .with_file(&format!("{group}/memory.current"), "600000000\n")
        .with_file(&format!("{group}/memory.stat"), stat)
        .with_file("sys/fs/cgroup/system.slice/memory.max", "17179869184\n")
        .with_file("sys/fs/cgroup/memory.max", "max\n");
    let findings = host.findings(TEN);
    let inner = format!("memory of the control group /{group}");
    let used_bytes = 600_000_000 - 200_000_000 - 50_000_000;
    let expected = (8 * GIB - used_bytes - fixed) / (164 + 3_832);
    assert_eq!(findings.estimate(), (expected, inner.as_str()));
    assert_eq!(
        findings.state(&format!("memory limit of /{group}")),
        "change"
    );
    let outer = "memory limit of /sys/fs/cgroup/system.slice";
    assert_eq!(findings.state(outer), "change");
    assert_eq!(host.findings(MILLION).state(outer), "fits");

    // Before Linux 6.12 the memory of accepted sockets is charged to no group.
    let host = host.with_file("proc/sys/kernel/osrelease", "5.15.0-100-generic\n");
    let expected = (8 * GIB - used_bytes - fixed) / (164 + 1_456);
    assert_eq!(host.findings(TEN).estimate(), (expected, inner.as_str()));
}

#[test]
fn version_1_counts_sockets_once_they_have_a_limit() {
    let group = "sys/fs/cgroup/memory/docker/abc";
    let host = Tree::large()
        .with_file("crore.toml", "[limits]\nlog_bytes = \"1 MiB\"\n")
        .with_file(
            "proc/self/cgroup",
            "9:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n",
        )
        .with_file(&format!("{group}/memory.limit_in_bytes"), "1073741824\n")
        .with_file(&format!("{group}/memory.usage_in_bytes"), "9000000\n")
        .with_file(
            &format!("{group}/memory.stat"),
            "cache 5\ntotal_cache 4000000\ntotal_shmem 0\n",
        )
        .with_file(
            &format!("{group}/memory.kmem.tcp.limit_in_bytes"),
            "9223372036854771712\n",
        )
        .with_file(
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
    let free = (1 << 30) - 5_000_000 - 6_000_000 - 32 * 75_000 - (1 << 20);
    assert_eq!(
        host.findings(MILLION).bound("docker/abc"),
        Some(free / (164 + 1_456))
    );
    let host = host.with_file(
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
fn swap_is_a_matter_only_where_there_is_some() {
    let swap = "MemTotal: 134217728 kB\nMemAvailable: 130000000 kB\nSwapTotal: 8388608 kB\n";
    let host = Tree::large().with_file("proc/meminfo", swap);
    assert_eq!(host.findings(TEN).state("vm.swappiness"), "advice");
    let host = host.with_file("proc/sys/vm/swappiness", "1");
    assert_eq!(host.findings(TEN).state("vm.swappiness"), "fits");
}

#[test]
fn memory_that_may_not_be_promised_is_no_memory() {
    let host = Tree::large()
        .with_file("proc/sys/vm/overcommit_memory", "2")
        .with_file(
            "proc/meminfo",
            "MemTotal: 134217728 kB\nMemAvailable: 130000000 kB\nCommitLimit: 20000000 kB\nCommitted_AS: 10000000 kB\n",
        )
        .with_file("crore.toml", "[limits]\nlog_bytes = \"9 GiB\"\n");
    let findings = host.findings(TEN);
    assert_eq!(findings.estimate().1, "memory that may be promised");
    assert_eq!(findings.state("vm.overcommit_memory"), "change");
}
