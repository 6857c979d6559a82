//! Tests `crore sub` against the real server: the notices that it prints besides messages, and messages that are published between its
//! requests.

use crore_wire::sse::GAP_EVENT;

use crate::support::Server;
use crate::support::http::publish;
use crate::support::program::await_output;
use std::process::{Child, Command, Output, Stdio};

fn sub(server: &Server, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
    command.arg("sub").args(args);
    command.args(["--server", &server.url("")]);
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let result = Command::new("kill").args(["-s", name, &id]).status();
    assert!(result.expect("kill").success());
}

fn stdout_and_stderr(output: &Output) -> (&str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).expect("text");
    (text(&output.stdout), text(&output.stderr))
}

/// A signal suspends the program while its poll times out and a message is published. Then the program continues from the position of that
/// poll.
#[test]
fn poll_misses_nothing_between_a_timeout_and_its_next_request() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\npoll_timeout_s = 1\n");
    let child = sub(&server, &["news", "--protocol", "poll", "--count", "2"]);
    server.await_subscribers("news", 1);
    signal(&child, "STOP");
    server.await_subscribers("news", 0);
    publish(&server, "news", "between");
    publish(&server, "news", "after");
    signal(&child, "CONT");
    let output = await_output(child);
    assert_eq!(stdout_and_stderr(&output), ("between\nafter\n", ""));
}

#[test]
fn filters_are_subscribed_to_over_every_protocol() {
    let server = Server::start();
    for (topic, text) in [
        ("scores/a", "one"),
        ("other", "none"),
        ("scores/b/c", "two"),
    ] {
        publish(&server, topic, text);
    }
    for protocol in ["sse", "ws", "poll"] {
        let filters: [&[&str]; 2] = [&["scores/#"], &["scores/+", "scores/b/c"]];
        for filters in filters {
            let options = ["--protocol", protocol, "--since", "oldest", "--count", "2"];
            let child = sub(&server, &[filters, &options].concat());
            let output = await_output(child);
            let (printed, complaints) = stdout_and_stderr(&output);
            // The topics are at two homes (the parts of shards that keep topics), so either message may come first.
            let mut lines: Vec<&str> = printed.lines().collect();
            lines.sort_unstable();
            assert_eq!(
                (lines, complaints),
                (vec!["scores/a one", "scores/b/c two"], ""),
                "{protocol} {filters:?}"
            );
        }
    }
}

/// Each message that is still kept arrives.
#[test]
fn gap_is_reported_over_every_protocol() {
    let server = Server::start();
    publish(&server, "news", "one");
    for protocol in ["sse", "ws", "poll"] {
        let child = sub(
            &server,
            &[
                "news",
                "--protocol",
                protocol,
                "--since",
                "1deadbeef-1",
                "--count",
                "1",
            ],
        );
        let output = await_output(child);
        let (messages, notices) = stdout_and_stderr(&output);
        assert_eq!(messages, "one\n", "{protocol}: {notices}");
        let gap = "messages before the next one are lost: the server has begun anew since then";
        assert_eq!(notices.matches(gap).count(), 1, "{protocol}: {notices}");
    }
}

/// No kept message follows the gap (the missed messages), so the answer at the timeout of the poll reports it.
#[test]
fn gap_without_later_messages_is_reported_by_poll() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\npoll_timeout_s = 1\nlog_messages = 0\n");
    let args = ["news", "--protocol", "poll", "--since", "1deadbeef-1"];
    let child = sub(&server, &[&args[..], &["--count", "1"]].concat());
    server.await_subscribers("news", 1);
    signal(&child, "STOP");
    server.await_subscribers("news", 0);
    signal(&child, "CONT");
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    let output = await_output(child);
    let (messages, notices) = stdout_and_stderr(&output);
    assert_eq!(messages, "one\n", "{notices}");
    assert_eq!(
        notices.matches(&format!("({GAP_EVENT})")).count(),
        1,
        "{notices}"
    );
}

#[test]
fn history_prints_the_kept_messages_and_exits() {
    let server = Server::start();
    for n in 0..300 {
        publish(&server, "long/a%20b", format!("{n}"));
    }
    let history = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
        command
            .arg("history")
            .args(args)
            .args(["--server", &server.url("")]);
        command.env_remove("RUST_LOG").stdin(Stdio::null());
        command.output().expect("it runs")
    };
    let lines = |range: std::ops::Range<u32>| range.map(|n| format!("{n}\n")).collect::<String>();
    // The history is longer than one page.
    let whole_history = history(&["long/a b"]);
    assert_eq!(stdout_and_stderr(&whole_history), (&lines(0..300)[..], ""));
    let output = history(&["long/a b", "--since", "-200", "--limit", "150"]);
    assert_eq!(stdout_and_stderr(&output), (&lines(100..250)[..], ""));
    // The newest messages, also over two pages.
    let newest = history(&["long/a b", "--limit", "200"]);
    assert_eq!(stdout_and_stderr(&newest), (&lines(100..300)[..], ""));
    let oldest = history(&["long/a b", "--since", "oldest", "-n", "2"]);
    assert_eq!(stdout_and_stderr(&oldest), (&lines(0..2)[..], ""));
    let output = history(&["long/a b", "--limit", "1", "--json"]);
    let message: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&message["data"], &message["topic"]),
        (&"299".into(), &"long/a b".into())
    );
    assert!(
        message["id"].is_string() && message["time"].is_number(),
        "{message}"
    );
    let output = history(&["other"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        stdout_and_stderr(&output),
        ("", "crore: no messages of `other` are kept\n")
    );
    let output = history(&["a", "--since", "not-1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout_and_stderr(&output).1.contains("since="),
        "{:?}",
        stdout_and_stderr(&output)
    );
}
