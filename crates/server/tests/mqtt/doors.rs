//! Tests messages between HTTP and MQTT: how HTTP headers become MQTT properties and the reverse, for each row of the table in
//! `docs/MQTT.md`.

use crate::support::broker::Broker;
use crate::support::connect;
use crate::support::mqtt::{Conn, ReceivedPacket, message};
use crore_wire::mqtt::{PacketType, PropertyWriter, ReasonCode, Version};
use std::collections::BTreeSet;
use std::io::{Read, Write};

/// Sends an HTTP request. Returns the head and the body of the response.
pub fn http(broker: &Broker, request: &str, headers: &[&str], body: &[u8]) -> (String, Vec<u8>) {
    let mut stream = connect(([127, 0, 0, 1], broker.tcp_port()).into());
    let mut head = format!("{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n");
    for header in headers {
        head += &format!("{header}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(body).expect("sent");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("answered");
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.expect("a head") + 4;
    let body = all.split_off(end);
    (String::from_utf8(all).expect("text"), body)
}

/// All values of a header, in order.
fn header<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(": "))
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
        .collect()
}

/// Publishes over HTTP with these headers, and checks the message that an MQTT 5 subscriber receives.
fn from_http(headers: &[&str], body: &[u8], check: impl FnOnce(&crore_wire::mqtt::Publish<'_>)) {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    conn.subscribe("doors", 2);
    let (head, _) = http(&broker, "POST /pub/doors", headers, body);
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    let received = conn.packet();
    assert_eq!(received.publish().payload, body);
    check(&received.publish());
}

#[test]
fn a_content_type_comes_from_http() {
    from_http(&["Content-Type: text/x; a=b"], b"x", |publish| {
        assert_eq!(publish.properties.content_type(), Some("text/x; a=b"));
    });
}

#[test]
fn text_from_http_has_the_payload_format_of_text() {
    from_http(&[], "\u{2713}".as_bytes(), |publish| {
        assert_eq!(publish.properties.payload_format_indicator(), Some(1));
        assert_eq!(publish.qos.bits(), 1, "the QoS of HTTP");
    });
}

#[test]
fn bytes_from_http_have_no_payload_format_of_text() {
    from_http(&[], b"\xff", |publish| {
        assert_ne!(publish.properties.payload_format_indicator(), Some(1));
    });
    from_http(
        &["Content-Type: application/octet-stream"],
        b"x",
        |publish| {
            assert_ne!(publish.properties.payload_format_indicator(), Some(1));
        },
    );
}

#[test]
fn a_time_to_live_from_http_is_an_expiry() {
    from_http(&["Crore-TTL: 600"], b"x", |publish| {
        let left_s = publish.properties.message_expiry_interval_s();
        assert!(
            left_s.is_some_and(|left_s| (1..=600).contains(&left_s)),
            "{left_s:?}"
        );
    });
}

/// With a time to live of 0 the message is not kept. Present subscribers receive it, whether by topic, by filter or in a group.
#[test]
fn message_with_a_time_to_live_of_0_reaches_present_subscribers() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    for filter in ["doors", "doors/#", "$share/g/doors"] {
        for qos in [0, 1, 2] {
            let mut conn = Conn::connected(&broker, Version::V5, "it");
            conn.subscribe(filter, qos);
            let (head, _) = http(&broker, "POST /pub/doors", &["Crore-TTL: 0"], b"now");
            assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
            assert_eq!(conn.packet().publish().payload, b"now", "{filter} {qos}");
        }
    }
}

#[test]
fn key_event_and_properties_from_http_are_user_properties() {
    let headers = [
        "Crore-Key: k1",
        "X-EventSource-Event: greeting",
        "Crore-Property: a=1",
        "Crore-Property: b=2=3",
        "Crore-Property: a=4",
    ];
    from_http(&headers, b"x", |publish| {
        let user: Vec<_> = publish.properties.user_properties().collect();
        let own = |name: &str| user.iter().filter(|(key, _)| *key == name).count();
        assert_eq!((own("crore-key"), own("crore-event")), (1, 1), "{user:?}");
        assert!(user.contains(&("crore-key", "k1")), "{user:?}");
        assert!(user.contains(&("crore-event", "greeting")), "{user:?}");
        let mut others = user.clone();
        others.retain(|(name, _)| !name.starts_with("crore-"));
        assert_eq!(others, [("a", "1"), ("b", "2=3"), ("a", "4")]);
    });
}

#[test]
fn message_retained_over_http_is_sent_over_mqtt() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    http(&broker, "POST /pub/doors", &["Crore-Retain: true"], b"kept");
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    conn.write(|out| out.extend_from_slice(b"\x82\x0b\0\x01\0\0\x05doors\x01"));
    let received = (0..2).map(|_| conn.packet()).collect::<Vec<_>>();
    let mut messages = received
        .iter()
        .filter_map(|received| match received.packet() {
            crore_wire::mqtt::Packet::Publish(publish) => {
                Some((publish.payload.to_vec(), publish.retain))
            }
            _ => None,
        });
    assert_eq!(messages.next(), Some((b"kept".to_vec(), true)));
}

#[test]
fn the_latest_values_of_a_topic_come_to_a_subscription_of_its_name() {
    let settings = "[[rule]]\nmatch = \"#\"\nkeep = \"latest\"\n";
    let broker = Broker::with(settings);
    if !broker.is_crore() {
        return;
    }
    for (key, text) in [("a", "1"), ("b", "2"), ("a", "3")] {
        let key = format!("Crore-Key: {key}");
        http(&broker, "POST /pub/doors", &[&key], text.as_bytes());
    }
    for filter in ["doors", "doors/#"] {
        let mut conn = Conn::connected(&broker, Version::V5, "it");
        conn.send_subscribe(filter, 1);
        // The SUBACK may come before the messages or between them.
        let packets: Vec<_> = (0..3).map(|_| conn.packet()).collect();
        let messages = packets
            .iter()
            .filter_map(|received| match received.packet() {
                crore_wire::mqtt::Packet::Publish(it) => Some((it.payload.to_vec(), it.retain)),
                _ => None,
            });
        let mut received: Vec<_> = messages.collect();
        received.sort();
        assert_eq!(
            received,
            [(b"2".to_vec(), true), (b"3".to_vec(), true)],
            "{filter}"
        );
    }
}

/// Receives and acknowledges retained messages until `payloads` has `count` of them.
fn receive_values(conn: &mut Conn, payloads: &mut BTreeSet<Vec<u8>>, count: usize) {
    while payloads.len() < count {
        let received = conn.packet();
        if let crore_wire::mqtt::Packet::Publish(it) = received.packet() {
            assert!(it.retain);
            payloads.insert(it.payload.to_vec());
            conn.acknowledge(PacketType::PubAck, it.packet_id.expect("an id").get());
        }
    }
}

#[test]
fn latest_values_are_sent_as_the_client_reads_and_continue_in_a_resumed_session() {
    let broker = Broker::with("[[rule]]\nmatch = \"#\"\nkeep = \"latest\"\n");
    if !broker.is_crore() {
        return;
    }
    let line = |n: u32| format!("{{\"topic\":\"doors\",\"key\":\"{n}\",\"data\":\"{n}\"}}\n");
    let lines: String = (0..300).map(line).collect();
    let ndjson = "Content-Type: application/x-ndjson";
    http(&broker, "POST /pub", &[ndjson], lines.as_bytes());
    let session = |clean| {
        Conn::with_properties(&broker, "it", clean, |set| {
            set.session_expiry_interval_s(600).receive_maximum(5);
        })
    };
    let (mut conn, _) = session(true);
    conn.subscribe("doors", 1);
    let mut payloads = BTreeSet::new();
    receive_values(&mut conn, &mut payloads, 150);
    conn.cut();
    let (mut conn, present) = session(false);
    assert!(present);
    receive_values(&mut conn, &mut payloads, 300);
    // A new message is not marked as retained.
    http(&broker, "POST /pub/doors", &["Crore-Key: 7"], b"new");
    let is_new = |received: &ReceivedPacket| match received.packet() {
        crore_wire::mqtt::Packet::Publish(it) => {
            assert_eq!(it.retain, it.payload != b"new");
            it.payload == b"new"
        }
        _ => false,
    };
    loop {
        let received = conn.packet();
        if is_new(&received) {
            break;
        }
        // The server sends the message again that was unacknowledged before the cut.
        conn.acknowledge(
            PacketType::PubAck,
            received.publish().packet_id.expect("an id").get(),
        );
    }
}

#[test]
fn purge_removes_the_retained_message() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    for text in ["kept", "kept as well"] {
        http(
            &broker,
            "POST /pub/doors",
            &["Crore-Retain: true"],
            text.as_bytes(),
        );
        let (head, body) = http(&broker, "DELETE /pub/doors?purge", &[], b"");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(body.starts_with(b"queued messages: 0"), "{body:?}");
        let mut conn = Conn::connected(&broker, Version::V5, "it");
        conn.subscribe("doors", 1);
        http(&broker, "POST /pub/doors", &[], b"live");
        assert_eq!(conn.packet().publish().payload, b"live");
    }
}

#[test]
fn poll_gets_all_mqtt_properties_of_a_message() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let mut properties = PropertyWriter::new();
    properties
        .payload_is_utf8(true)
        .message_expiry_interval_s(600);
    properties.content_type("text/x; a=b").expect("it fits");
    let user = [
        ("crore-key", "k1"),
        ("a", "1"),
        ("crore-event", "greeting"),
        ("a", "2"),
        ("crore-key", "k2"),
        ("bad", "\u{1f}"),
    ];
    for (name, value) in user {
        properties.user_property(name, value).expect("it fits");
    }
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    let mut publish = message("doors", 1, 1, b"data");
    publish.retain = true;
    publish.properties = properties.properties();
    conn.publish(&publish);
    let (_, reason) = conn.packet().ack(PacketType::PubAck);
    assert_eq!(reason, ReasonCode::NO_MATCHING_SUBSCRIBERS);
    let (head, body) = http(&broker, "GET /sub/doors", &[], b"");
    assert_eq!(body, b"data");
    assert_eq!(header(&head, "Content-Type"), ["text/x; a=b"]);
    assert_eq!(header(&head, "Crore-Key"), ["k1"], "the first one counts");
    assert_eq!(header(&head, "Crore-Event"), ["greeting"]);
    assert_eq!(
        header(&head, "Crore-Property"),
        ["a=1", "a=2"],
        "what a header can hold"
    );
    let left_s: u32 = header(&head, "Crore-TTL")[0].parse().expect("a number");
    assert!((1..=600).contains(&left_s), "{left_s}");
}

#[test]
fn mqtt_properties_are_not_shown_over_http() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let mut properties = PropertyWriter::new();
    properties.response_topic("answers").expect("it fits");
    properties.correlation_data(b"7").expect("it fits");
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    assert_eq!(conn.subscribe("doors", 1), ReasonCode::GRANTED_QOS_1);
    let mut publish = message("doors", 0, 0, b"\xff");
    publish.properties = properties.properties();
    conn.publish(&publish);
    let received = conn.packet();
    assert_eq!(
        received.publish().properties.response_topic(),
        Some("answers")
    );
    assert_eq!(
        received.publish().properties.correlation_data(),
        Some(&b"7"[..])
    );
    let (head, body) = http(&broker, "GET /sub/doors", &[], b"");
    assert_eq!(body, b"\xff");
    assert!(!head.to_ascii_lowercase().contains("answers"), "{head}");
}

/// The size of a response head that nginx accepts by default (`proxy_buffer_size`), and so does every client.
const HEAD_BYTES: usize = 4096;

#[test]
fn user_properties_leave_the_head_of_an_answer_small_and_the_envelope_has_all() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let long = "x".repeat(60_000);
    let (key, text) = ("k".repeat(255), "t".repeat(255));
    // The cases: many properties; a long one before and after one that fits; as many as a packet may have, with other long fields;
    // characters that no header may have.
    let properties: Vec<_> = (0..60)
        .map(|n| (format!("property-{n}"), "v".repeat(200)))
        .collect();
    let most: Vec<_> = (0..125)
        .map(|n| (n.to_string(), "\u{e9}".repeat(40)))
        .collect();
    let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
    for (user, held) in [
        (properties, 8),
        (vec![pair("a", "1"), pair("long", &long), pair("b", "2")], 2),
        (most, 20),
        (vec![pair("a", "1\n"), pair("b", "2")], 1),
    ] {
        let mut set = PropertyWriter::new();
        set.content_type(&text).expect("it fits");
        set.user_property("crore-key", &key).expect("it fits");
        set.user_property("crore-event", &text).expect("it fits");
        for (name, value) in &user {
            set.user_property(name, value).expect("it fits");
        }
        let mut publish = message("doors", 1, 1, b"x");
        publish.properties = set.properties();
        Conn::connected(&broker, Version::V5, "it").deliver(&publish);
        for target in [
            "GET /sub/doors?since=oldest",
            "GET /sub?topic=doors&topic=other&since=oldest",
        ] {
            let (head, _) = http(&broker, target, &[], b"");
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            assert!(head.len() <= HEAD_BYTES, "{} bytes", head.len());
            assert_eq!(header(&head, "Crore-Property").len(), held, "{head}");
            let left_out = (user.len() - held).to_string();
            assert_eq!(header(&head, "Crore-Properties-Left-Out"), [left_out]);
        }
        let (head, body) = http(
            &broker,
            "GET /sub/doors?since=oldest&envelope=json",
            &[],
            b"",
        );
        assert!(head.len() <= HEAD_BYTES, "{} bytes", head.len());
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        let wanted: Vec<[&str; 2]> = user
            .iter()
            .map(|(name, value)| [&name[..], value])
            .collect();
        assert_eq!(body["properties"], serde_json::json!(wanted));
        assert_eq!(body["key"], key[..]);
        http(&broker, "DELETE /pub/doors", &[], b"");
    }
    // If the message has no user properties, the envelope has no such member.
    http(&broker, "POST /pub/doors", &[], b"x");
    let (_, body) = http(
        &broker,
        "GET /sub/doors?since=oldest&envelope=json",
        &[],
        b"",
    );
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert!(body.get("properties").is_none(), "{body}");
}
