//! Runs the benchmark `crore-bench run cluster` with few subscribers, and each fault once.

use std::process::Command;

use serde_json::Value;

use crate::servers;
use crate::support::bench_program;
use crate::support::program::REAL_MONOTONIC;

#[test]
fn each_answered_message_is_delivered_once_and_in_order_through_each_fault() {
    let Some(nats) = servers::program() else {
        return;
    };
    let mut command = Command::new(bench_program());
    command
        .args(["run", "cluster", "--subscribers", "200"])
        .args(["--rounds", "1", "--json", "-", "--nats-server"])
        .arg(nats)
        .env(REAL_MONOTONIC, "1");
    let output = command.output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let json = text.lines().find(|line| line.starts_with('{'));
    let report: Value = serde_json::from_str(json.expect("a result")).expect("JSON");
    let result = &report["result"];
    assert_eq!(result["clean"], true);
    let mut faults = vec!["node_killed", "nats_killed", "all_killed"];
    if result["no_cuts_because"].is_null() {
        faults.push("node_cut_off");
    }
    for fault in faults {
        assert_eq!(result["faults"][fault]["times"], 1, "{fault}: {result:#}");
    }
    let count = |pointer: &str| result.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    for (pointer, minimum) in [
        ("/publishers/retries", 1),
        ("/clients/resumed", 200),
        ("/messages", 1_000),
        ("/read_again_from_the_beginning", 500),
    ] {
        let actual = count(pointer);
        assert!(
            actual >= minimum,
            "{pointer}: {actual}, at least {minimum}: {result:#}"
        );
    }
}
