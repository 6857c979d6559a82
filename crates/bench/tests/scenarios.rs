//! Short runs of `crore-bench run`, with the server in the same directory (`cargo test --workspace` builds it, or `cargo build` before). Each
//! scenario itself checks the server's promises. These tests check that the scenario also caused the events that it is for.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Duration of the faults in seconds. The whole run takes some ten seconds more.
const CHAOS_S: &str = "10";

/// Runs a scenario with these flags, and returns its result.
fn run_scenario(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_crore-bench"))
        .arg("run")
        .args(args)
        .args(["--json", "-"])
        // Under `faketime` CLOCK_MONOTONIC would be ahead of the kernel's clock, too.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let json = text.lines().find(|line| line.starts_with('{'));
    let report: Value = json
        .and_then(|line| serde_json::from_str(line).ok())
        .unwrap_or_else(|| panic!("no result:\n{text}{errors}"));
    // If the machine has too little processor time for the swarm, the kernel retransmits segments. That is no fault of the server.
    let faults = report["result"]["faults"].as_object();
    let has_only_retransmissions =
        faults.is_some_and(|faults| faults.keys().eq(["segments that the server sent again"]));
    assert!(
        output.status.success() || has_only_retransmissions,
        "{text}{errors}"
    );
    report["result"].clone()
}

fn count(result: &Value, pointer: &str) -> u64 {
    let number = result.pointer(pointer).and_then(Value::as_u64);
    number.unwrap_or_else(|| panic!("{pointer} is not there"))
}

#[test]
fn no_message_is_lost_silently_when_the_network_fails() {
    let result = run_scenario(&["chaos", "--connections", "200", "--seconds", CHAOS_S]);
    for (pointer, min) in [
        ("/network/cuts", 50),
        ("/network/cuts_in_mid_bytes", 20),
        ("/network/stalls", 30),
        ("/network/tears", 10),
        ("/clients/resumed", 40),
        ("/messages", 5_000),
        ("/told_gaps", 5),
        ("/publishers/retries", 1),
    ] {
        let value = count(&result, pointer);
        assert!(value >= min, "{pointer}: {value}, at least {min}");
    }
}

#[test]
fn answered_publishes_survive_kills() {
    let result = run_scenario(&["crash", "--kills", "3", "--sessions", "24"]);
    for (pointer, min) in [
        ("/kills/crashes", 3),
        ("/kills/kills_at_start", 1),
        ("/kills/planned_restarts", 1),
        ("/kills/answered", 300),
        ("/kills/unanswered", 5),
        ("/kills/retried", 1),
        ("/kills/changes", 3),
        ("/kills/seen", 1_000),
        ("/kills/resumed", 50),
        ("/kills/sessions/resumed", 24),
        ("/kills/sessions/received", 1_000),
        ("/kills/sessions/wills", 5),
    ] {
        let value = count(&result, pointer);
        assert!(value >= min, "{pointer}: {value}, at least {min}");
    }
}

#[test]
fn neighbours_in_the_grid_receive_the_messages_of_each_client() {
    // 500 clients in rows of 23 have 1,910 neighbours. With 955 messages a second each client publishes every two seconds.
    let result = run_scenario(&[
        "hold",
        "--preset",
        "comet-million",
        "--connections",
        "500",
        "--rate",
        "955",
        "--duration",
        "5",
    ]);
    assert_eq!(result["talk_every_s"], 2.0);
    let requests = count(&result, "/published/requests");
    assert!(requests >= 1_000, "each client published twice: {requests}");
    let accepted = count(&result, "/published/accepted");
    assert!(accepted >= 2 * 1_910, "{accepted} messages");
    assert_eq!(accepted, count(&result, "/received/messages"));
    for pointer in [
        "/published/refused",
        "/published/unanswered",
        "/received/lost",
        "/received/doubled",
        "/received/misdelivered",
        "/received/unmeasured",
    ] {
        assert_eq!(count(&result, pointer), 0, "{pointer}");
    }
    assert_eq!(count(&result, "/received/connections/live"), 500);
}

#[test]
fn servers_measured_side_by_side_have_their_own_windows_and_lose_no_message() {
    let result = run_scenario(&[
        "pair",
        "--rows",
        "rate",
        "--rounds",
        "1",
        "--duration",
        "0.3",
        "--connections",
        "100",
        "--rate",
        "1000",
    ]);
    for server in ["floor", "crore"] {
        let runs = result["rows"]["rate"]["runs"][server].as_array().unwrap();
        assert_eq!(runs.len(), 5, "{server}: windows of a round");
        for run in runs {
            assert_eq!(run["clean"], true, "{server}: {run}");
            let per_s = run["deliveries_per_s"].as_f64().unwrap();
            assert!(per_s > 0.0, "{server}: {run}");
        }
    }
}

#[test]
fn watchers_and_an_endpoint_are_told_of_members() {
    let rows = ["--rows", "join,webhooks", "--connections", "50"];
    let load = ["--rate", "500", "--duration", "2"];
    let result = run_scenario(&[&["presence"], &rows[..], &load].concat());
    assert_eq!(count(&result, "/rows/join/members"), 50);
    for endpoint in ["fast", "slow"] {
        let told = format!("/rows/webhooks/{endpoint}/told/joins_and_leaves");
        assert!(count(&result, &told) > 0, "{endpoint}: {result}");
    }
}

/// Only root may make namespaces and devices.
#[allow(clippy::print_stderr, reason = "a test that did not run says so")]
fn may_run_a_swarm() -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let may = is_root && Path::new("/dev/net/tun").exists();
    if !may {
        eprintln!("not run: a swarm needs root and /dev/net/tun");
    }
    may
}

#[test]
fn kernels_tcp_and_ours_are_compared_over_the_same_pair_of_interfaces() {
    if !may_run_a_swarm() {
        return;
    }
    let flags = ["--rounds", "1", "--duration", "1", "--rate", "500"];
    let size = ["--connections", "300"];
    let result = run_scenario(&[&["pair", "--transport", "xdp"], &flags[..], &size].concat());
    for transport in ["veth", "xdp"] {
        let run = &result["runs"][transport][0];
        assert_eq!(run["clean"], true, "{transport}: {run}");
        for row in ["unicast", "set-up"] {
            let ratio = result["rows"][row]["ratio_of_server_with_kernel"].as_f64();
            assert!(ratio.unwrap() > 0.0, "{row}: {result}");
        }
    }
}

#[test]
fn swarm_loses_no_message_while_clients_disconnect_and_reconnect() {
    if !may_run_a_swarm() {
        return;
    }
    for transport in ["tun", "xdp"] {
        swarm_loses_no_message_over(transport);
    }
}

fn swarm_loses_no_message_over(transport: &str) {
    let flags = ["--connections", "3000", "--duration", "5", "--rate", "2000"];
    let transport_flags = ["--transport", transport];
    let result = run_scenario(&[&["million"], &flags[..], &transport_flags].concat());
    assert_eq!(result["transport"], transport);
    assert_eq!(result["faults"], serde_json::json!({}));
    let count = |pointer: &str| count(&result, pointer);
    assert!(
        count("/received/messages") + count("/received/missed_away")
            == count("/published/accepted")
    );
    // In the window `churn` one client in a thousand drops each second; in `tsunami` a tenth of all clients drop at once.
    assert!(count("/windows/churn/connections/dropped") >= 1);
    // A client that was dropped at the end of `churn` may be counted in `tsunami`.
    assert!(count("/windows/tsunami/connections/dropped") >= 300);
    assert_eq!(
        count("/received/connections/opened") - count("/received/connections/dropped"),
        3000
    );
}
