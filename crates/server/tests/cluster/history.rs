//! Measures how long an empty node takes to join a cluster with a long history. The measurement does not run with the tests:
//!
//!     CRORE_TEST_PROGRAM=target/release/crore CRORE_HISTORY_MB=2000 cargo test -p crore --test cluster -- --ignored --nocapture history

use std::time::Instant;

use serde_json::json;

use crate::servers::Servers;
use crate::settings;
use crate::support::http::Conn;
use crate::support::{Server, port};

const TOPICS: usize = 10_000;
const MESSAGE_BYTES: usize = 512;
const LINES: usize = 1000;

/// A node that keeps all messages.
fn node(servers: &Servers, checkpoint_bytes: &str) -> Server {
    let expected = format!(
        "checkpoint_bytes = \"{checkpoint_bytes}\"\nhistory_bytes = 0\n[limits]\nlog_bytes = \"8GiB\"\n[[rule]]"
    );
    let settings = settings(servers).replace("[[rule]]", &expected);
    let settings = settings.replace("log_messages = 1000", "log_messages = 100000");
    Server::with_admin(&format!("{settings}log_bytes = \"1GiB\"\n"))
}

/// Starts an empty node. Returns the seconds until it is ready, and its resident memory.
fn join(servers: &Servers, checkpoint_bytes: &str) -> (f64, u64) {
    let began = Instant::now();
    let late_node = node(servers, checkpoint_bytes);
    assert_eq!(
        port::ask(late_node.admin(), "GET /readyz", None).status,
        200
    );
    (began.elapsed().as_secs_f64(), late_node.resident_bytes())
}

#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "the result")]
fn an_empty_node_joins_a_long_history() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let megabytes = std::env::var("CRORE_HISTORY_MB").unwrap_or_default();
    let megabytes: usize = megabytes.parse().unwrap_or(200);
    let count = megabytes * 1_000_000 / MESSAGE_BYTES;
    let node_a = node(&servers, "512GiB");
    let text = "x".repeat(MESSAGE_BYTES);
    let mut conn = Conn::open(&node_a);
    for first in (0..count).step_by(LINES) {
        let line = |n: usize| format!("{{\"topic\":\"t/{}\",\"data\":\"{text}\"}}\n", n % TOPICS);
        let lines: String = (first..count.min(first + LINES)).map(line).collect();
        let headers = [("Content-Type", "application/x-ndjson")];
        let answer = conn.request("POST", "/pub", &headers, &lines);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let partitions = || port::get(node_a.admin(), "cluster")["partitions"].clone();
    let sum = |of: &str| -> u64 {
        let partitions = partitions();
        let all = partitions.as_array().expect("partitions").iter();
        all.map(|it| it[of].as_u64().unwrap_or(0)).sum()
    };
    let (log_s, log_memory) = join(&servers, "512GiB");
    let log_bytes = sum("bytes");
    drop(node_a);
    let second_node = node(&servers, "1MiB");
    let admin = second_node.admin();
    let has_all = |it: &serde_json::Value| it["checkpoint"].is_u64();
    let are_there = || {
        let partitions = port::get(admin, "cluster")["partitions"].clone();
        partitions
            .as_array()
            .expect("partitions")
            .iter()
            .all(has_all)
    };
    while !are_there() {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let partitions = port::get(admin, "cluster")["partitions"].clone();
    let all = partitions.as_array().expect("partitions").iter();
    let checkpoint_bytes: u64 = all.filter_map(|it| it["checkpoint_bytes"].as_u64()).sum();
    let (checkpoint_s, checkpoint_memory) = join(&servers, "512GiB");
    let result = json!({
        "messages": count,
        "message_bytes": MESSAGE_BYTES,
        "topics": TOPICS,
        "log_bytes": log_bytes,
        "join_by_log": { "ready_s": log_s, "resident_bytes": log_memory },
        "checkpoint_bytes": checkpoint_bytes,
        "join_by_checkpoints": { "ready_s": checkpoint_s, "resident_bytes": checkpoint_memory },
    });
    println!("{result:#}");
}
