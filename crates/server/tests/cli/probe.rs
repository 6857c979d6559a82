//! Tests `crore-bench probe` against a running server.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::program::output;
use crate::support::{Server, bench_program};
use crate::text;

fn run(args: &[&str]) -> Output {
    output(Command::new(bench_program()).arg("probe").args(args))
}

fn probe(server: &Server, scheme: &str, flags: &[&str]) -> (Output, Value) {
    let url = format!("{scheme}://{}/news/1", server.address());
    let lines = [&[&url, "--rate", "100", "--quiet", "--json", "-"], flags].concat();
    let output = run(&lines);
    let result = serde_json::from_str(text(&output.stdout)).unwrap_or(Value::Null);
    (output, result)
}

#[test]
fn every_protocol_tells_the_latency_of_each_message() {
    let server = Server::with("");
    for (scheme, flags) in [
        ("ws", &[][..]),
        ("http", &[]),
        ("http", &["--protocol", "poll"]),
        ("mqtt", &[]),
    ] {
        let (output, lines) = probe(&server, scheme, &[flags, &["--messages", "100"]].concat());
        assert_eq!(output.status.code(), Some(0), "{scheme}: {output:?}");
        let result = &lines["result"];
        assert!(
            result["messages"].as_u64() >= Some(100),
            "{scheme}: {result}"
        );
        assert_eq!(
            (&result["missing"], &result["doubled"]),
            (&0.into(), &0.into())
        );
        assert!(result["latency_ms"]["p99"].as_f64() > Some(0.0));
    }
}

#[test]
fn a_probe_fails_when_messages_take_too_long_or_nobody_answers() {
    let server = Server::with("");
    let (output, lines) = probe(&server, "ws", &["--p99-max", "0.000001"]);
    assert_eq!(
        (output.status.code(), &lines["result"]["clean"]),
        (Some(1), &false.into())
    );
    let address = server.address();
    server.kill();
    let output = run(&[&format!("ws://{address}/a"), "--messages", "1"]);
    assert_ne!(output.status.code(), Some(0));
    assert!(
        text(&output.stderr).contains(&address.to_string()),
        "{output:?}"
    );
}

#[test]
fn a_password_in_the_address_is_not_shown() {
    for url in [
        "ftp://ann:secret@127.0.0.1:1/a",
        "http://ann:secret@127.0.0.1:1/a",
    ] {
        let output = run(&[url]);
        let probe_output = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(
            !output.status.success() && !probe_output.contains("secret"),
            "{probe_output}"
        );
    }
}
