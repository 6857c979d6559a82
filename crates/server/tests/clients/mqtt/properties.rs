//! Tests that subscribers receive the MQTT 5 properties of a message.

use super::for_each_v5_variant;
use serde_json::json;

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn properties_are_carried_through() {
    for_each_v5_variant(|peer| {
        let expected = json!({
            "payload_format": 1,
            "content_type": "application/json; charset=utf-8",
            "response_topic": "answers/7",
            "correlation": "request 7",
            "user": [["a", "1"], ["a", "2"], ["\u{fc}nicode", "\u{2713}"], ["empty", ""]],
        });
        for qos in 0..=2 {
            let name = format!("subscriber{qos}");
            peer.connect(&name, json!({}));
            peer.subscribe(&name, &[("t", qos)]);
        }
        peer.connect("it", json!({}));
        peer.publish_with(
            "it",
            json!({ "topic": "t", "payload": "{}", "qos": 2, "properties": expected }),
        );
        for qos in 0..=2 {
            let received = peer.message(&format!("subscriber{qos}")).properties;
            assert_eq!(received, expected);
        }
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_message_without_properties_has_none() {
    for_each_v5_variant(|peer| {
        peer.connect("it", json!({}));
        peer.subscribe("it", &[("t", 1)]);
        peer.publish("it", "t", "x", 1);
        assert_eq!(peer.message("it").properties, json!({}));
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_retained_message_keeps_its_properties() {
    for_each_v5_variant(|peer| {
        let expected = json!({ "content_type": "text/x", "user": [["k", "v"]] });
        peer.connect("it", json!({}));
        let options =
            json!({ "topic": "t", "payload": "x", "retain": true, "properties": expected });
        peer.publish_with("it", options);
        peer.subscribe("it", &[("t", 1)]);
        assert_eq!(peer.message("it").properties, expected);
        peer.retain("it", "t", "");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_keeps_what_came_while_it_was_away_with_its_properties() {
    for_each_v5_variant(|peer| {
        let expected =
            json!({ "content_type": "text/x", "correlation": "1", "user": [["k", "v"]] });
        peer.connect_session("it", false, 600);
        peer.subscribe("it", &[("t", 1)]);
        peer.disconnect("it");
        peer.connect("publisher", json!({}));
        peer.publish_with(
            "publisher",
            json!({ "topic": "t", "payload": "x", "properties": expected }),
        );
        peer.connect_session("it", false, 600);
        assert_eq!(peer.message("it").properties, expected);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_request_is_answered_where_it_says() {
    for_each_v5_variant(|peer| {
        for name in ["asks", "answers"] {
            peer.connect(name, json!({}));
        }
        peer.subscribe("asks", &[("answers/1", 1)]);
        peer.subscribe("answers", &[("ask", 1)]);
        let properties =
            json!({ "response_topic": peer.unique_name("answers/1"), "correlation": "c1" });
        peer.publish_with(
            "asks",
            json!({ "topic": "ask", "payload": "?", "properties": properties }),
        );
        let request = peer.message("answers");
        let response_topic = request.properties["response_topic"]
            .as_str()
            .expect("a topic");
        let response = json!({
            "topic": response_topic.strip_prefix(&peer.unique_name("")).expect("our own"),
            "payload": "!",
            "properties": { "correlation": request.properties["correlation"] },
        });
        peer.publish_with("answers", response);
        let answer = peer.message("asks");
        assert_eq!(
            (answer.data.as_str(), &answer.properties["correlation"]),
            ("!", &json!("c1"))
        );
    });
}
