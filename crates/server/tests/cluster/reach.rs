//! Publish at any node, subscribe at any node.

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::mqtt::{self, message};
use crate::support::stream::Stream;
use crate::support::ws::Ws;
use crate::two_nodes;
use crore_wire::mqtt::Version;

const KEY: [(&str, &str); 1] = [("Idempotency-Key", "\"k\"")];

/// A message of `from` comes to a subscriber of each protocol at `at`.
fn reaches(from: &Server, at: &Server, topic: &str) {
    let target = format!("/sub/{topic}");
    let mut events = Stream::open(at, &target, &[]);
    let mut socket = Ws::open(at, &target, &[]);
    let mut polled = Conn::open(at);
    polled.ask("GET", &target, &[], "");
    let mut client = mqtt::Conn::at(at, Version::V5);
    assert!(!client.connect(&mqtt::plain(Version::V5, &format!("of {topic}"))));
    client.subscribe(topic, 1);
    at.await_subscribers(topic, 4);
    publish(from, topic, "hello");
    assert_eq!(events.data(1), ["hello"]);
    assert_eq!(socket.texts(1), ["hello"]);
    assert_eq!(polled.response().text(), "hello");
    assert_eq!(client.packet().publish().payload, b"hello");
}

#[test]
fn a_message_reaches_subscribers_of_every_protocol_at_the_other_node() {
    let Some((_servers, one, other)) = two_nodes() else {
        return;
    };
    for n in 0..4 {
        reaches(&one, &other, &format!("a/{n}"));
        reaches(&other, &one, &format!("b/{n}"));
    }
    // By MQTT as well, to subscribers by filter.
    let mut stream = Stream::open(&other, "/sub?filter=c/%2B", &[]);
    let mut client = mqtt::Conn::at(&one, Version::V311);
    client.connect(&mqtt::plain(Version::V311, "publisher"));
    client.publish(&message("c/1", 1, 7, b"by mqtt"));
    client.packet();
    assert_eq!(stream.data(1), ["by mqtt"]);
}

#[test]
fn a_retained_value_is_one_at_each_node() {
    let Some((_servers, one, other)) = two_nodes() else {
        return;
    };
    let mut publisher = mqtt::Conn::at(&one, Version::V5);
    publisher.connect(&mqtt::plain(Version::V5, "publisher"));
    for (value, id) in [(&b"old"[..], 1), (&b"new"[..], 2)] {
        let mut retained = message("state", 1, id, value);
        retained.retain = true;
        publisher.publish(&retained);
        publisher.packet();
    }
    // This node has read as far as the other.
    publish(&one, "last", "x");
    assert_eq!(
        Stream::open(&other, "/sub/last?since=oldest", &[]).data(1),
        ["x"]
    );
    crate::support::until("the retained value at the other node", || {
        let mut subscriber = mqtt::Conn::at(&other, Version::V5);
        subscriber.connect(&mqtt::plain(Version::V5, "subscriber"));
        subscriber.subscribe("state", 0);
        let came = subscriber.packet();
        came.publish().payload == b"new" && came.publish().retain
    });
}

#[test]
fn a_position_of_one_node_resumes_at_the_other() {
    let Some((_servers, one, other)) = two_nodes() else {
        return;
    };
    let all: Vec<String> = (0..6).map(|n| n.to_string()).collect();
    for (n, text) in all.iter().enumerate() {
        publish([&one, &other][n % 2], "a", text);
    }
    let mut stream = Stream::open(&one, "/sub/a?since=oldest", &[]);
    let events: Vec<_> = (0..6).map(|_| stream.event().expect("an event")).collect();
    let mut order: Vec<String> = events.iter().map(|it| it.data.clone()).collect();
    let same = Stream::open(&other, "/sub/a?since=oldest", &[]).data(6);
    assert_eq!(same, order, "all nodes have one order");
    order.sort();
    assert_eq!(order, all);
    for (n, event) in events.iter().enumerate() {
        let rest: Vec<String> = events[n + 1..].iter().map(|it| it.data.clone()).collect();
        let by_header = [("Last-Event-ID", event.id.as_str())];
        let mut resumed = Stream::open(&other, "/sub/a", &by_header);
        assert_eq!(resumed.data(rest.len()), rest);
        let target = format!("/sub/a?since={}", event.id);
        let mut resumed = Stream::open(&other, &target, &[]);
        assert_eq!(resumed.data(rest.len()), rest);
        let tag = format!("\"{}\"", event.id);
        if let Some(next) = rest.first() {
            let polled = once(&other, "GET", "/sub/a", &[("If-None-Match", &tag)], "");
            assert_eq!(polled.text(), next);
            assert_eq!(polled.position(), events[n + 1].id);
        }
    }
}

#[test]
fn an_idempotency_key_holds_at_each_node() {
    let Some((_servers, one, other)) = two_nodes() else {
        return;
    };
    let first = once(&one, "POST", "/pub/keyed", &KEY, "once");
    assert!([201, 202].contains(&first.status), "{first:?}");
    for node in [&other, &one] {
        let again = once(node, "POST", "/pub/keyed", &KEY, "once");
        let replayed = again.header("idempotency-replayed");
        assert_eq!(replayed.as_deref(), Some("true"), "{again:?}");
        let position = |text: &str| text.lines().last().map(str::to_string);
        assert_eq!(position(again.text()), position(first.text()));
    }
    publish(&other, "keyed", "two");
    for node in [&one, &other] {
        let mut stream = Stream::open(node, "/sub/keyed?since=oldest", &[]);
        assert_eq!(stream.data(2), ["once", "two"]);
    }
}

#[test]
fn a_topic_that_is_deleted_or_emptied_at_one_node_is_at_the_other() {
    let Some((_servers, one, other)) = two_nodes() else {
        return;
    };
    for topic in ["deleted", "emptied"] {
        publish(&one, topic, "old");
    }
    assert_eq!(once(&other, "DELETE", "/pub/deleted", &[], "").status, 200);
    assert_eq!(
        once(&other, "DELETE", "/pub/emptied?purge", &[], "").status,
        200
    );
    publish(&other, "emptied", "new");
    assert_eq!(
        Stream::open(&one, "/sub/emptied?since=oldest", &[]).data(1),
        ["new"]
    );
    crate::support::until("the end of the topic", || {
        once(&one, "GET", "/pub/deleted", &[], "").status == 404
    });
}
