//! `crore-bench run` in short, with the server that was built beside it (`cargo test --workspace`, or `cargo build` before). Each scenario checks its promises by itself; this runs it and looks whether it met
//! the events that it is there for.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Seconds of faults; the whole takes some ten more.
const CHAOS_S: &str = "10";

/// Runs a scenario with these flags, and returns its result.
fn run(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_crore-bench"))
        .arg("run")
        .args(args)
        .args(["--json", "-"])
        // Under `faketime` CLOCK_MONOTONIC would be ahead, too, which the kernel does not know.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let json = text.lines().find(|line| line.starts_with('{'));
    let all: Value = json
        .and_then(|line| serde_json::from_str(line).ok())
        .unwrap_or_else(|| panic!("no result:\n{text}{errors}"));
    // A machine that has no time for the swarm makes the server send again: that says nothing of the server.
    let faults = all["result"]["faults"].as_object();
    let is_storm = faults.is_some_and(|all| all.keys().eq(["segments that the server sent again"]));
    assert!(output.status.success() || is_storm, "{text}{errors}");
    all["result"].clone()
}

fn count(result: &Value, place: &str) -> u64 {
    let number = result.pointer(place).and_then(Value::as_u64);
    number.unwrap_or_else(|| panic!("{place} is not there"))
}

#[test]
fn nothing_is_lost_in_silence_when_the_network_fails() {
    let result = run(&["chaos", "--connections", "200", "--seconds", CHAOS_S]);
    for (place, least) in [
        ("/network/cuts", 50),
        ("/network/cuts_in_mid_bytes", 20),
        ("/network/stalls", 30),
        ("/network/tears", 10),
        ("/clients/resumed", 40),
        ("/messages", 5_000),
        ("/told_gaps", 5),
        ("/publishers/retries", 1),
    ] {
        let met = count(&result, place);
        assert!(met >= least, "{place}: {met}, at least {least}");
    }
}

#[test]
fn answered_publishes_are_there_after_kills() {
    let result = run(&["crash", "--kills", "3", "--sessions", "24"]);
    for (place, least) in [
        ("/kills/crashes", 3),
        ("/kills/kills_at_start", 1),
        ("/kills/planned_restarts", 1),
        ("/kills/answered", 300),
        ("/kills/unanswered", 5),
        ("/kills/retried", 1),
        ("/kills/changes", 20),
        ("/kills/seen", 1_000),
        ("/kills/resumed", 50),
        ("/kills/sessions/resumed", 24),
        ("/kills/sessions/received", 1_000),
        ("/kills/sessions/wills", 5),
    ] {
        let met = count(&result, place);
        assert!(met >= least, "{place}: {met}, at least {least}");
    }
}

#[test]
fn every_client_of_the_grid_publishes_itself_and_is_heard_by_its_neighbours() {
    // 500 clients in rows of 23 have 1,910 neighbours; 955 messages a second are each client's word every two seconds.
    let result = run(&[
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
    assert!(requests >= 1_000, "each spoke twice: {requests}");
    let accepted = count(&result, "/published/accepted");
    assert!(accepted >= 2 * 1_910, "{accepted} messages");
    assert_eq!(accepted, count(&result, "/received/messages"));
    for place in [
        "/published/refused",
        "/published/unanswered",
        "/received/lost",
        "/received/doubled",
        "/received/misdelivered",
        "/received/unmeasured",
    ] {
        assert_eq!(count(&result, place), 0, "{place}");
    }
    assert_eq!(count(&result, "/received/connections/live"), 500);
}

#[test]
fn servers_that_are_measured_side_by_side_have_windows_of_their_own_and_lose_nothing() {
    let result = run(&[
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
    for who in ["floor", "crore"] {
        let runs = result["rows"]["rate"]["runs"][who].as_array().unwrap();
        assert_eq!(runs.len(), 5, "{who}: windows of a round");
        for run in runs {
            assert_eq!(run["clean"], true, "{who}: {run}");
            let per_s = run["deliveries_per_s"].as_f64().unwrap();
            assert!(per_s > 0.0, "{who}: {run}");
        }
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "a test that tests nothing says so")]
fn a_swarm_is_served_while_clients_come_and_go_and_no_message_is_lost() {
    // Namespaces and devices are root's.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !is_root || !Path::new("/dev/net/tun").exists() {
        eprintln!("not run: a swarm needs root and /dev/net/tun");
        return;
    }
    let flags = ["--connections", "3000", "--duration", "5", "--rate", "2000"];
    let result = run(&[&["million"], &flags[..]].concat());
    assert_eq!(result["faults"], serde_json::json!({}));
    let count = |place: &str| count(&result, place);
    assert!(
        count("/received/messages") + count("/received/missed_away")
            == count("/published/accepted")
    );
    // One in a thousand each second in its window, and a tenth of all at once.
    assert!(count("/windows/churn/connections/dropped") >= 1);
    // A client that the churn dropped last may be counted in this window.
    assert!(count("/windows/tsunami/connections/dropped") >= 300);
    assert_eq!(
        count("/received/connections/opened") - count("/received/connections/dropped"),
        3000
    );
}
