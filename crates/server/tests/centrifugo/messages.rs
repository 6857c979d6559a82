//! Tests publications: published over each protocol, received in each encoding, by clients with one subscription and with many.

use serde_json::json;

use crate::client::{Client, server};
use crate::support::http::{Conn, publish};
use crate::support::stream::Stream;
use crate::support::ws::Ws;

#[test]
fn publication_reaches_each_subscriber_with_its_position() {
    let server = server();
    let mut clients = [(); 3].map(|()| Client::connected(&server));
    let begins = clients.each_mut().map(|client| client.subscribe("news"));
    let mut publisher = Client::connected(&server);
    publisher.publish("news", json!({"text": "one"}));
    publisher.publish("news", json!(["two"]));
    for (client, begin) in clients.iter_mut().zip(begins) {
        let mut last = begin["offset"].as_u64().unwrap_or(0);
        for expected in [json!({"text": "one"}), json!(["two"])] {
            let push = client.push();
            assert_eq!(
                (&push["channel"], &push["pub"]["data"]),
                (&json!("news"), &expected)
            );
            let offset = push["pub"]["offset"].as_u64().expect("an offset");
            assert!(offset > last && offset < 1 << 53, "{push}");
            last = offset;
        }
    }
}

#[test]
fn client_of_fifty_channels_gets_each_message_once() {
    let server = server();
    let mut client = Client::connected(&server);
    let channels: Vec<String> = (0..50).map(|n| format!("tickers/{n}")).collect();
    for channel in &channels {
        client.subscribe(channel);
    }
    for (n, channel) in channels.iter().enumerate() {
        publish(&server, channel, n.to_string());
    }
    let mut heard: Vec<(String, u64)> = Vec::new();
    for _ in &channels {
        let push = client.push();
        let channel = push["channel"].as_str().expect("a channel").to_string();
        heard.push((channel, push["pub"]["data"].as_u64().expect("a number")));
    }
    // Messages of different channels have no common order.
    heard.sort_by_key(|(_, n)| *n);
    let expected: Vec<_> = (0..50).map(|n| (format!("tickers/{n}"), n)).collect();
    assert_eq!(heard, expected);
    client.publish("tickers/7", json!("the last one"));
    assert_eq!(client.data("tickers/7"), json!("the last one"));
}

#[test]
fn data_that_is_not_json_comes_as_a_string() {
    let server = server();
    let mut client = Client::connected(&server);
    client.subscribe("a");
    publish(&server, "a", "just \"text\"");
    publish(&server, "a", "{\"spread\":\n 1}");
    publish(&server, "a", b"\xff\x00");
    assert_eq!(client.data("a"), json!("just \"text\""));
    assert_eq!(client.data("a"), json!({"spread": 1}));
    let push = client.push();
    assert_eq!(push["pub"]["data"], "/wA=");
    assert_eq!(push["pub"]["tags"], json!({"encoding": "base64"}));
}

#[test]
fn other_protocols_get_what_a_client_publishes() {
    let server = server();
    let mut ws = Ws::open(&server, "/sub/a", &[]);
    let mut stream = Stream::open(&server, "/sub/a", &[]);
    server.await_subscribers("a", 2);
    Client::connected(&server).publish("a", json!({"n": 1}));
    assert_eq!(ws.texts(1), ["{\"n\":1}"]);
    assert_eq!(stream.event().expect("an event").data, "{\"n\":1}");
}

#[test]
fn protobuf_is_chosen_by_subprotocol_or_by_query() {
    let server = server();
    let mut json = Client::connected(&server);
    json.subscribe("a");
    let offered = [("Sec-WebSocket-Protocol", "centrifuge-protobuf")];
    let by_query = format!("{}?cf_protocol=protobuf", crate::client::PATH);
    for (target, headers) in [(crate::client::PATH, &offered[..]), (&by_query, &[])] {
        let mut ws = Ws::open(&server, target, headers);
        let chosen = ws.head.header("sec-websocket-protocol");
        let expected = headers.first().map(|(_, name)| (*name).to_string());
        assert_eq!(chosen, expected);
        // connect {} with the id 1, and subscribe {channel: "a"} with the id 2.
        let frame = b"\x04\x08\x01\x22\x00\x07\x08\x02\x2a\x03\x0a\x01a";
        ws.send(crate::support::ws::FIN | crate::support::ws::BINARY, frame);
        let reply = ws.message();
        assert_eq!(reply.opcode(), crate::support::ws::BINARY);
        // The id 1, and connect (5).
        assert_eq!(reply.payload[1..4], [0x08, 1, 0x2a]);
        let reply = ws.message();
        assert_eq!(reply.payload[1..4], [0x08, 2, 0x32]);
        publish(&server, "a", b"\xff bytes");
        let push = ws.message().payload;
        // push (4) { channel (2), pub (4) { data (4) } }.
        let data = b"\x22\x07\xff bytes";
        assert!(
            push.windows(data.len()).any(|part| part == data),
            "{push:?}"
        );
        assert_eq!(json.push()["pub"]["data"], "/yBieXRlcw==");
    }
}

#[test]
fn a_large_message_arrives_whole() {
    let server = server();
    let mut client = Client::connected(&server);
    client.subscribe("a");
    client.subscribe("b");
    let large = format!("\"{}\"", "x".repeat(700_000));
    for topic in ["a", "b"] {
        let mut conn = Conn::open(&server);
        let answer = conn.request("POST", &format!("/pub/{topic}"), &[], large.as_bytes());
        assert_eq!(answer.status, 201);
        assert_eq!(client.data(topic).to_string(), large);
    }
}
