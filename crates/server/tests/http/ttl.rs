//! Tests messages with a time to live. No message is read from the log after its time, and an expired message does not count as missed.

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::stream::Stream;
use crate::support::ws::{FIN, TEXT, Ws};

/// The server counts whole seconds, so a message may expire up to one second early.
const TTL_S: u64 = 3;

fn publish_for(server: &Server, topic: &str, ttl_s: u64, body: &str) {
    let target = format!("/pub/{topic}");
    let ttl_s = ttl_s.to_string();
    let response = once(server, "POST", &target, &[("Crore-TTL", &ttl_s)], body);
    assert!([201, 202].contains(&response.status), "{response:?}");
}

#[test]
fn expired_message_is_not_sent_and_does_not_count_as_missed() {
    let server = Server::start();
    publish(&server, "news", "zero");
    let position = once(&server, "GET", "/sub/news", &[], "").position();
    publish_for(&server, "news", TTL_S, "short");
    publish_for(&server, "news", 1000, "long");
    publish_for(&server, "news", TTL_S, "short too");
    let batch = format!(
        "{{\"topic\":\"news\",\"data\":\"in a batch\",\"ttl_s\":{TTL_S}}}\n\
         {{\"topic\":\"gone\",\"data\":\"alone\",\"ttl_s\":{TTL_S}}}\n"
    );
    let ndjson = [("Content-Type", "application/x-ndjson")];
    let answer = once(&server, "POST", "/pub", &ndjson, &batch);
    assert_eq!(answer.json()["published"], 2);
    let messages = ["zero", "short", "long", "short too", "in a batch"];
    let mut early_reader = Ws::open(&server, "/sub/news?since=oldest", &[]);
    assert_eq!(early_reader.texts(5), messages, "until then they are kept");
    server.await_kept("news", 2);
    server.await_kept("gone", 0);
    let expected = ["zero", "long"];
    let mut ws = Ws::open(&server, "/sub/news?since=oldest", &[]);
    assert_eq!(ws.texts(2), expected);
    let mut newest_two = Ws::open(&server, "/sub/news?since=-2", &[]);
    assert_eq!(
        newest_two.texts(2),
        expected,
        "the newest two of those that are left"
    );
    let mut stream = Stream::open(&server, "/sub/news", &[("Last-Event-ID", &position)]);
    assert_eq!(stream.event().expect("an event").kind, "message");
    let tag = [("If-None-Match", &position[..])];
    let polled = once(&server, "GET", "/sub/news", &tag, "");
    assert_eq!((polled.text(), polled.header("crore-gap")), ("long", None));
    server.await_subscribers("news", 4);
    publish(&server, "news", "next");
    for ws in [&mut early_reader, &mut ws, &mut newest_two] {
        assert_eq!(ws.texts(1), ["next"]);
    }
    assert_eq!(stream.data(1), ["next"]);
}

#[test]
fn expiry_of_all_messages_is_no_gap() {
    let server = Server::start();
    publish_for(&server, "news", TTL_S, "one");
    let position = once(&server, "GET", "/sub/news", &[], "").position();
    publish_for(&server, "news", TTL_S, "two");
    server.await_kept("news", 0);
    let target = format!("/sub/news?since={position}");
    let mut meta = Ws::meta(&server, &target);
    let mut stream = Stream::open(&server, &target, &[]);
    server.await_subscribers("news", 2);
    publish(&server, "news", "three");
    let (lines, data) = meta.meta_message();
    assert_eq!(data, b"three", "{lines:?}");
    let event = stream.event().expect("an event");
    assert_eq!((&event.kind[..], &event.data[..]), ("message", "three"));
    let message = Ws::meta(&server, &target).meta_message();
    assert_eq!(message.1, b"three", "{:?}", message.0);
}

#[test]
fn shorter_time_of_rule_and_message_counts() {
    let server = Server::with(&format!("[[rule]]\nmatch = \"#\"\nttl_s = {TTL_S}\n"));
    publish_for(&server, "news", 1000, "long");
    publish(&server, "news", "none");
    let mut ws = Ws::open(&server, "/pubsub/news?since=oldest", &[]);
    assert_eq!(ws.texts(2), ["long", "none"]);
    ws.send(FIN | TEXT, "by a frame");
    assert_eq!(ws.texts(1), ["by a frame"]);
    server.await_kept("news", 0);
    let mut late_reader = Ws::open(&server, "/sub/news?since=oldest", &[]);
    publish(&server, "news", "new");
    assert_eq!(late_reader.texts(1), ["new"]);
}

#[test]
fn message_with_a_time_of_zero_reaches_only_present_subscribers() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nkeep = \"latest\"\n");
    publish(&server, "news", "value");
    let mut ws = Ws::open(&server, "/sub/news", &[]);
    assert_eq!(ws.texts(1), ["value"]);
    publish_for(&server, "news", 0, "removed");
    assert_eq!(ws.texts(1), ["removed"]);
    // The message replaced the value before it, so the late subscriber gets neither.
    let mut late_reader = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 2);
    publish(&server, "news", "again");
    assert_eq!(late_reader.texts(1), ["again"]);
}

#[test]
fn invalid_time_to_live_is_refused_with_a_reason() {
    let server = Server::start();
    for ttl in [
        "",
        "-1",
        "1.5",
        "1e3",
        "soon",
        "1 2",
        "99999999999999999999",
    ] {
        let refused = once(&server, "POST", "/pub/news", &[("Crore-TTL", ttl)], "x");
        assert_eq!(refused.status, 400, "{ttl:?}: {refused:?}");
        assert!(refused.text().contains("Crore-TTL"), "{refused:?}");
    }
    publish_for(&server, "news", 99_999_999_999, "for ever");
    assert_eq!(
        once(&server, "GET", "/sub/news", &[], "").text(),
        "for ever"
    );
}

#[test]
fn slow_reader_gets_no_message_that_expired_meanwhile() {
    let server = Server::with(
        "[limits]\noutbox_bytes = 200000\n\
         [[rule]]\nmatch = \"#\"\nlog_messages = 1000\nlog_bytes = \"64 MiB\"\n",
    );
    let mut ws = Ws::meta(&server, "/sub/news");
    server.await_subscribers("news", 1);
    let mut publisher = Conn::open(&server);
    let body = "x".repeat(100_000);
    let ttl_s = TTL_S.to_string();
    for number in 0..200 {
        let body = format!("{number:06}{body}");
        let response = publisher.request("POST", "/pub/news", &[("Crore-TTL", &ttl_s)], body);
        assert_eq!(response.status, 201);
    }
    publish(&server, "news", "the end");
    server.await_kept("news", 1);
    let mut numbers: Vec<usize> = Vec::new();
    loop {
        let (lines, data) = ws.meta_message();
        assert!(lines.iter().all(|(name, _)| name != "gap"), "{lines:?}");
        if data == b"the end" {
            break;
        }
        let digits = std::str::from_utf8(&data[..6]).expect("digits");
        numbers.push(digits.parse().expect("a number"));
    }
    let first: Vec<_> = (0..numbers.len()).collect();
    assert_eq!(numbers, first, "what two kernels and the outbox held");
    assert!(numbers.len() < 190, "{numbers:?}");
}
