//! Tests that a message published at any node reaches subscribers at any node.

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::mqtt::{self, message};
use crate::support::stream::Stream;
use crate::support::ws::Ws;
use crate::two_nodes;
use crore_wire::mqtt::Version;

const KEY: [(&str, &str); 1] = [("Idempotency-Key", "\"k\"")];

/// Checks that a message published at `from` reaches a subscriber of each protocol at `at`.
pub fn reaches(from: &Server, at: &Server, topic: &str) {
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

/// Checks that a subscriber by filter at `at` receives the message of an MQTT client at `from`.
pub fn reaches_by_mqtt(from: &Server, at: &Server, topic: &str) {
    let mut stream = Stream::open(at, &format!("/sub?filter={topic}/%2B"), &[]);
    let mut client = mqtt::Conn::at(from, Version::V311);
    client.connect(&mqtt::plain(Version::V311, "publisher"));
    client.publish(&message(&format!("{topic}/1"), 1, 7, b"by mqtt"));
    client.packet();
    assert_eq!(stream.data(1), ["by mqtt"]);
}

/// Checks that a retained value published at `from` is the retained value at `at`.
pub fn retains(from: &Server, at: &Server, topic: &str) {
    let mut publisher = mqtt::Conn::at(from, Version::V5);
    publisher.connect(&mqtt::plain(Version::V5, "publisher"));
    for (value, id) in [(&b"old"[..], 1), (&b"new"[..], 2)] {
        let mut retained = message(topic, 1, id, value);
        retained.retain = true;
        publisher.publish(&retained);
        publisher.packet();
    }
    crate::support::until("the retained value at the other node", || {
        let mut subscriber = mqtt::Conn::at(at, Version::V5);
        subscriber.connect(&mqtt::plain(Version::V5, "subscriber"));
        subscriber.subscribe(topic, 0);
        let came = subscriber.packet();
        came.publish().payload == b"new" && came.publish().retain
    });
}

/// Checks that messages published at both nodes have the same order and positions at both, and that each position from `one` resumes at
/// `other`.
pub fn resumes(one: &Server, other: &Server, topic: &str) {
    let all: Vec<String> = (0..6).map(|n| n.to_string()).collect();
    for (n, text) in all.iter().enumerate() {
        publish([one, other][n % 2], topic, text);
    }
    let from_oldest = format!("/sub/{topic}?since=oldest");
    let mut stream = Stream::open(one, &from_oldest, &[]);
    let events: Vec<_> = (0..6).map(|_| stream.event().expect("an event")).collect();
    let mut order: Vec<String> = events.iter().map(|it| it.data.clone()).collect();
    let same = Stream::open(other, &from_oldest, &[]).data(6);
    assert_eq!(same, order, "all nodes have one order");
    order.sort();
    assert_eq!(order, all);
    let target = format!("/sub/{topic}");
    for (n, event) in events.iter().enumerate() {
        let rest: Vec<String> = events[n + 1..].iter().map(|it| it.data.clone()).collect();
        let by_header = [("Last-Event-ID", event.id.as_str())];
        let mut resumed = Stream::open(other, &target, &by_header);
        assert_eq!(resumed.data(rest.len()), rest);
        let by_query = format!("{target}?since={}", event.id);
        let mut resumed = Stream::open(other, &by_query, &[]);
        assert_eq!(resumed.data(rest.len()), rest);
        let tag = format!("\"{}\"", event.id);
        if let Some(next) = rest.first() {
            let polled = once(other, "GET", &target, &[("If-None-Match", &tag)], "");
            assert_eq!(polled.text(), next);
            assert_eq!(polled.position(), events[n + 1].id);
        }
    }
}

/// Checks that an idempotency key used at `one` is known at both nodes.
pub fn knows_a_key(one: &Server, other: &Server, topic: &str) {
    let target = format!("/pub/{topic}");
    let first = once(one, "POST", &target, &KEY, "once");
    assert!([201, 202].contains(&first.status), "{first:?}");
    for node in [other, one] {
        let again = once(node, "POST", &target, &KEY, "once");
        let replayed = again.header("idempotency-replayed");
        assert_eq!(replayed.as_deref(), Some("true"), "{again:?}");
        let position = |text: &str| text.lines().last().map(str::to_string);
        assert_eq!(position(again.text()), position(first.text()));
    }
    publish(other, topic, "two");
    for node in [one, other] {
        let mut stream = Stream::open(node, &format!("/sub/{topic}?since=oldest"), &[]);
        assert_eq!(stream.data(2), ["once", "two"]);
    }
}

/// Checks that a topic that is deleted at `other` is deleted at `one`, and the same for a topic that is purged.
pub fn deletes(one: &Server, other: &Server, topic: &str) {
    let (deleted, emptied) = (format!("{topic}/deleted"), format!("{topic}/emptied"));
    for topic in [&deleted, &emptied] {
        publish(one, topic, "old");
    }
    let delete = |topic: &str| once(other, "DELETE", &format!("/pub/{topic}"), &[], "").status;
    assert_eq!(delete(&deleted), 200);
    assert_eq!(delete(&format!("{emptied}?purge")), 200);
    publish(other, &emptied, "new");
    assert_eq!(
        Stream::open(one, &format!("/sub/{emptied}?since=oldest"), &[]).data(1),
        ["new"]
    );
    crate::support::until("the end of the topic", || {
        once(one, "GET", &format!("/pub/{deleted}"), &[], "").status == 404
    });
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
    reaches_by_mqtt(&one, &other, "c");
}

#[test]
fn a_retained_value_is_one_at_each_node() {
    if let Some((_servers, one, other)) = two_nodes() {
        retains(&one, &other, "state");
    }
}

#[test]
fn a_position_of_one_node_resumes_at_the_other() {
    if let Some((_servers, one, other)) = two_nodes() {
        resumes(&one, &other, "a");
    }
}

#[test]
fn an_idempotency_key_holds_at_each_node() {
    if let Some((_servers, one, other)) = two_nodes() {
        knows_a_key(&one, &other, "keyed");
    }
}

#[test]
fn a_topic_that_is_deleted_or_emptied_at_one_node_is_at_the_other() {
    if let Some((_servers, one, other)) = two_nodes() {
        deletes(&one, &other, "a");
    }
}
