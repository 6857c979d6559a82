//! Tests the documents of the admin port (API description, metrics) with third-party validators.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::client::tools;
use crate::support::Server;
use crate::support::port::{ask, stream};
use crate::support::program::await_output;

/// Runs a validator on a text. It must report nothing, not even a warning.
fn accepts(command: &mut Command, text: &str) {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    let text = text.to_string();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = await_output(child);
    writer
        .join()
        .expect("it does not panic")
        .expect("it is read");
    let validator_output = [&output.stdout[..], &output.stderr].concat();
    let validator_output = String::from_utf8_lossy(&validator_output);
    assert!(output.status.success(), "{validator_output}");
    assert!(
        validator_output.is_empty() || validator_output.contains("OK"),
        "{validator_output}"
    );
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_description_of_the_admin_api_is_valid_openapi() {
    let server = Server::with_admin("");
    let described = ask(server.admin(), "GET /api/v1/openapi.json", None).body;
    let python = tools().join("venv/bin/python");
    let validator = ["-m", "openapi_spec_validator", "--schema", "3.1", "-"];
    accepts(Command::new(python).args(validator), &described);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn promtool_accepts_the_metrics() {
    let server = Server::with_admin("");
    // Some metrics have labels that appear only with traffic.
    let _reader = stream(server.address(), "/sub/news");
    assert_eq!(ask(server.address(), "GET /nowhere", None).status, 404);
    let metrics = ask(server.admin(), "GET /metrics", None).body;
    accepts(
        Command::new("promtool").args(["check", "metrics"]),
        &metrics,
    );
}
