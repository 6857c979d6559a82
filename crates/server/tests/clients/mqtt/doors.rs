//! Tests messages between MQTT and the other protocols. A message published over MQTT is delivered over HTTP, Server-Sent Events and
//! WebSocket, and the reverse, with its content type, time to live, key and event name.

use super::peer::{Library, Peer, Variant};
use crate::client::{Client, curl};
use crate::support::Server;
use crate::support::broker::Broker;
use serde_json::json;
use std::sync::Arc;

/// A Crore server and an MQTT 5 client. `None` if the tests run against the reference broker.
fn start() -> Option<Peer> {
    let broker = Broker::start();
    if !broker.is_crore() {
        return None;
    }
    let variant = Variant {
        library: Library::MqttJs,
        transport: "tcp",
        version: 5,
    };
    let mut peer = Peer::start(variant, &Arc::new(broker));
    peer.connect("it", json!({}));
    Some(peer)
}

fn server(peer: &Peer) -> &Server {
    peer.broker.server()
}

/// Publishes with `curl`.
fn post(peer: &Peer, topic: &str, headers: &[&str], data: &str) {
    let url = server(peer).url(&format!("/pub/{}", peer.unique_name(topic)));
    let mut args = vec!["--fail", "--data-binary", data, &url];
    for header in headers {
        args.extend(["-H", header]);
    }
    curl(&args);
}

/// The head of a long-poll's answer, in lower case, and the body.
fn poll(peer: &Peer, topic: &str) -> (String, String) {
    let url = server(peer).url(&format!("/sub/{}?since=oldest", peer.unique_name(topic)));
    let answer = curl(&["-i", &url]);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), body.to_string())
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn message_of_curl_arrives_over_mqtt() {
    let Some(mut peer) = start() else { return };
    peer.subscribe("it", &[("t", 1)]);
    let headers = [
        "Content-Type: application/json",
        "Crore-TTL: 100",
        "Crore-Key: k1",
        "X-EventSource-Event: score",
    ];
    post(&peer, "t", &headers, "{}");
    let message = peer.message("it");
    assert_eq!(message.data, "{}");
    let properties = &message.properties;
    assert_eq!(properties["content_type"], "application/json");
    let remaining_s = properties["expiry_s"].as_u64().expect("an expiry");
    assert!((98..=100).contains(&remaining_s), "{remaining_s}");
    let user = properties["user"].as_array().expect("user properties");
    for pair in [json!(["crore-key", "k1"]), json!(["crore-event", "score"])] {
        assert!(user.contains(&pair), "{pair} in {properties}");
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn message_of_mqtt_arrives_over_http() {
    let Some(mut peer) = start() else { return };
    let properties = json!({
        "content_type": "application/json",
        "expiry_s": 100,
        "user": [["crore-key", "k1"], ["crore-event", "score"]],
    });
    let options = json!({ "topic": "t", "payload": "{\"a\": 1}", "properties": properties });
    assert_eq!(peer.publish_with("it", options) & 0x80, 0);
    let (head, body) = poll(&peer, "t");
    assert_eq!(body, "{\"a\": 1}");
    for line in [
        "content-type: application/json",
        "crore-key: k1",
        "crore-event: score",
    ] {
        assert!(head.contains(line), "{line} in {head}");
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_message_of_mqtt_expires_in_the_log() {
    let Some(mut peer) = start() else { return };
    for (data, expiry_s) in [("short", 1), ("long", 100)] {
        let properties = json!({ "expiry_s": expiry_s });
        let options = json!({ "topic": "t", "payload": data, "properties": properties });
        peer.publish_with("it", options);
    }
    server(&peer).await_kept(&peer.unique_name("t"), 1);
    assert_eq!(poll(&peer, "t").1, "long");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pages_and_devices_share_a_topic() {
    let Some(mut peer) = start() else { return };
    peer.subscribe("it", &[("t", 1)]);
    let topic = peer.unique_name("t");
    let url = server(&peer).url(&format!("/sub/{topic}"));
    let stream = Client::python("httpx_stream.py", &[&url, "live"]);
    let socket = Client::node("ws_client.mjs", &[&url, "live"]);
    let publish = server(&peer).url(&format!("/pub/{topic}"));
    let mut publisher = Client::node("ws_client.mjs", &[&publish, "live"]);
    server(&peer).await_subscribers(&topic, 3);
    publisher.next("open");
    for (number, text) in ["from MQTT \u{2713}", "from curl", "from a WebSocket"]
        .iter()
        .enumerate()
    {
        match number {
            0 => assert_eq!(peer.publish("it", "t", text, 1), 0),
            1 => post(&peer, "t", &["Content-Type: text/plain"], text),
            _ => publisher.tell(&json!({ "send": text })),
        }
        assert_eq!(peer.message("it").data, *text);
        for client in [&stream, &socket] {
            assert_eq!(client.messages(1).0, [*text]);
        }
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_gets_what_curl_published_while_it_was_away() {
    let Some(mut peer) = start() else { return };
    peer.connect_session("away", false, 600);
    peer.subscribe("away", &[("t", 1)]);
    peer.disconnect("away");
    for data in ["one", "two"] {
        post(&peer, "t", &[], data);
    }
    assert!(peer.connect_session("away", false, 600));
    // A message published over HTTP counts as QoS 1, so it is kept for the session.
    assert_eq!(peer.data("away", 2), ["one", "two"]);
    peer.expect_quiet("away");
}
