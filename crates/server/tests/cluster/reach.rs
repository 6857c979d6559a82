//! Tests that a message published at any node reaches subscribers at any node.

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::mqtt::{self, message};
use crate::support::stream::Stream;
use crate::support::ws::Ws;
use crate::two_nodes;
use crore_wire::mqtt::Version;

const KEY: [(&str, &str); 1] = [("Idempotency-Key", "\"k\"")];

/// Checks that a message published at the node `from` reaches a subscriber of each protocol at the node `to`.
pub fn assert_reaches(from: &Server, to: &Server, topic: &str) {
    let target = format!("/sub/{topic}");
    let mut events = Stream::open(to, &target, &[]);
    let mut socket = Ws::open(to, &target, &[]);
    let mut polled = Conn::open(to);
    polled.ask("GET", &target, &[], "");
    let mut client = mqtt::Conn::to_server(to, Version::V5);
    assert!(!client.connect(&mqtt::plain_connect(Version::V5, &format!("of {topic}"))));
    client.subscribe(topic, 1);
    to.await_subscribers(topic, 4);
    publish(from, topic, "hello");
    assert_eq!(events.data(1), ["hello"]);
    assert_eq!(socket.texts(1), ["hello"]);
    assert_eq!(polled.response().text(), "hello");
    assert_eq!(client.packet().publish().payload, b"hello");
}

/// Checks that a subscriber by filter at the node `to` receives the message of an MQTT client at the node `from`.
pub fn assert_reaches_by_mqtt(from: &Server, to: &Server, topic: &str) {
    let mut stream = Stream::open(to, &format!("/sub?filter={topic}/%2B"), &[]);
    let mut client = mqtt::Conn::to_server(from, Version::V311);
    client.connect(&mqtt::plain_connect(Version::V311, "publisher"));
    client.publish(&message(&format!("{topic}/1"), 1, 7, b"by mqtt"));
    client.packet();
    assert_eq!(stream.data(1), ["by mqtt"]);
}

/// Checks that a retained value published at the node `from` is the retained value at the node `to`.
pub fn assert_retains(from: &Server, to: &Server, topic: &str) {
    let mut publisher = mqtt::Conn::to_server(from, Version::V5);
    publisher.connect(&mqtt::plain_connect(Version::V5, "publisher"));
    for (value, id) in [(&b"old"[..], 1), (&b"new"[..], 2)] {
        let mut retained = message(topic, 1, id, value);
        retained.retain = true;
        publisher.publish(&retained);
        publisher.packet();
    }
    crate::support::until("the retained value at the other node", || {
        let mut subscriber = mqtt::Conn::to_server(to, Version::V5);
        subscriber.connect(&mqtt::plain_connect(Version::V5, "subscriber"));
        subscriber.subscribe(topic, 0);
        let received = subscriber.packet();
        received.publish().payload == b"new" && received.publish().retain
    });
}

/// Checks that messages published at both nodes have the same order and positions at both, and that each position from `node_a` resumes at
/// `node_b`.
pub fn assert_resumes(node_a: &Server, node_b: &Server, topic: &str) {
    let published: Vec<String> = (0..6).map(|n| n.to_string()).collect();
    for (n, text) in published.iter().enumerate() {
        publish([node_a, node_b][n % 2], topic, text);
    }
    let from_oldest = format!("/sub/{topic}?since=oldest");
    let mut stream = Stream::open(node_a, &from_oldest, &[]);
    let events: Vec<_> = (0..6).map(|_| stream.event().expect("an event")).collect();
    let mut order: Vec<String> = events.iter().map(|it| it.data.clone()).collect();
    let at_node_b = Stream::open(node_b, &from_oldest, &[]).data(6);
    assert_eq!(at_node_b, order, "all nodes have one order");
    order.sort();
    assert_eq!(order, published);
    let target = format!("/sub/{topic}");
    for (n, event) in events.iter().enumerate() {
        let later: Vec<String> = events[n + 1..].iter().map(|it| it.data.clone()).collect();
        let by_header = [("Last-Event-ID", event.id.as_str())];
        let mut resumed = Stream::open(node_b, &target, &by_header);
        assert_eq!(resumed.data(later.len()), later);
        let by_query = format!("{target}?since={}", event.id);
        let mut resumed = Stream::open(node_b, &by_query, &[]);
        assert_eq!(resumed.data(later.len()), later);
        let tag = format!("\"{}\"", event.id);
        if let Some(next) = later.first() {
            let polled = once(node_b, "GET", &target, &[("If-None-Match", &tag)], "");
            assert_eq!(polled.text(), next);
            assert_eq!(polled.position(), events[n + 1].id);
        }
    }
}

/// Checks that an idempotency key used at `node_a` is known at both nodes.
pub fn assert_knows_key(node_a: &Server, node_b: &Server, topic: &str) {
    let target = format!("/pub/{topic}");
    let first = once(node_a, "POST", &target, &KEY, "once");
    assert!([201, 202].contains(&first.status), "{first:?}");
    for node in [node_b, node_a] {
        let repeated = once(node, "POST", &target, &KEY, "once");
        let replayed = repeated.header("idempotency-replayed");
        assert_eq!(replayed.as_deref(), Some("true"), "{repeated:?}");
        let position = |text: &str| text.lines().last().map(str::to_string);
        assert_eq!(position(repeated.text()), position(first.text()));
    }
    publish(node_b, topic, "two");
    for node in [node_a, node_b] {
        let mut stream = Stream::open(node, &format!("/sub/{topic}?since=oldest"), &[]);
        assert_eq!(stream.data(2), ["once", "two"]);
    }
}

/// Checks that a topic that is deleted at `node_b` is deleted at `node_a`, and the same for a topic that is purged.
pub fn assert_deletes(node_a: &Server, node_b: &Server, topic: &str) {
    let (deleted, emptied) = (format!("{topic}/deleted"), format!("{topic}/emptied"));
    for topic in [&deleted, &emptied] {
        publish(node_a, topic, "old");
    }
    let delete = |topic: &str| once(node_b, "DELETE", &format!("/pub/{topic}"), &[], "").status;
    assert_eq!(delete(&deleted), 200);
    assert_eq!(delete(&format!("{emptied}?purge")), 200);
    publish(node_b, &emptied, "new");
    assert_eq!(
        Stream::open(node_a, &format!("/sub/{emptied}?since=oldest"), &[]).data(1),
        ["new"]
    );
    crate::support::until("the end of the topic", || {
        once(node_a, "GET", &format!("/pub/{deleted}"), &[], "").status == 404
    });
}

#[test]
fn a_message_reaches_subscribers_of_every_protocol_at_the_other_node() {
    let Some((_servers, node_a, node_b)) = two_nodes() else {
        return;
    };
    for n in 0..4 {
        assert_reaches(&node_a, &node_b, &format!("a/{n}"));
        assert_reaches(&node_b, &node_a, &format!("b/{n}"));
    }
    assert_reaches_by_mqtt(&node_a, &node_b, "c");
}

#[test]
fn retained_value_is_the_same_at_each_node() {
    if let Some((_servers, node_a, node_b)) = two_nodes() {
        assert_retains(&node_a, &node_b, "state");
    }
}

#[test]
fn a_position_of_one_node_resumes_at_the_other() {
    if let Some((_servers, node_a, node_b)) = two_nodes() {
        assert_resumes(&node_a, &node_b, "a");
    }
}

#[test]
fn idempotency_key_is_known_at_each_node() {
    if let Some((_servers, node_a, node_b)) = two_nodes() {
        assert_knows_key(&node_a, &node_b, "keyed");
    }
}

#[test]
fn deletion_and_purge_at_one_node_take_effect_at_the_other() {
    if let Some((_servers, node_a, node_b)) = two_nodes() {
        assert_deletes(&node_a, &node_b, "a");
    }
}
