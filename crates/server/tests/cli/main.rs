//! Tests the command line through the real binary: help, exit codes, and `crore pub` and `crore sub` against a scripted server. The
//! scripted server sends exactly what a test wants, and can tear connections.

#[path = "../support/mod.rs"]
mod support;

mod arguments;
mod disk_log;
mod examples;
mod log;
mod probe;
mod profiles;
mod publish;
mod scripted;
mod servers;
mod snapshots;
mod subscribe;
mod values;

use std::process::{Command, Output, Stdio};

use crate::support::program::{REAL_MONOTONIC, output};

fn crore(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
    command
        .args(args)
        .env_remove("RUST_LOG")
        .env(REAL_MONOTONIC, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Output {
    output(&mut crore(args))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = run(&["--version"]);
    assert_eq!(
        text(&version.stdout),
        format!("crore {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &[][..],
        &["fly"],
        &["serve", "--what"],
        &["serve", "--shards", "many"],
        &["serve", "--listen", "localhost"],
        &["serve", "--message-bytes", "1 XB"],
        &["serve", "--log", "crore=loud"],
        &["serve", "--log", "verbose"],
        &["serve", "--log", "9"],
        &["serve", "--log", "[span]"],
        &["serve", "--log-format", "xml"],
        &["sub", "a", "--log", ""],
        &["pub"],
        &["pub", "a", "b", "--lines"],
        &["pub", "a", "b", "--event", "x\ny"],
        &["pub", "a", "b", "--key", "x\ny"],
        &["pub", "a", "b", "--idempotency-key", ""],
        &["pub", "a", "b", "--ttl", "-1"],
        &["pub", "a", "b", "--server", "ftp://127.0.0.1"],
        &["sub"],
        &["sub", "a", "--count", "0"],
        &["sub", "a", "--protocol", "pigeon"],
        &["log", "dump", "/tmp", "--topic", "a/#/b"],
        &["log", "verify"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{args:?}"
        );
    }
}

#[test]
fn each_form_of_the_log_filter_is_accepted_or_refused_with_a_reason() {
    for filter in [
        "debug",
        "WARN",
        "0",
        "5",
        "crore=debug",
        "info,rustls=4",
        "crore_net[turn]=trace",
        "off, crore=1",
    ] {
        let output = run(&["completions", "bash", "--log", filter]);
        assert!(
            output.status.success(),
            "{filter}: {}",
            text(&output.stderr)
        );
    }
    for filter in ["verbose", "rustls", "6", "[turn]", "crore=loud"] {
        let output = run(&["completions", "bash", "--log", filter]);
        let error_text = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{filter}");
        assert!(
            error_text.contains("or 0 to 5") && error_text.contains("TARGET=LEVEL"),
            "{filter}: {error_text}"
        );
    }
}

#[test]
fn an_unreachable_server_exits_with_1() {
    // Nobody listens on port 1, since the kernel does not choose it. The kernel may give a port that was bound and dropped to the server
    // of another test.
    let url = "http://127.0.0.1:1";
    for args in [
        &["pub", "a", "b"][..],
        &["sub", "a"],
        &["sub", "a", "--protocol", "ws"],
    ] {
        let output = output(crore(args).args(["--server", url]));
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let error = text(&output.stderr);
        assert!(
            error.starts_with("crore: ") && error.contains(url),
            "{args:?}: {error}"
        );
    }
}
