//! Tests sessions that outlive their connection, takeovers, and expiry.

use super::peer::Peer;
use super::{for_each_v5_variant, for_each_variant};
use serde_json::{Value, json};

/// Session expiry in seconds: longer than any test takes.
const LONG_S: u32 = 600;

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_goes_on_after_its_client_was_killed() {
    for_each_variant(|peer| {
        assert!(!peer.connect_session("it", false, LONG_S));
        peer.subscribe("it", &[("a", 1), ("b/+", 2)]);
        peer.connect("publisher", json!({}));
        peer.publish("publisher", "a", "before", 1);
        assert_eq!(peer.message("it").data, "before");
        // Wait, so that the library has sent its acknowledgement before it is killed.
        peer.expect_quiet("it");
        peer.kill();
        peer.connect("publisher", json!({}));
        let expected: Vec<String> = (0..20).map(|n| format!("away {n}")).collect();
        for (number, data) in expected.iter().enumerate() {
            peer.publish(
                "publisher",
                ["a", "b/c"][number % 2],
                data,
                1 + number as u8 % 2,
            );
        }
        assert!(peer.connect_session("it", false, LONG_S), "session present");
        let received_data = peer.data("it", expected.len());
        // Order is guaranteed within a topic only.
        for topic in 0..2 {
            let of_topic = |list: &[String]| -> Vec<String> {
                let number = |data: &String| data[5..].parse::<usize>().expect("a number");
                let own_topics = list.iter().filter(|data| number(data) % 2 == topic);
                own_topics.cloned().collect()
            };
            assert_eq!(of_topic(&received_data), of_topic(&expected));
        }
        peer.publish("publisher", "a", "after", 1);
        assert_eq!(peer.message("it").data, "after");
        peer.expect_quiet("it");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_goes_on_after_a_farewell() {
    for_each_variant(|peer| {
        peer.connect_session("it", false, LONG_S);
        peer.subscribe("it", &[("t", 1), ("left", 1)]);
        peer.unsubscribe("it", &["left"]);
        peer.disconnect("it");
        peer.connect("publisher", json!({}));
        peer.publish("publisher", "left", "not this", 1);
        peer.publish("publisher", "t", "missed", 1);
        assert!(peer.connect_session("it", false, LONG_S));
        let message = peer.message("it");
        assert_eq!((message.data.as_str(), message.retain), ("missed", false));
        peer.expect_quiet("it");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_clean_start_forgets() {
    for_each_variant(|peer| {
        peer.connect_session("it", false, LONG_S);
        peer.subscribe("it", &[("t", 1)]);
        peer.disconnect("it");
        peer.connect("publisher", json!({}));
        peer.publish("publisher", "t", "missed", 1);
        assert!(!peer.connect_session("it", true, 0));
        peer.publish("publisher", "t", "nor this", 1);
        peer.expect_quiet("it");
        peer.disconnect("it");
        assert!(
            !peer.connect_session("it", false, 0),
            "it ended with its connection"
        );
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_second_connection_takes_the_session_over() {
    for_each_variant(|peer| {
        peer.connect_session("first", false, LONG_S);
        peer.subscribe("first", &[("t", 1)]);
        let id = peer.unique_name("first");
        let options =
            json!({ "id": id, "clean": false, "properties": { "session_expiry_s": LONG_S } });
        let connack = peer.connect("second", options);
        assert_eq!(connack["session_present"], true);
        let closed = peer.next_event("first", "closed");
        // Mosquitto 2.0 does not send the reason.
        if peer.is_v5() && peer.broker.is_crore() {
            assert_eq!(closed["reason"], 0x8e, "{closed}");
        }
        peer.publish("second", "t", "to the second", 1);
        assert_eq!(peer.message("second").data, "to the second");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_ends_when_its_time_is_over() {
    for_each_v5_variant(|peer| {
        peer.connect("watcher", json!({}));
        peer.subscribe("watcher", &[("ended", 1)]);
        peer.connect_session("long", false, LONG_S);
        peer.cut("long");
        // A will with a longer delay is published when the session ends.
        let will = json!({ "topic": peer.unique_name("ended"), "payload": "", "qos": 1, "retain": false,
            "properties": { "delay_s": LONG_S } });
        let properties = json!({ "session_expiry_s": 1 });
        let options = json!({ "clean": false, "will": will, "properties": properties });
        peer.connect("short", options);
        peer.cut("short");
        peer.message("watcher");
        for (name, present) in [("short", false), ("long", true)] {
            assert_eq!(peer.connect_session(name, false, 0), present, "{name}");
        }
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_farewell_may_change_the_expiry() {
    for_each_v5_variant(|peer| {
        peer.connect_session("it", false, LONG_S);
        let expires_now = json!({ "properties": { "session_expiry_s": 0 } });
        peer.send_command("disconnect", "it", expires_now);
        peer.next_event("it", "closed");
        assert!(!peer.connect_session("it", false, 0));
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_message_expires_while_its_subscriber_is_away() {
    for_each_v5_variant(|peer| {
        peer.connect_session("it", false, LONG_S);
        peer.subscribe("it", &[("t", 1)]);
        peer.disconnect("it");
        peer.connect("publisher", json!({}));
        for (data, expiry_s) in [("long", 100), ("short", 1)] {
            let options =
                json!({ "topic": "t", "payload": data, "properties": { "expiry_s": expiry_s } });
            peer.publish_with("publisher", options);
        }
        peer.broker.await_kept(&peer.unique_name("t"), 1);
        peer.connect_session("it", false, LONG_S);
        let message = peer.message("it");
        assert_eq!(message.data, "long");
        // The message carries the rest of its expiry: the time that it spent in the server is deducted.
        let remaining_s = message.properties["expiry_s"].as_u64().expect("an expiry");
        assert!((1..100).contains(&remaining_s), "{remaining_s}");
        peer.expect_quiet("it");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_retained_message_expires() {
    for_each_v5_variant(|peer| {
        peer.connect("it", json!({}));
        let options = json!({ "topic": "t", "payload": "x", "retain": true, "properties": { "expiry_s": 1 } });
        peer.publish_with("it", options);
        peer.broker.await_kept(&peer.unique_name("t"), 0);
        peer.subscribe("it", &[("t", 1)]);
        peer.expect_quiet("it");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_client_without_a_name_gets_one() {
    for_each_variant(|peer| {
        let connack = peer.connect("it", json!({ "id": "" }));
        if peer.is_v5() {
            let id = connack["properties"]["assigned_id"]
                .as_str()
                .expect("an id");
            assert!(!id.is_empty());
        }
        peer.subscribe("it", &[("t", 1)]);
        peer.publish("it", "t", "x", 1);
        assert_eq!(peer.message("it").data, "x");
    });
}

/// This test uses Paho only, since mqtt.js does not acknowledge on command.
#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn no_more_come_than_the_client_will_receive_at_once() {
    for_each_v5_variant(|peer| {
        if peer.variant.library != super::Library::Paho || !peer.broker.is_crore() {
            return; // Mosquitto 2.0 sends more after the first acknowledgement
        }
        let options = json!({
            "manual_ack": true,
            "clean": false,
            "properties": { "receive_max": 2, "session_expiry_s": LONG_S },
        });
        peer.connect("it", options.clone());
        peer.subscribe("it", &[("t", 1), ("other", 1)]);
        peer.connect("publisher", json!({}));
        for data in ["one", "two", "three", "four"] {
            peer.publish("publisher", "t", data, 1);
        }
        let (first, second) = (peer.message("it"), peer.message("it"));
        assert_eq!((first.data.as_str(), second.data.as_str()), ("one", "two"));
        peer.expect_quiet("it");
        // A message of QoS 0 does not wait for acknowledgements, if it overtakes no other message of its topic.
        peer.publish("publisher", "other", "at once", 0);
        assert_eq!(peer.message("it").data, "at once");
        peer.send_command("ack", "it", ack(first.mid));
        assert_eq!(peer.message("it").data, "three");
        // After a reconnect, unacknowledged messages come again first, with their packet ids.
        peer.cut("it");
        peer.connect("it", options);
        let (again, next) = (peer.message("it"), peer.message("it"));
        assert_eq!(
            (again.data.as_str(), again.mid, again.dup),
            ("two", second.mid, true)
        );
        assert_eq!((next.data.as_str(), next.dup), ("three", true));
        for message in [again, next] {
            peer.send_command("ack", "it", ack(message.mid));
        }
        assert_eq!(peer.message("it").data, "four");
        peer.expect_quiet("it");
    });
}

fn ack(mid: u64) -> Value {
    json!({ "mid": mid, "qos": 1 })
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn sessions_with_different_names_are_different() {
    for_each_variant(|peer: &mut Peer| {
        for name in ["a", "b"] {
            peer.connect_session(name, false, LONG_S);
            peer.subscribe(name, &[(name, 1)]);
            peer.disconnect(name);
        }
        peer.connect("publisher", json!({}));
        for topic in ["a", "b"] {
            peer.publish("publisher", topic, topic, 1);
        }
        for name in ["b", "a"] {
            assert!(peer.connect_session(name, false, LONG_S));
            assert_eq!(peer.message(name).data, name);
            peer.expect_quiet(name);
        }
    });
}
