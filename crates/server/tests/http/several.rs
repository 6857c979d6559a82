//! Tests several topics on one connection: each message names its topic, and one position covers all topics.

use crore_wire::sse::GAP_EVENT;

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::stream::Stream;
use crate::support::ws::{Ws, line};

const TARGET: &str = "/sub?topic=a&topic=b";

#[test]
fn a_long_poll_names_the_topic_and_resumes_both() {
    let server = Server::start();
    for (topic, text) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2")] {
        publish(&server, topic, text);
    }
    let mut conn = Conn::open(&server);
    let mut response = conn.get(TARGET, &[]);
    let mut received = Vec::new();
    for number in 0..4 {
        let topic = response.header("crore-topic").expect("a topic");
        assert!(response.text().starts_with(&topic), "{response:?}");
        received.push(response.text().to_string());
        let tag = response.header("etag").expect("an ETag");
        conn.ask("GET", TARGET, &[("If-None-Match", &tag)], "");
        if number < 3 {
            response = conn.response();
        }
    }
    let message_of = |topic: char| {
        received
            .iter()
            .filter(|text| text.starts_with(topic))
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (message_of('a'), message_of('b')),
        (
            vec!["a1".into(), "a2".into()],
            vec!["b1".into(), "b2".into()]
        )
    );
    server.await_subscribers("a", 1);
    publish(&server, "b", "b3");
    assert_eq!(conn.response().text(), "b3");
}

#[test]
fn a_stream_resumes_all_topics_from_one_id() {
    let server = Server::start();
    let mut stream = Stream::open(&server, TARGET, &[]);
    server.await_subscribers("a", 1);
    server.await_subscribers("b", 1);
    publish(&server, "a", "a1");
    publish(&server, "b", "b1");
    let mut data = stream.data(1);
    let event = stream.event().expect("an event");
    data.push(event.data.clone());
    data.sort();
    assert_eq!(data, ["a1", "b1"]);
    drop(stream);
    publish(&server, "a", "a2");
    publish(&server, "b", "b2");
    let mut resumed = Stream::open(&server, TARGET, &[("Last-Event-ID", &event.id)]);
    let mut data = resumed.data(2);
    data.sort();
    assert_eq!(data, ["a2", "b2"]);
    publish(&server, "b", "b3");
    assert_eq!(resumed.data(1), ["b3"]);
}

#[test]
fn a_websocket_names_the_topic_in_the_meta_subprotocol() {
    let server = Server::start();
    let mut ws = Ws::meta(&server, TARGET);
    server.await_subscribers("a", 1);
    server.await_subscribers("b", 1);
    publish(&server, "a", "a1");
    let (lines, data) = ws.meta_message();
    assert_eq!((line(&lines, "topic"), data.as_slice()), ("a", &b"a1"[..]));
    publish(&server, "b", "b1");
    let (lines, data) = ws.meta_message();
    assert_eq!((line(&lines, "topic"), data.as_slice()), ("b", &b"b1"[..]));
    let id = line(&lines, "id").to_string();
    drop(ws);
    publish(&server, "a", "a2");
    let mut resumed = Ws::meta(&server, &format!("{TARGET}&since={id}"));
    assert_eq!(resumed.meta_message().1, b"a2");
}

#[test]
fn envelope_is_json_with_the_topic_on_every_transport() {
    let server = Server::start();
    let target = format!("{TARGET}&envelope=json&since=oldest");
    publish(&server, "a", "hello \"you\"");
    let poll = once(&server, "GET", &target, &[], "").json();
    let stream: serde_json::Value =
        serde_json::from_str(&Stream::open(&server, &target, &[]).data(1)[0]).expect("JSON");
    let ws: serde_json::Value =
        serde_json::from_str(&Ws::open(&server, &target, &[]).message().text()).expect("JSON");
    for (door, envelope) in [("long-poll", poll), ("SSE", stream), ("WebSocket", ws)] {
        assert_eq!(envelope["topic"], "a", "{door}: {envelope}");
        assert_eq!(envelope["data"], "hello \"you\"", "{door}: {envelope}");
    }
}

#[test]
fn changed_set_of_topics_gets_a_gap() {
    let server = Server::start();
    let mut stream = Stream::open(&server, TARGET, &[]);
    server.await_subscribers("a", 1);
    publish(&server, "a", "a1");
    let id = stream.event().expect("an event").id;
    publish(&server, "c", "c1");
    let mut changed = Stream::open(&server, "/sub?topic=a&topic=c", &[("Last-Event-ID", &id)]);
    assert_eq!(changed.event().expect("a gap").kind, GAP_EVENT);
}

#[test]
fn number_of_topics_is_limited_so_that_the_position_fits() {
    let server = Server::start();
    let target = |count: usize| format!("/sub?{}", topics(count));
    let open = |count: usize, headers: &[(&str, &str)]| {
        let mut conn = Conn::open(&server);
        let events = [&[("Accept", "text/event-stream")], headers].concat();
        conn.ask("GET", target(count).trim_end_matches('&'), &events, "");
        let status = conn.head().status;
        (conn, status)
    };
    assert_eq!(open(100, &[]).1, 200);
    let topics_max = (100..1_000).find(|count| open(count + 1, &[]).1 != 200);
    let topics_max = topics_max.expect("a head has an end");
    let refused = once(&server, "GET", &target(topics_max + 1), &[], "");
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.text().contains("limits.head_bytes"), "{refused:?}");
    // Also with long offsets: enough messages that each offset has more than one digit.
    for n in 0..topics_max {
        publish(&server, &format!("t{n}"), "x");
    }
    let target = target(topics_max);
    let mut stream = Stream::open(&server, &format!("{target}since=oldest"), &[]);
    let last = (0..topics_max)
        .map(|_| stream.event().expect("an event").id)
        .last();
    let id = last.expect("there are some");
    assert_eq!(open(topics_max, &[("Last-Event-ID", &id)]).1, 200);
}

#[test]
fn names_of_one_connection_have_a_limit_of_bytes() {
    let server = Server::with("[limits]\nsubscription_bytes = \"1 KiB\"\n");
    let refused = once(&server, "GET", &format!("/sub?{}", topics(20)), &[], "");
    assert_eq!(refused.status, 400, "{refused:?}");
    let words = "limits.subscription_bytes allows";
    assert!(refused.text().contains(words), "{refused:?}");
}

fn topics(count: usize) -> String {
    (0..count).map(|n| format!("topic=t{n}&")).collect()
}

#[test]
fn long_poll_that_times_out_after_a_gap_reports_it_once() {
    let server = Server::with(
        "[[rule]]\nmatch = \"a\"\nlog_messages = 0\npoll_timeout_s = 1\n\
         [[rule]]\nmatch = \"b\"\npoll_timeout_s = 1\n",
    );
    let mut conn = Conn::open(&server);
    conn.ask("GET", "/sub?topic=a&topic=b&since=live", &[], "");
    server.await_subscribers("a", 1);
    server.await_subscribers("b", 1);
    publish(&server, "b", "b1");
    let tag = conn.response().header("etag").expect("an ETag");
    publish(&server, "a", "nobody keeps it");
    let response = conn.get(TARGET, &[("If-None-Match", &tag)]);
    assert_eq!(response.status, 204);
    assert!(response.header("crore-gap").is_some(), "{response:?}");
    let tag_after_gap = response
        .header("etag")
        .expect("the position behind the gap");
    assert_ne!(tag_after_gap, tag);
    let unchanged = conn.get(TARGET, &[("If-None-Match", &tag_after_gap)]);
    assert_eq!(unchanged.status, 304);
    assert_eq!(unchanged.header("crore-gap"), None);
    publish(&server, "b", "b2");
    let response = conn.get(TARGET, &[("If-None-Match", &tag_after_gap)]);
    assert_eq!(
        (response.text(), response.header("crore-gap")),
        ("b2", None)
    );
}
