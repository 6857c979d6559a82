//! Tests the doctor's account of memory: how much each part needs when everything that has a limit is full.

use crate::TEN;
use crate::tree::{Findings, Tree};

#[test]
fn limited_memory_is_added_up_and_must_fit() {
    const GIB: u64 = 1 << 30;
    let parts = |findings: &Findings| -> Vec<(String, Option<u64>)> {
        let parts = findings.0["memory"]["parts"].as_array().unwrap().iter();
        parts
            .map(|part| {
                let name = part["name"].as_str().unwrap().to_string();
                (name, part["bytes"].as_u64())
            })
            .collect()
    };
    // The logs, and what clients make the server hold, each get an eighth of 128 GiB. net.ipv4.tcp_mem is less than the sockets' buffers,
    // so it is the limit.
    let expected = [
        ("server", 6_000_000 + 32 * 75_000),
        ("connections, topics", 10_000_000 * 164),
        ("sockets", 10_000_000 * 4_074),
        ("socket buffers", 3_145_728 * 4096),
        ("limits.log_bytes", 16 * GIB),
        ("limits.memory_bytes", 16 * GIB),
    ]
    .map(|(name, bytes)| (name.to_string(), Some(bytes)));
    let other_bytes: u64 = expected[..5].iter().filter_map(|part| part.1).sum();
    let available = 130_000_000 * 1024;
    let findings = Tree::large().findings(TEN);
    assert_eq!(parts(&findings), expected);
    assert_eq!(findings.0["memory"]["bytes"], other_bytes + 16 * GIB);
    assert_eq!(findings.0["memory"]["available"], available);
    assert_eq!(findings.state("limits.memory_bytes"), "fits");
    let text = Tree::large().doctor(&[TEN, &["--all"]].concat()).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("  limits.memory_bytes    16.0 GiB  all other data"),
        "{text}"
    );
    assert!(text.contains("  all together "), "{text}");

    // If the sum is more than the memory, the doctor names a value of the setting that fits.
    let large = "[limits]\nmemory_bytes = \"80 GiB\"\n";
    let host = Tree::large().with_file("crore.toml", large);
    let findings = host.findings(TEN);
    assert_eq!(findings.state("limits.memory_bytes"), "advice");
    let available_mib = (available - other_bytes) >> 20;
    let change =
        format!("[\"limits.memory_bytes = \\\"{available_mib} MiB\\\" in the server's settings\"]");
    assert_eq!(findings.change("limits.memory_bytes"), change);
    let text = String::from_utf8(host.doctor(&[TEN, &["--all"]].concat()).stdout).unwrap();
    assert!(text.contains("\n> all together "), "{text}");
    // With this advice the doctor itself is content.
    let smaller = format!("[limits]\nmemory_bytes = \"{available_mib} MiB\"\n");
    let host = host.with_file("crore.toml", &smaller);
    assert_eq!(host.findings(TEN).state("limits.memory_bytes"), "fits");

    // If everything else leaves no memory, the doctor advises fewer connections instead.
    let host = Tree::large().with_file("sys/fs/cgroup/memory.max", "34359738368\n");
    let findings = host.findings(TEN);
    assert_eq!(findings.0["memory"]["available"], 32 * GIB);
    let beyond_base = findings.0["memory"]["bytes"].as_u64().unwrap() - 32 * GIB;
    let connections_max = 10_000_000 - beyond_base.div_ceil(4_238);
    let change = findings.change("limits.memory_bytes");
    let expected = format!("limits.connections_max = {connections_max} ");
    assert!(change.contains(&expected), "{expected}: {change}");
    let findings = host.findings(&["--connections", &connections_max.to_string()]);
    assert_eq!(findings.state("limits.memory_bytes"), "fits");
}

#[test]
fn socket_buffers_are_those_of_the_settings() {
    let buffers = |settings: &str| {
        let host = Tree::large()
            .with_file("proc/sys/net/ipv4/tcp_wmem", "4096 16384 4194304")
            .with_file("crore.toml", settings);
        let findings = host.findings(&["--connections", "1000"]);
        let parts = findings.0["memory"]["parts"].as_array().unwrap();
        parts[3]["bytes"].as_u64().unwrap()
    };
    // The kernel's buffer holds the unsent bytes and one piece of 64 KiB more, but at most tcp_wmem.
    assert_eq!(buffers(""), 1_000 * (131_072 + 65_536 + 6_291_456));
    for (asked, bytes) in [
        (0, 4_194_304),
        (8_192, 8_192 + 65_536),
        (67_108_864, 4_194_304),
    ] {
        let settings = format!("[limits]\nsend_buffer_bytes = {asked}\n");
        assert_eq!(buffers(&settings), 1_000 * (bytes + 6_291_456));
    }
}

#[test]
fn connections_over_af_xdp_have_their_memory_added() {
    let settings = "[xdp]\nlisten = \"none-such:8800\"\nconnections_max = 1000\nbuffer_bytes = \"32 MiB\"\n\
                    [access.anonymous]\nsubscribe = [\"#\"]\n";
    let host = Tree::large().with_file("crore.toml", settings);
    let findings = host.findings(&["--connections", "2000"]);
    let part = |name: &str| {
        let mut parts = findings.0["memory"]["parts"].as_array().unwrap().iter();
        parts.find(|part| part["name"] == name).unwrap()["bytes"].as_u64()
    };
    assert_eq!(part("xdp connections"), Some(1_000 * 110));
    assert_eq!(part("xdp.buffer_bytes"), Some(32 << 20));
    assert_eq!(part("xdp.frames"), None, "the interface tells its queues");
    assert_eq!(findings.state("xdp.listen"), "change");
}
