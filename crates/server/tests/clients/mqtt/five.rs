//! Tests the options of a subscription in MQTT 5, and the capabilities that the server announces.

use super::for_each_v5_variant;
use super::peer::{Library, Peer};
use serde_json::{Value, json};

fn subscription_with(filter: &str, option: &str, value: Value) -> Value {
    let mut subscription = json!({ "filter": filter, "qos": 1 });
    subscription[option] = value;
    json!({ "filters": [subscription] })
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn no_local_keeps_a_client_s_own_messages_away() {
    for_each_v5_variant(|peer| {
        for name in ["it", "other"] {
            peer.connect(name, json!({}));
        }
        peer.subscribe_with("it", subscription_with("t", "no_local", true.into()));
        peer.publish("it", "t", "own", 1);
        peer.publish("other", "t", "foreign", 1);
        assert_eq!(peer.message("it").data, "foreign");
        peer.expect_quiet("it");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn retain_as_published_keeps_the_mark() {
    for_each_v5_variant(|peer| {
        peer.connect("it", json!({}));
        peer.subscribe_with("it", subscription_with("t", "as_published", true.into()));
        peer.retain("it", "t", "kept");
        assert!(peer.message("it").retain);
        peer.publish("it", "t", "passing", 1);
        assert!(!peer.message("it").retain);
        peer.retain("it", "t", "");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn retain_handling_says_when_retained_messages_come() {
    for_each_v5_variant(|peer| {
        peer.connect("it", json!({}));
        peer.retain("it", "t", "kept");
        peer.subscribe_with("it", subscription_with("t", "handling", 2.into()));
        peer.expect_quiet("it");
        peer.unsubscribe("it", &["t"]);
        peer.subscribe_with("it", subscription_with("t", "handling", 1.into()));
        assert_eq!(peer.message("it").data, "kept");
        peer.subscribe_with("it", subscription_with("t", "handling", 1.into()));
        peer.expect_quiet("it");
        peer.subscribe_with("it", subscription_with("t", "handling", 0.into()));
        assert_eq!(peer.message("it").data, "kept");
        peer.retain("it", "t", "");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_message_names_the_subscriptions_that_it_comes_for() {
    for_each_v5_variant(|peer| {
        peer.connect("it", json!({}));
        let filters = [
            ("a/b", json!({ "identifier": 1 })),
            ("a/+", json!({ "identifier": 268_435_455 })),
        ];
        for (filter, properties) in filters {
            let filters = json!([{ "filter": filter, "qos": 1 }]);
            peer.subscribe_with(
                "it",
                json!({ "filters": filters, "properties": properties }),
            );
        }
        peer.subscribe("it", &[("c", 1)]);
        let expected = [
            ("a/b", vec![1, 268_435_455]),
            ("a/x", vec![268_435_455]),
            ("c", vec![]),
        ];
        for (topic, identifiers) in expected {
            peer.publish("it", topic, topic, 1);
            let mut received_values: Vec<u64> = Vec::new();
            // A broker may send one copy with all identifiers, or a copy for each (MQTT 5.0 section 3.3.4). Crore sends one.
            while received_values.len() < identifiers.len() {
                received_values.extend(identifiers_of(&peer.message("it").properties));
            }
            if identifiers.is_empty() {
                received_values = identifiers_of(&peer.message("it").properties);
            }
            received_values.sort_unstable();
            assert_eq!(received_values, identifiers, "{topic}");
        }
    });
}

fn identifiers_of(properties: &Value) -> Vec<u64> {
    let list = properties["identifier"].as_array();
    list.into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect()
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_message_that_is_too_large_for_a_client_is_left_out() {
    for_each_v5_variant(|peer| {
        peer.connect("small", json!({ "properties": { "packet_max": 200 } }));
        peer.connect("large", json!({}));
        for name in ["small", "large"] {
            peer.subscribe(name, &[("t", 1)]);
        }
        let large = "x".repeat(300);
        for data in [large.as_str(), "fits"] {
            peer.publish("large", "t", data, 1);
        }
        assert_eq!(peer.data("small", 1), ["fits"]);
        assert_eq!(peer.data("large", 2), [large.as_str(), "fits"]);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_server_says_what_it_can() {
    for_each_v5_variant(|peer| {
        let connack = peer.connect("it", json!({}));
        let connack_properties = &connack["properties"];
        // A capability that the CONNACK does not mention is available. All of these are available.
        for name in [
            "qos_max",
            "retain_available",
            "wildcards_available",
            "identifiers_available",
            "shared_available",
        ] {
            let value = &connack_properties[name];
            let available = value.is_null() || *value == 1 || *value == true;
            assert!(available, "{name}: {connack_properties}");
        }
        // Maximum QoS is mentioned only if it is not 2.
        assert!(
            connack_properties["qos_max"].is_null(),
            "{connack_properties}"
        );
    });
}

/// mqtt.js assigns topic aliases by itself. Paho sends the aliases that it is told to.
#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_client_s_aliases_stand_for_topics() {
    for_each_v5_variant(|peer| {
        peer.connect("subscriber", json!({}));
        peer.subscribe("subscriber", &[("a/+", 1)]);
        let connack = peer.connect("it", json!({ "auto_alias": true }));
        let alias_max = connack["properties"]["alias_max"].as_u64().unwrap_or(0);
        assert!(alias_max >= 1, "the server takes aliases");
        let mut expected = Vec::new();
        for number in 0..6 {
            let topic = format!("a/{}", number % 2);
            send_aliased(peer, &topic, number % 2 + 1, number < 2);
            expected.push(topic);
        }
        let received_values: Vec<String> = expected
            .iter()
            .map(|_| peer.message("subscriber").topic)
            .collect();
        assert_eq!(received_values, expected);
    });
}

fn send_aliased(peer: &mut Peer, topic: &str, alias: usize, first: bool) {
    let mut options = json!({ "payload": "x", "qos": 1, "retain": false });
    options["topic"] = peer.unique_name(topic).into();
    if peer.variant.library == Library::Paho {
        options["properties"] = json!({ "alias": alias });
        if !first {
            options["topic"] = "".into();
        }
    }
    peer.send_command("publish", "it", options);
    assert_eq!(peer.next_event("it", "published")["reason"], 0);
}

/// mqtt.js resolves the aliases that the server assigns. A library that did not ask for aliases gets none.
#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_server_s_aliases_stand_for_topics() {
    for_each_v5_variant(|peer| {
        let alias_max = if peer.variant.library == Library::MqttJs {
            3
        } else {
            0
        };
        peer.connect("it", json!({ "properties": { "alias_max": alias_max } }));
        peer.subscribe("it", &[("a/+", 1)]);
        for number in 0..20 {
            let topic = format!("a/{}", number % 5);
            peer.publish("it", &topic, "x", 1);
            assert_eq!(peer.message("it").topic, topic);
        }
    });
}
