//! Tests the doctor's reading of control groups (version 2): nested groups, inside and outside of containers, with `max` and with limits
//! below it.

use crate::tree::Tree;
use crate::{MILLION, TEN};

const GIB: u64 = 1 << 30;
const MOUNT: &str = "sys/fs/cgroup";

/// A host for ten million connections whose process runs in this group, with 1 MiB for logs.
fn host(group: &str) -> Tree {
    Tree::large()
        .with_file(
            "crore.toml",
            "shards = 32\n[limits]\nlog_bytes = \"1 MiB\"\nconnections_max = 20000000\n",
        )
        .with_file("proc/self/cgroup", &format!("0::{group}\n"))
}

/// The number of connections that fit into an empty group with this limit.
fn memory_for_connections(limit: u64) -> u64 {
    (limit - 6_000_000 - 32 * 75_000 - (1 << 20)) / (164 + 3_832)
}

#[test]
fn max_is_no_limit_and_the_least_of_those_above_binds() {
    let [pods, pod, container] = [
        "kubepods.slice",
        "kubepods.slice/kubepods-pod1.slice",
        "kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope",
    ];
    let host = host(&format!("/{container}"))
        .with_file(&format!("{MOUNT}/{container}/memory.max"), "max\n")
        .with_file(&format!("{MOUNT}/{container}/memory.high"), "max\n")
        .with_file(
            &format!("{MOUNT}/{container}/memory.current"),
            "123456789\n",
        )
        .with_file(&format!("{MOUNT}/{container}/pids.max"), "max\n")
        .with_file(&format!("{MOUNT}/{container}/cpu.max"), "max 100000\n");
    let findings = host.findings(MILLION);
    assert_eq!(findings.bound("control group"), None, "nothing is limited");
    assert_eq!(findings.all_in("change"), [""; 0]);
    assert_eq!(findings.state("cores"), "fits");

    let host = host
        .with_file(&format!("{MOUNT}/{pod}/memory.max"), "2147483648\n")
        .with_file(&format!("{MOUNT}/{pods}/memory.max"), "8589934592\n")
        .with_file(&format!("{MOUNT}/{pod}/cpu.max"), "1600000 100000\n")
        .with_file(&format!("{MOUNT}/{pods}/cpu.max"), "6400000 100000\n");
    let findings = host.findings(TEN);
    let name = format!("memory of the control group /{MOUNT}/{pod}");
    assert_eq!(
        findings.estimate(),
        (memory_for_connections(2 * GIB), name.as_str())
    );
    assert_eq!(
        findings.bound(&format!("/{MOUNT}/{pods}")),
        Some(memory_for_connections(2 * GIB))
    );
    // 16 of 32 cores. The server starts as many shards, so the quota never stops them.
    assert_eq!(findings.0["cores"], 16);
    // The outer group has a lower limit.
    let host = host.with_file(&format!("{MOUNT}/{pods}/memory.max"), "1073741824\n");
    let name = format!("memory of the control group /{MOUNT}/{pods}");
    assert_eq!(
        host.findings(TEN).estimate(),
        (memory_for_connections(GIB), name.as_str())
    );
}

#[test]
fn a_container_sees_its_own_limit_at_the_root_of_the_mount() {
    // In its own cgroup namespace the process sees its path as the root. Without one the path is the host's, which does not exist here.
    for path in ["/", "/docker/0123456789abcdef", "/../other.slice"] {
        let host = host(path)
            .with_file(&format!("{MOUNT}/memory.max"), "1073741824\n")
            .with_file(&format!("{MOUNT}/pids.max"), "20\n")
            .with_file(&format!("{MOUNT}/cpu.max"), "200000 100000\n");
        let findings = host.findings(MILLION);
        let name = format!("memory of the control group /{MOUNT}");
        assert_eq!(
            findings.estimate(),
            (memory_for_connections(GIB), name.as_str()),
            "{path}"
        );
        assert_eq!(findings.0["cores"], 2, "{path}");
        assert_eq!(findings.state(&format!("task limit of /{MOUNT}")), "change");
    }
}

#[test]
fn memory_high_limits_like_memory_max() {
    let group = "system.slice/crore.service";
    let host = host(&format!("/{group}"))
        .with_file(&format!("{MOUNT}/{group}/memory.max"), "4294967296\n")
        .with_file(&format!("{MOUNT}/{group}/memory.high"), "1073741824\n");
    let findings = host.findings(MILLION);
    let name = format!("memory of the control group /{MOUNT}/{group}");
    assert_eq!(
        findings.estimate(),
        (memory_for_connections(GIB), name.as_str())
    );
    let change = findings.change(&format!("memory limit of /{MOUNT}/{group}"));
    assert!(change.contains("MemoryHigh="), "{change}");
}

#[test]
fn threads_need_a_place_in_each_group() {
    let group = "system.slice/crore.service";
    let access = "[access]\npassword_threads = 7\n[access.callback]\nurl = \"http://127.0.0.1:9/\"\nconcurrency = 11\n";
    for (settings, threads) in [("", 32 + 6), (access, 32 + 6 + 7 + 11)] {
        let limited = |limit: u64| {
            host(&format!("/{group}"))
                .with_file("crore.toml", &format!("shards = 32\n{settings}"))
                .with_file(&format!("{MOUNT}/{group}/pids.max"), "4096\n")
                .with_file(&format!("{MOUNT}/{group}/pids.current"), "3\n")
                .with_file(
                    &format!("{MOUNT}/system.slice/pids.max"),
                    &format!("{limit}\n"),
                )
                .with_file(&format!("{MOUNT}/system.slice/pids.current"), "100\n")
                .findings(MILLION)
        };
        let outer = format!("task limit of /{MOUNT}/system.slice");
        let findings = limited(100 + threads);
        assert_eq!(findings.state(&outer), "fits");
        assert_eq!(
            findings.state(&format!("task limit of /{MOUNT}/{group}")),
            "fits"
        );
        let findings = limited(100 + threads - 1);
        assert_eq!(findings.state(&outer), "change");
        assert!(findings.change(&outer).contains("TasksMax="));
        assert_eq!(findings.0["fits"], false);
    }
    // In version 1 the process limit has a mount of its own.
    let host = Tree::large()
        .with_file("proc/self/cgroup", "8:pids:/docker/1\n0::/\n")
        .with_file(&format!("{MOUNT}/pids/docker/1/pids.max"), "8\n");
    let findings = host.findings(MILLION);
    assert_eq!(
        findings.state(&format!("task limit of /{MOUNT}/pids/docker/1")),
        "change"
    );
}

#[test]
fn unexpected_cgroup_value_is_no_limit() {
    let group = "system.slice/crore.service";
    for text in [
        "",
        "\n",
        "many\n",
        "-1\n",
        "99999999999999999999999\n",
        "1 2\n",
    ] {
        let host = [
            "memory.max",
            "memory.high",
            "memory.current",
            "pids.max",
            "cpu.max",
        ]
        .iter()
        .fold(host(&format!("/{group}")), |host, name| {
            host.with_file(&format!("{MOUNT}/{group}/{name}"), text)
        })
        .with_file(&format!("{MOUNT}/{group}/memory.stat"), "file\nshmem x\n\n");
        let findings = host.findings(MILLION);
        assert_eq!(findings.bound("control group"), None, "{text:?}");
        assert_eq!(findings.all_in("change"), [""; 0], "{text:?}");
    }
    // The group can give back more memory than is in use, so none counts as held.
    let host = host(&format!("/{group}"))
        .with_file(&format!("{MOUNT}/{group}/memory.max"), "1073741824\n")
        .with_file(&format!("{MOUNT}/{group}/memory.current"), "1000\n")
        .with_file(
            &format!("{MOUNT}/{group}/memory.stat"),
            "file 5000\nshmem 9000\nslab_reclaimable 2000\n",
        );
    assert_eq!(
        host.findings(MILLION).estimate().0,
        memory_for_connections(GIB)
    );
}
