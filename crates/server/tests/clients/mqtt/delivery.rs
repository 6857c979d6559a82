//! Tests messages from publishers to subscribers: quality of service, filters, and retained messages.

use super::for_each_variant;
use super::peer::{Library, Peer, Variant};
use crate::support::broker::Broker;
use serde_json::json;
use std::sync::Arc;

/// Number of messages: enough for several reads, and for many packet ids.
const MANY: usize = 200;

/// The maximum number of unacknowledged messages. The tests obey it, since these libraries ignore the Receive Maximum of the server.
const UNDER_WAY: usize = 50;

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_message_comes_with_the_lower_of_both_qualities() {
    for_each_variant(|peer| {
        peer.connect("publisher", json!({}));
        for granted in 0..=2 {
            let name = format!("subscriber{granted}");
            peer.connect(&name, json!({}));
            assert_eq!(
                peer.subscribe(&name, &[("t", granted)]),
                [u64::from(granted)]
            );
        }
        for sent in 0..=2u8 {
            let data = format!("of {sent} \u{2713}");
            assert_eq!(peer.publish("publisher", "t", &data, sent), 0);
            for granted in 0..=2u8 {
                let message = peer.message(&format!("subscriber{granted}"));
                assert_eq!((message.topic.as_str(), &message.data), ("t", &data));
                assert_eq!(message.qos, u64::from(granted.min(sent)));
                assert!(!message.retain && !message.dup);
            }
        }
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_burst_beyond_the_receive_maximum_arrives_on_one_connection() {
    // mqtt.js sends every publish at once, whatever Receive Maximum the CONNACK gives.
    let broker = Arc::new(Broker::start());
    for transport in ["tcp", "ws"] {
        let variant = Variant {
            library: Library::MqttJs,
            transport,
            version: 5,
        };
        let mut peer = Peer::start(variant, &broker);
        peer.connect("publisher", json!({}));
        peer.connect("subscriber", json!({}));
        for qos in [1, 2] {
            let topic = format!("burst/{qos}");
            peer.subscribe("subscriber", &[(&topic, 2)]);
            let options = json!({ "topic": peer.unique_name(&topic), "count": MANY, "qos": qos });
            peer.send_command("burst", "publisher", options);
            for n in 0..MANY {
                let done = peer.next_event("publisher", "published");
                assert_eq!(done["reason"], 0, "{n} of QoS {qos} over {transport}");
            }
            let expected: Vec<String> = (0..MANY).map(|n| n.to_string()).collect();
            assert_eq!(peer.data("subscriber", MANY), expected);
        }
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn many_messages_come_once_and_in_order() {
    for_each_variant(|peer| {
        peer.connect("publisher", json!({}));
        peer.connect("subscriber", json!({}));
        peer.subscribe("subscriber", &[("q/+", 2)]);
        for qos in 0..=2u8 {
            let topic = format!("q/{qos}");
            let expected: Vec<String> = (0..MANY).map(|n| format!("{qos}-{n}")).collect();
            let own_topics = peer.unique_name(&topic);
            for data in expected.chunks(UNDER_WAY) {
                for data in data {
                    let options = json!({ "topic": own_topics, "payload": data, "qos": qos, "retain": false });
                    peer.send_command("publish", "publisher", options);
                }
                for _ in data {
                    peer.next_event("publisher", "published");
                }
            }
            assert_eq!(peer.data("subscriber", MANY), expected);
        }
        peer.expect_quiet("subscriber");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_large_message_comes_whole_and_an_empty_one_too() {
    for_each_variant(|peer| {
        peer.connect("it", json!({}));
        peer.subscribe("it", &[("t", 1)]);
        let large = "words, ".repeat(30_000);
        for data in [large.as_str(), ""] {
            peer.publish("it", "t", data, 1);
            let received_data = peer.message("it").data;
            assert!(
                received_data == data,
                "{} of {} bytes",
                received_data.len(),
                data.len()
            );
        }
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn filters_match_by_levels() {
    for_each_variant(|peer| {
        peer.connect("publisher", json!({}));
        let table: &[(&str, &[&str])] = &[
            ("a/b/c", &["a/b/c"]),
            ("a/+/c", &["a/b/c", "a//c"]),
            ("a/#", &["a", "a/b", "a/b/c", "a//c"]),
            ("+", &["a"]),
            ("+/+/c", &["a/b/c", "a//c"]),
            ("a/+", &["a/b"]),
            ("#", &["a", "a/b", "a/b/c", "a//c", "d"]),
        ];
        for (number, (filter, _)) in table.iter().enumerate() {
            let id = peer.unique_name(&number.to_string());
            peer.connect(filter, json!({ "id": id }));
            assert_eq!(peer.subscribe(filter, &[(filter, 1)]), [1], "{filter}");
        }
        for topic in ["a", "a/b", "a/b/c", "a//c", "d", "end"] {
            peer.publish("publisher", topic, topic, 1);
        }
        for (filter, expected) in table {
            let received_data = peer.data(filter, expected.len());
            assert_eq!(received_data, *expected, "{filter}");
        }
        assert_eq!(peer.data("#", 1), ["end"]);
        for filter in ["a/#", "+/+/c", "a/+"] {
            peer.expect_quiet(filter);
        }
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn wildcards_at_the_start_do_not_match_dollar_topics() {
    for_each_variant(|peer| {
        peer.connect("it", json!({}));
        // The server's own topics are not below this run's name, so these filters are used as they are.
        for filter in ["#", "+/broker/uptime", "+/#"] {
            peer.send_command(
                "subscribe",
                "it",
                json!({ "filters": [{ "filter": filter, "qos": 0 }] }),
            );
            peer.next_event("it", "suback");
        }
        let own_topics = peer
            .remaining_topics("it")
            .into_iter()
            .find(|topic| topic.starts_with('$'));
        assert_eq!(own_topics, None);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn overlapping_subscriptions_give_one_copy_with_the_highest_quality() {
    for_each_variant(|peer| {
        if !peer.broker.is_crore() {
            return; // several copies are allowed, and Mosquitto sends them in 5
        }
        peer.connect("it", json!({}));
        peer.subscribe("it", &[("a/b", 0), ("a/+", 2), ("a/#", 1)]);
        peer.publish("it", "a/b", "one", 2);
        let message = peer.message("it");
        assert_eq!((message.data.as_str(), message.qos), ("one", 2));
        peer.publish("it", "a/b", "two", 2);
        assert_eq!(peer.message("it").data, "two");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn unsubscribed_client_gets_no_more() {
    for_each_variant(|peer| {
        peer.connect("it", json!({}));
        peer.subscribe("it", &[("a", 1), ("b", 1)]);
        let reasons = peer.unsubscribe("it", &["a", "never"]);
        if peer.is_v5() {
            assert_eq!(reasons, [0, 0x11]);
        }
        peer.publish("it", "a", "gone", 1);
        peer.publish("it", "b", "there", 1);
        assert_eq!(peer.message("it").data, "there");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_new_subscription_replaces_the_old_one() {
    for_each_variant(|peer| {
        peer.connect("it", json!({}));
        peer.subscribe("it", &[("t", 0)]);
        assert_eq!(peer.subscribe("it", &[("t", 2)]), [2]);
        peer.publish("it", "t", "one", 2);
        assert_eq!(peer.message("it").qos, 2);
        peer.publish("it", "t", "two", 2);
        assert_eq!(peer.message("it").data, "two");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_retained_message_waits_for_subscribers() {
    for_each_variant(|peer| {
        peer.connect("publisher", json!({}));
        peer.connect("early", json!({}));
        peer.subscribe("early", &[("r/#", 1)]);
        peer.retain("publisher", "r/a", "first");
        peer.retain("publisher", "r/a", "second");
        peer.retain("publisher", "r/b", "other");
        peer.publish("publisher", "r/a", "passing", 1);
        assert_eq!(
            peer.data("early", 4),
            ["first", "second", "other", "passing"]
        );
        expect_late(peer, "late1", "r/a", &["second"]);
        expect_late(peer, "late2", "r/+", &["other", "second"]);
        // An empty payload deletes the retained message, and is a message to the present subscribers.
        peer.retain("publisher", "r/a", "");
        assert_eq!(peer.data("early", 1), [""]);
        expect_late(peer, "late3", "r/#", &["other"]);
        peer.retain("publisher", "r/b", "");
    });
}

/// Checks that a new subscriber receives exactly these messages, marked as retained.
fn expect_late(peer: &mut Peer, name: &str, filter: &str, expected: &[&str]) {
    peer.connect(name, json!({}));
    peer.subscribe(name, &[(filter, 1)]);
    let mut received_data = Vec::new();
    for _ in expected {
        let message = peer.message(name);
        assert!(message.retain, "{message:?}");
        received_data.push(message.data);
    }
    received_data.sort();
    assert_eq!(received_data, expected);
    peer.expect_quiet(name);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn to_those_who_are_there_a_retained_message_is_not_marked() {
    for_each_variant(|peer| {
        peer.connect("it", json!({}));
        peer.subscribe("it", &[("t", 1)]);
        peer.retain("it", "t", "new");
        assert!(!peer.message("it").retain);
        // The same subscription again brings the retained message again, marked as retained (the default).
        peer.subscribe("it", &[("t", 1)]);
        let again = peer.message("it");
        assert_eq!((again.data.as_str(), again.retain), ("new", true));
        peer.retain("it", "t", "");
    });
}
