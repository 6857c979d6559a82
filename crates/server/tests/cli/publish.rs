//! `crore pub`: what it sends, and what it prints of the answer.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::scripted::Scripted;
use crate::support::program::finished;
use crate::{crore, text};

#[test]
fn pub_sends_one_message_and_prints_the_info() {
    let server = Scripted::start(&[|peer| {
        let request = peer.request();
        assert_eq!(request.line, "POST /pub/a/b%20c HTTP/1.1");
        assert_eq!(request.header("content-type"), Some("text/html"));
        assert_eq!(request.header("x-eventsource-event"), Some("news"));
        assert_eq!(request.header("crore-key"), Some("ACME"));
        assert_eq!(request.header("crore-ttl"), Some("60"));
        assert_eq!(request.header("accept"), Some("application/json"));
        assert_eq!(request.body, "hello");
        peer.say("HTTP/1.1 100 Continue\r\n\r\n");
        peer.respond("201 Created", "{\"messages\":1}\r\n");
    }]);
    let output = server.run(&[
        "pub",
        "a/b c",
        "hello",
        "--json",
        "--content-type",
        "text/html",
        "--event",
        "news",
        "--key",
        "ACME",
        "--ttl",
        "60",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "{\"messages\":1}\n");
}

#[test]
fn pub_exits_with_1_and_the_servers_reason() {
    let server = Scripted::start(&[|peer| {
        peer.request();
        peer.respond(
            "413 Content Too Large",
            "the message has more than\u{1b}[1m 9 bytes\n",
        );
    }]);
    let output = server.run(&["pub", "a", "hello"]);
    assert_eq!(output.status.code(), Some(1));
    let reason = "crore: the server refused the message: 413 Content Too Large: the message has more than [1m 9 bytes\n";
    assert_eq!(text(&output.stderr), reason);
}

#[test]
fn pub_takes_stdin_whole_or_by_lines() {
    let whole = Scripted::start(&[|peer| {
        let request = peer.request();
        assert_eq!(request.body, "one\ntwo\n");
        let more = ["crore-key", "crore-ttl", "x-eventsource-event"];
        assert!(more.iter().all(|name| request.header(name).is_none()));
        peer.respond("202 Accepted", "");
    }]);
    assert!(pipe(whole, &["pub", "a"], "one\ntwo\n").status.success());

    let lines = Scripted::start(&[
        |peer| {
            assert_eq!(peer.request().body, "one");
            peer.respond("202 Accepted", "");
            assert_eq!(peer.request().body, "");
            // A server that says so is connected to anew.
            peer.say("HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        },
        |peer| {
            assert_eq!(peer.request().body, "three");
            peer.respond("202 Accepted", "");
            assert!(peer.is_closed());
        },
    ]);
    assert!(
        pipe(lines, &["pub", "a", "--lines"], "one\n\r\nthree")
            .status
            .success()
    );
}

fn pipe(server: Scripted, args: &[&str], input: &str) -> Output {
    let mut child = crore(args)
        .args(["--server", &server.url])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = finished(child);
    server.end();
    output
}
