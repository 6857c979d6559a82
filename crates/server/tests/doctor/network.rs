//! Tests that `crore doctor` reports network cards, tracked connections, dropped packets and local ports.

use crate::tree::Tree;
use crate::{MILLION, TEN};

#[test]
fn drops_that_happened_ask_for_more_than_the_formula() {
    let host = Tree::large().with_file("proc/net/softnet_stat", "ff 0 0\nff 10 0\n");
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
        .with_file(&format!("{tracker}/nf_conntrack_max"), "262144")
        .with_file(&format!("{tracker}/nf_conntrack_buckets"), "65536")
        .with_file(&format!("{tracker}/nf_conntrack_count"), "0");
    let findings = loaded.findings(MILLION);
    assert_eq!(findings.state("net.netfilter.nf_conntrack_max"), "note");
    assert_eq!(findings.bound("nf_conntrack_max"), None);

    let tracking = loaded.with_file(&format!("{tracker}/nf_conntrack_count"), "90");
    let findings = tracking.findings(MILLION);
    assert_eq!(
        findings.estimate(),
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
fn one_queue_is_not_enough_for_many_cores() {
    let card = "sys/class/net/eth0";
    let host = Tree::large()
        .with_file("proc/self/status", "Uid: 0 0 0 0\nCpus_allowed_list: 0-3\n")
        .with_file("sys/class/net/lo/queues/rx-0/rps_cpus", "0")
        .with_file(&format!("{card}/device/vendor"), "0x1af4")
        .with_file(&format!("{card}/queues/rx-0/rps_cpus"), "00000000\n")
        .with_file(&format!("{card}/queues/tx-0/xps_cpus"), "0")
        .with_file(
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
    let text = String::from_utf8(host.doctor(MILLION).stdout).expect("text");
    let expected = "interrupts of eth0: 1 receive queue, its interrupts go to 1 core, RPS to 0 cores; should be";
    assert!(text.contains(expected), "{text}");
    let steered = host.with_file(&format!("{card}/queues/rx-0/rps_cpus"), "f\n");
    assert_eq!(
        steered.findings(MILLION).state("interrupts of eth0"),
        "fits"
    );
    // Four queues whose interrupts all go to one core count as one queue.
    let gathered = (1..4).fold(steered, |host, queue| {
        host.with_file(&format!("{card}/queues/rx-{queue}/rps_cpus"), "0")
    });
    let gathered = gathered.with_file(&format!("{card}/queues/rx-0/rps_cpus"), "0");
    let findings = gathered.findings(MILLION);
    assert_eq!(findings.state("interrupts of eth0"), "advice");
    assert!(findings.change("interrupts of eth0").contains("irqbalance"));
}

#[test]
fn connections_through_proxies_are_counted_in_addresses() {
    let host = Tree::large().with_file(
        "crore.toml",
        "listen = ['127.0.0.1:1', '127.0.0.1:2']\n[http]\ntrusted_proxies = ['10.0.0.0/8']\n",
    );
    let findings = host.findings(MILLION);
    let ports = findings.check("net.ipv4.ip_local_port_range");
    assert_eq!(ports["state"], "note");
    let reason = ports["why"].as_str().unwrap();
    // 1,000,000 connections / (28,232 ports x 2 upstream addresses), rounded up, give 18.
    assert!(reason.contains("need 18 local addresses"), "{reason}");
    assert!(reason.contains("trusted_proxies"), "{reason}");
}
