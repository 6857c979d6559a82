//! Tests message keys, and topics that keep only the newest message of each key. Each transport has the key. A new subscriber receives a
//! complete snapshot; a subscriber that resumes is told no gap for messages that newer ones have replaced; a slow one receives the
//! newest messages.

use crore_wire::sse::GAP_EVENT;

use crate::support::Server;
use crate::support::http::{Conn, Response, info, once};
use crate::support::stream::Stream;
use crate::support::ws::{Ws, line};

const LATEST_RULE: &str = "[[rule]]\nmatch = \"#\"\nkeep = \"latest\"\n";

fn publish(server: &Server, topic: &str, key: &str, body: impl AsRef<[u8]>) -> Response {
    let target = format!("/pub/{topic}");
    let headers = [("Crore-Key", key)];
    let headers = if key.is_empty() { &[][..] } else { &headers };
    let response = Conn::open(server).request("POST", &target, headers, body);
    assert!([201, 202].contains(&response.status), "{response:?}");
    response
}

/// Publishes six messages with three keys, one of them the empty key. Afterwards the topic keeps `a2`, `2` and `b2`, in this order.
fn publish_six(server: &Server, topic: &str) {
    for (key, text) in [
        ("b", "b1"),
        ("a", "a1"),
        ("", "1"),
        ("a", "a2"),
        ("", "2"),
        ("b", "b2"),
    ] {
        publish(server, topic, key, text);
    }
}

#[test]
fn message_has_its_key_over_every_transport_with_a_field_for_it() {
    let server = Server::start();
    let mut ws = Ws::meta(&server, "/sub/news");
    let mut envelopes = Stream::open(&server, "/sub/news?envelope=json", &[]);
    server.await_subscribers("news", 2);
    publish(&server, "news", "left / ä", "one");
    publish(&server, "news", "", "two");
    let mut conn = Conn::open(&server);
    let first = conn.get("/sub/news", &[]);
    assert_eq!(first.header("crore-key").as_deref(), Some("left / ä"));
    let tag = first.header("etag").expect("an ETag");
    let second = conn.get("/sub/news", &[("If-None-Match", &tag)]);
    assert_eq!((second.text(), second.header("crore-key")), ("two", None));
    let (lines, data) = ws.meta_message();
    assert_eq!((line(&lines, "key"), &data[..]), ("left / ä", &b"one"[..]));
    let (lines, data) = ws.meta_message();
    assert!(lines.iter().all(|(name, _)| name != "key") && data == b"two");
    let envelope = |text: String| serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    let keys = envelopes.data(2).into_iter().map(envelope);
    let keys: Vec<_> = keys.map(|json| json["key"].clone()).collect();
    assert_eq!(keys, ["left / ä".into(), serde_json::Value::Null]);
    let poll = once(&server, "GET", "/sub/news?envelope=json", &[], "");
    assert_eq!(poll.json()["key"], "left / ä");
}

#[test]
fn bad_keys_are_refused_with_a_reason() {
    let server = Server::start();
    let too_long = "k".repeat(256);
    for key in [&too_long[..], "a\tb\u{1}c"] {
        let refused = once(&server, "POST", "/pub/news", &[("Crore-Key", key)], "x");
        assert_eq!(refused.status, 400, "{key:?}: {refused:?}");
        let line = serde_json::json!({"topic": "news", "data": "x", "key": key}).to_string();
        let batch = once(
            &server,
            "POST",
            "/pub",
            &[("Content-Type", "application/x-ndjson")],
            &line,
        );
        assert_eq!(batch.json()["published"], 0, "{key:?}");
        let reason = batch.json()["failed"][0]["reason"].clone();
        assert!(
            reason.as_str().expect("a reason").contains("key"),
            "{reason}"
        );
    }
    let longest_key = "k".repeat(255);
    publish(&server, "news", &longest_key, "x");
    let response = once(&server, "GET", "/sub/news", &[], "");
    assert_eq!(response.header("crore-key"), Some(longest_key));
}

#[test]
fn new_subscriber_gets_the_newest_of_each_key_over_every_transport() {
    let server = Server::with(LATEST_RULE);
    publish_six(&server, "news");
    assert_eq!(info(&server, "news")["messages"], 3);
    let newest = ["a2", "2", "b2"];
    assert_eq!(Ws::open(&server, "/sub/news", &[]).texts(3), newest);
    let mut ws = Ws::meta(&server, "/sub/news");
    for (key, text) in [("a", "a2"), ("", "2"), ("b", "b2")] {
        let (lines, data) = ws.meta_message();
        assert_eq!(data, text.as_bytes());
        let key_line = lines.iter().find(|(name, _)| name == "key");
        assert_eq!(key_line.map_or("", |(_, value)| value), key);
    }
    assert_eq!(Stream::open(&server, "/sub/news", &[]).data(3), newest);
    let (mut conn, mut tag) = (Conn::open(&server), String::new());
    for text in newest {
        let headers = [("If-None-Match", tag.as_str())];
        let response = conn.get("/sub/news", if tag.is_empty() { &[] } else { &headers });
        assert_eq!((response.status, response.text()), (200, text));
        assert_eq!(response.header("crore-gap"), None);
        tag = response.header("etag").expect("an ETag");
    }
    conn.ask("GET", "/sub/news", &[("If-None-Match", &tag)], "");
    server.await_subscribers("news", 2);
    publish(&server, "news", "a", "a3");
    assert_eq!(conn.response().text(), "a3");
    drop(conn);
    server.await_subscribers("news", 1);
    let mut live_only = Ws::open(&server, "/sub/news?since=live", &[]);
    server.await_subscribers("news", 2);
    publish(&server, "news", "a", "a4");
    assert_eq!(
        live_only.texts(1),
        ["a4"],
        "`since=live` gives no earlier message"
    );
}

#[test]
fn resumed_subscriber_gets_the_changes_and_no_gap() {
    let server = Server::with(LATEST_RULE);
    publish(&server, "news", "a", "a1");
    let first = once(&server, "GET", "/sub/news", &[], "").position();
    publish_six(&server, "news");
    for text in ["c1", "c2", "c3"] {
        publish(&server, "news", "c", text);
    }
    let target = format!("/sub/news?since={first}");
    let changed = ["a2", "2", "b2", "c3"];
    assert_eq!(Ws::open(&server, &target, &[]).texts(4), changed);
    let mut ws = Ws::meta(&server, &target);
    let mut last_id = String::new();
    for text in changed {
        let (lines, data) = ws.meta_message();
        assert_eq!(data, text.as_bytes(), "{lines:?}");
        last_id = line(&lines, "id").to_string();
    }
    let mut stream = Stream::open(&server, "/sub/news", &[("Last-Event-ID", &first)]);
    for text in changed {
        let event = stream.event().expect("the stream goes on");
        assert_eq!((&event.kind[..], &event.data[..]), ("message", text));
    }
    let headers = [("If-None-Match", &first[..])];
    let polled = once(&server, "GET", "/sub/news", &headers, "");
    assert_eq!((polled.text(), polled.header("crore-gap")), ("a2", None));
    let mut at_head = Ws::open(&server, &format!("/sub/news?since={last_id}"), &[]);
    server.await_subscribers("news", 3);
    publish(&server, "news", "c", "c4");
    assert_eq!(at_head.texts(1), ["c4"]);
}

#[test]
fn a_topic_keeps_no_more_keys_than_its_rule_allows() {
    let server = Server::with(&format!("{LATEST_RULE}keys_max = 2\n"));
    publish(&server, "news", "a", "a1");
    let first = once(&server, "GET", "/sub/news", &[], "").position();
    publish(&server, "news", "b", "b1");
    publish(&server, "news", "a", "a2");
    assert_eq!(Ws::open(&server, "/sub/news", &[]).texts(2), ["b1", "a2"]);
    publish(&server, "news", "c", "c1");
    assert_eq!(Ws::open(&server, "/sub/news", &[]).texts(2), ["a2", "c1"]);
    // The limit of keys removed a message that this subscriber has not received, so it is told a gap.
    let mut stream = Stream::open(&server, "/sub/news", &[("Last-Event-ID", &first)]);
    assert_eq!(stream.event().expect("an event").kind, GAP_EVENT);
    assert_eq!(stream.data(2), ["a2", "c1"]);
}

#[test]
fn several_topics_on_one_connection_each_bring_their_snapshot() {
    let server = Server::with(LATEST_RULE);
    publish_six(&server, "x");
    publish_six(&server, "y");
    let mut ws = Ws::meta(&server, "/sub?topic=x&topic=y");
    let mut received = Vec::new();
    for _ in 0..6 {
        let (lines, data) = ws.meta_message();
        let text = String::from_utf8(data).expect("text");
        received.push(format!("{}:{text}", line(&lines, "topic")));
    }
    received.sort();
    assert_eq!(received, ["x:2", "x:a2", "x:b2", "y:2", "y:a2", "y:b2"]);
    publish(&server, "y", "a", "a3");
    let (lines, data) = ws.meta_message();
    assert_eq!((line(&lines, "topic"), &data[..]), ("y", &b"a3"[..]));
}

const MESSAGE_BYTES: usize = 100_000;
const MESSAGES: usize = 200;
const KEYS: usize = 4;

fn payload(number: usize) -> String {
    format!("{number:06}{}", "x".repeat(MESSAGE_BYTES - 6))
}

fn number_of(payload: &[u8]) -> usize {
    assert_eq!(payload.len(), MESSAGE_BYTES, "a message came whole");
    let digits = std::str::from_utf8(&payload[..6]).expect("digits");
    digits.parse().expect("a number")
}

/// Checks the messages of a slow reader. The first are those that the socket buffers of both ends held. After them only the newest of each
/// key may follow, although the outbox had room for all.
fn assert_conflated(numbers: &[usize]) {
    let buffered_count = numbers
        .iter()
        .zip(0..)
        .take_while(|(number, n)| **number == *n)
        .count();
    assert!(
        buffered_count > 0 && buffered_count < MESSAGES - KEYS,
        "{numbers:?}"
    );
    let newest: Vec<_> = (MESSAGES - KEYS..MESSAGES).collect();
    assert_eq!(
        numbers[buffered_count..],
        newest,
        "after {buffered_count} messages"
    );
}

#[test]
fn a_slow_reader_gets_only_the_newest_of_each_key() {
    let server = Server::with(&format!(
        "[limits]\noutbox_bytes = \"64 MiB\"\n{LATEST_RULE}log_bytes = \"64 MiB\"\nslow = \"disconnect\"\n"
    ));
    let mut ws = Ws::open(&server, "/sub/news", &[]);
    let mut meta = Ws::meta(&server, "/sub?topic=news&topic=other");
    let mut stream = Stream::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 3);
    let mut publisher = Conn::open(&server);
    for number in 0..MESSAGES {
        let key = (number % KEYS).to_string();
        let response =
            publisher.request("POST", "/pub/news", &[("Crore-Key", &key)], payload(number));
        assert_eq!(response.status, 201, "message {number}");
    }
    let has_last = |numbers: &Vec<usize>| numbers.last() == Some(&(MESSAGES - 1));
    let mut numbers = Vec::new();
    while !has_last(&numbers) {
        numbers.push(number_of(&ws.message().payload));
    }
    assert_conflated(&numbers);
    let mut numbers = Vec::new();
    while !has_last(&numbers) {
        let (lines, data) = meta.meta_message();
        assert!(lines.iter().all(|(name, _)| name != "gap"), "{lines:?}");
        numbers.push(number_of(&data));
    }
    assert_conflated(&numbers);
    let mut numbers = Vec::new();
    while !has_last(&numbers) {
        let event = stream.event().expect("the stream goes on");
        assert_eq!(event.kind, "message");
        numbers.push(number_of(event.data.as_bytes()));
    }
    assert_conflated(&numbers);
    publish(&server, "news", "0", "live again");
    assert_eq!(ws.message().text(), "live again");
    assert_eq!(meta.meta_message().1, b"live again");
    assert_eq!(stream.data(1), ["live again"]);
}
