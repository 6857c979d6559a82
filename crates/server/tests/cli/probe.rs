//! `crore bench probe` against a server that runs.

use std::process::Output;

use serde_json::Value;

use crate::support::Server;
use crate::{run, text};

fn probe(server: &Server, scheme: &str, flags: &[&str]) -> (Output, Value) {
    let url = format!("{scheme}://{}/news/1", server.address());
    let all = [
        &[
            "bench", "probe", &url, "--rate", "100", "--quiet", "--json", "-",
        ],
        flags,
    ]
    .concat();
    let output = run(&all);
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
        let (output, all) = probe(&server, scheme, &[flags, &["--messages", "100"]].concat());
        assert_eq!(output.status.code(), Some(0), "{scheme}: {output:?}");
        let result = &all["result"];
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
    let (output, all) = probe(&server, "ws", &["--p99-max", "0.000001"]);
    assert_eq!(
        (output.status.code(), &all["result"]["clean"]),
        (Some(1), &false.into())
    );
    let address = server.address();
    server.kill();
    let output = run(&[
        "bench",
        "probe",
        &format!("ws://{address}/a"),
        "--messages",
        "1",
    ]);
    assert_ne!(output.status.code(), Some(0));
    assert!(
        text(&output.stderr).contains(&address.to_string()),
        "{output:?}"
    );
}
