//! Tests messages that are not logged, among logged ones. All keep their order. Before a message gets an offset, the log has a mark (the highest offset
//! that may be given) that covers it.

use crore_broker::settings::Rule;

use crate::TestServer;

/// A server with one home (the part of a shard that keeps topics). Messages of the topic `p` are not logged.
fn server() -> TestServer {
    TestServer::new(1, |settings| {
        let rule = Rule {
            filter: "p".into(),
            durable: false,
            ..settings.rules[0].clone()
        };
        settings.rules.insert(0, rule);
    })
}

#[test]
fn unlogged_message_waits_only_once_for_a_mark() {
    let mut server = server();
    let first = server.post("p", "one");
    server.settle();
    assert!(
        server.text(first).is_empty(),
        "its offset is not marked yet"
    );
    server.commit();
    assert_eq!(server.statuses(first), [202]);
    // The mark covers a million offsets.
    for _ in 0..100 {
        let next = server.post("p", "two");
        server.settle();
        assert_eq!(server.statuses(next), [202]);
    }
    assert!(server.0.io.iter().all(|io| io.batches.is_empty()));
}

#[test]
fn logged_and_unlogged_messages_of_a_partition_keep_their_order() {
    // Logged topics of which some are in the partition of `p`.
    let mut server = server();
    let logged: Vec<String> = (0..40).map(|n| format!("l{n}")).collect();
    let readers: Vec<usize> = logged.iter().map(|topic| server.subscribe(topic)).collect();
    let passing = server.subscribe("p");
    server.post("p", "marked");
    server.commit();
    for round in 0..3 {
        for topic in &logged {
            server.post(topic, &format!("{topic} {round}"));
            server.post("p", &format!("behind {topic} {round}"));
        }
    }
    server.settle();
    let text = server.text(passing);
    assert!(!text.contains("behind l0 2"), "{text}");
    server.lose();
    server.commit();
    for (reader, topic) in readers.iter().zip(&logged) {
        let text = server.text(*reader);
        let places: Vec<_> = (0..3).map(|n| text.find(&format!("{topic} {n}"))).collect();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{text}"
        );
    }
    let text = server.text(passing);
    let received = logged
        .iter()
        .flat_map(|topic| (0..3).map(move |n| format!("behind {topic} {n}")));
    for message in received {
        assert_eq!(text.matches(&message).count(), 1, "{message}: {text}");
    }
}
