//! `crore bench run chaos` in short: two hundred clients over a network that cuts, stalls and tears. Everything that was
//! promised is checked by the scenario itself; this runs it and looks whether it met what it is there for.

use std::process::Command;

use serde_json::Value;

/// Seconds of faults; the whole takes some ten more.
const SECONDS: &str = "10";

#[test]
fn nothing_is_lost_in_silence_when_the_network_fails() {
    let output = Command::new(env!("CARGO_BIN_EXE_crore"))
        .args(["bench", "run", "chaos", "--connections", "200"])
        .args(["--seconds", SECONDS, "--json", "-"])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let json = text.lines().find(|line| line.starts_with('{'));
    let all: Value = json
        .and_then(|line| serde_json::from_str(line).ok())
        .unwrap_or_else(|| panic!("no result:\n{text}{errors}"));
    let result = &all["result"];
    assert!(output.status.success(), "{text}{errors}");
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
        let met = result.pointer(place).and_then(Value::as_u64);
        assert!(met >= Some(least), "{place}: {met:?}, at least {least}");
    }
}
