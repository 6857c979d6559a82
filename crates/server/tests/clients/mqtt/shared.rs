//! Tests shared subscriptions: each message goes to one member of the group.

use super::{for_each_v5_variant, for_each_variant};
use serde_json::json;

/// Number of messages: enough that every member is expected to get some.
const MANY: usize = 60;

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn each_message_goes_to_one_member() {
    for_each_variant(|peer| {
        for name in ["a", "b", "alone"] {
            peer.connect(name, json!({}));
        }
        for name in ["a", "b"] {
            assert_eq!(peer.subscribe(name, &[("$share/g/t/+", 1)]), [1]);
        }
        peer.subscribe("alone", &[("$share/other/t/+", 1)]);
        peer.connect("publisher", json!({}));
        let expected: Vec<String> = (0..MANY).map(|n| format!("{n:03}")).collect();
        for data in &expected {
            peer.publish("publisher", &format!("t/{data}"), data, 1);
        }
        // The other group receives all messages.
        assert_eq!(peer.data("alone", MANY).len(), MANY);
        let mut received_data = Vec::new();
        for name in ["a", "b"] {
            let own_topics = peer.remaining_data(name);
            assert!(!own_topics.is_empty(), "{name} got nothing");
            received_data.extend(own_topics);
        }
        received_data.sort();
        assert_eq!(received_data, expected);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_member_that_leaves_is_not_chosen() {
    for_each_variant(|peer| {
        let will =
            json!({ "topic": peer.unique_name("left"), "payload": "", "qos": 1, "retain": false });
        for name in ["stays", "unsubscribes", "leaves"] {
            peer.connect(name, json!({ "will": will }));
            peer.subscribe(name, &[("$share/g/t", 1)]);
        }
        peer.unsubscribe("unsubscribes", &["$share/g/t"]);
        peer.connect("publisher", json!({}));
        peer.subscribe("publisher", &[("left", 1)]);
        peer.cut("leaves");
        // When the will has arrived, the server has seen the end of the connection.
        peer.message("publisher");
        let expected: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        for data in &expected {
            peer.publish("publisher", "t", data, 1);
        }
        assert_eq!(peer.data("stays", expected.len()), expected);
        peer.expect_quiet("unsubscribes");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_shared_subscription_beside_one_of_its_own() {
    for_each_variant(|peer| {
        peer.connect("it", json!({}));
        peer.subscribe("it", &[("$share/g/t", 1)]);
        peer.connect("plain", json!({}));
        peer.subscribe("plain", &[("t", 1)]);
        peer.publish("it", "t", "x", 1);
        assert_eq!(peer.data("it", 1), ["x"]);
        assert_eq!(peer.data("plain", 1), ["x"]);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn retained_messages_do_not_come_to_a_group() {
    for_each_v5_variant(|peer| {
        if !peer.broker.is_crore() {
            return; // Mosquitto 2.0 sends them, against section 3.8.4
        }
        peer.connect("it", json!({}));
        peer.retain("it", "t", "kept");
        peer.subscribe("it", &[("$share/g/t", 1)]);
        peer.expect_quiet("it");
        peer.retain("it", "t", "");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn no_local_may_not_be_asked_for() {
    for_each_v5_variant(|peer| {
        if !peer.broker.is_crore() {
            return; // Mosquitto 2.0 takes it, against [MQTT-3.8.3-4]
        }
        peer.connect("it", json!({}));
        let filter = format!("$share/g/{}", peer.unique_name("t"));
        let options = json!({ "filters": [{ "filter": filter, "qos": 1, "no_local": true }] });
        peer.send_command("subscribe", "it", options);
        assert_eq!(peer.next_event("it", "closed")["reason"], 0x82);
    });
}
