//! Tests wills: messages that the server publishes when a connection ends without a DISCONNECT.

use super::peer::Peer;
use super::{for_each_v5_variant, for_each_variant};
use serde_json::{Value, json};

fn will(peer: &Peer, topic: &str) -> Value {
    json!({ "topic": peer.unique_name(topic), "payload": "gone", "qos": 1, "retain": false })
}

/// A subscriber of `t/#` and a client whose will goes to `t/will`, with a delay.
fn start(peer: &mut Peer, delay_s: u32, session_expiry_s: u32) {
    peer.connect("subscriber", json!({}));
    peer.subscribe("subscriber", &[("t/#", 1)]);
    return_with_will(peer, delay_s, session_expiry_s);
}

fn return_with_will(peer: &mut Peer, delay_s: u32, session_expiry_s: u32) {
    let mut will = will(peer, "t/will");
    if peer.is_v5() {
        will["properties"] = json!({ "delay_s": delay_s });
    }
    let properties = json!({ "session_expiry_s": session_expiry_s });
    let clean = !peer.is_v5();
    peer.connect(
        "mortal",
        json!({ "will": will, "clean": clean, "properties": properties }),
    );
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_cut_connection_leaves_its_will() {
    for_each_variant(|peer| {
        start(peer, 0, 0);
        peer.cut("mortal");
        let message = peer.message("subscriber");
        assert_eq!(
            (message.topic.as_str(), message.data.as_str()),
            ("t/will", "gone")
        );
        assert_eq!((message.qos, message.retain), (1, false));
        peer.expect_quiet("subscriber");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_farewell_takes_the_will_along() {
    for_each_variant(|peer| {
        start(peer, 0, 0);
        peer.disconnect("mortal");
        peer.expect_quiet("subscriber");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_will_may_be_retained() {
    for_each_variant(|peer| {
        let mut last = will(peer, "t/kept");
        last["retain"] = true.into();
        peer.connect("mortal", json!({ "will": last }));
        peer.connect("watcher", json!({}));
        peer.subscribe("watcher", &[("t/#", 1)]);
        peer.cut("mortal");
        peer.message("watcher");
        peer.connect("late", json!({}));
        peer.subscribe("late", &[("t/#", 1)]);
        let message = peer.message("late");
        assert_eq!((message.data.as_str(), message.retain), ("gone", true));
        peer.retain("late", "t/kept", "");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_farewell_may_ask_for_the_will() {
    for_each_v5_variant(|peer| {
        start(peer, 0, 0);
        peer.send_command("disconnect", "mortal", json!({ "reason": 4 }));
        assert_eq!(peer.message("subscriber").data, "gone");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_takeover_leaves_the_will_of_a_session_that_ends() {
    for_each_variant(|peer| {
        start(peer, 0, 0);
        let id = peer.unique_name("mortal");
        peer.connect("heir", json!({ "id": id }));
        assert_eq!(peer.message("subscriber").data, "gone");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_will_waits_for_its_delay() {
    for_each_v5_variant(|peer| {
        start(peer, 2, 60);
        let at_once = will(peer, "t/at-once");
        peer.connect("other", json!({ "will": at_once }));
        peer.cut("mortal");
        peer.cut("other");
        assert_eq!(peer.message("subscriber").topic, "t/at-once");
        assert_eq!(peer.message("subscriber").topic, "t/will");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn client_that_returns_within_the_delay_has_no_will_sent() {
    for_each_v5_variant(|peer| {
        start(peer, 2, 60);
        peer.cut("mortal");
        return_with_will(peer, 2, 60);
        // Another client dies later and does not return.
        let mut later = will(peer, "t/later");
        later["properties"] = json!({ "delay_s": 2 });
        let options = json!({ "will": later, "properties": { "session_expiry_s": 60 } });
        peer.connect("other", options);
        peer.cut("other");
        assert_eq!(peer.message("subscriber").topic, "t/later");
        peer.expect_quiet("subscriber");
        peer.disconnect("mortal");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_end_of_the_session_is_the_end_of_the_delay() {
    for_each_v5_variant(|peer| {
        start(peer, 1000, 1);
        peer.cut("mortal");
        assert_eq!(peer.message("subscriber").data, "gone");
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_will_has_its_properties() {
    for_each_v5_variant(|peer| {
        let mut last = will(peer, "t/will");
        last["properties"] = json!({
            "content_type": "text/x-last",
            "response_topic": "answers",
            "correlation": "7",
            "payload_format": 1,
            "user": [["a", "1"], ["a", "2"]],
        });
        let expected = last["properties"].clone();
        peer.connect("mortal", json!({ "will": last }));
        peer.connect("watcher", json!({}));
        peer.subscribe("watcher", &[("t/#", 1)]);
        peer.cut("mortal");
        assert_eq!(peer.message("watcher").properties, expected);
    });
}
