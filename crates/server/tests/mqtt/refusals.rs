//! Tests the reasons of refusals. The answer has the reason as text if its packet can contain text. The log has it once for many refusals.

use crate::doors::http;
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, id, message, plain_connect};
use crore_wire::mqtt::PacketType::PubAck;
use crore_wire::mqtt::{Packet, Properties, PropertyWriter, ReasonCode, Version, encode};

/// Topics with one control character each: from C0, DEL, and from C1 (U+0085, next line, is one of them).
const CONTROLS: [&str; 5] = ["a/\u{1}", "a\u{1f}/b", "\u{7f}", "a/\u{85}", "\u{9f}b"];

#[test]
fn subscription_beyond_the_limit_is_refused_with_the_setting() {
    for version in VERSIONS {
        let broker = Broker::with("[limits]\ntopics_per_connection = 3\n");
        if !broker.is_crore() {
            return;
        }
        let mut conn = Conn::connected(&broker, version, "it");
        for filter in ["a", "b/#", "$share/g/c"] {
            assert!(!conn.subscribe(filter, 0).is_error());
        }
        assert!(conn.subscribe("fourth", 0).is_error());
        let log = broker.server();
        log.await_log("limits.topics_per_connection allows (3): fourth");
        // Further refusals are counted, and logged later.
        assert!(conn.subscribe("fifth", 0).is_error());
        assert!(!broker.server().log().contains("fifth"));
    }
}

#[test]
fn client_may_have_a_thousand_subscriptions_up_to_the_limit_of_bytes() {
    for version in VERSIONS {
        let broker = Broker::start();
        let mut conn = Conn::connected(&broker, version, "it");
        for n in 0..1_000 {
            let filter = match n % 50 {
                49 => format!("stocks/{n}/+"),
                _ => format!("stocks/{n}"),
            };
            assert!(!conn.subscribe(&filter, 0).is_error(), "{filter}");
        }
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        publisher.deliver(&message("stocks/998", 1, 1, b"187.5"));
        assert_eq!(conn.packet().publish().payload, b"187.5");
    }
    let broker = Broker::with("[limits]\nsubscription_bytes = \"4 KiB\"\n");
    if !broker.is_crore() {
        return;
    }
    for (prefix, most) in [
        ("", 64),
        ("a/rather/long/prefix/of/forty/bytes/in/all/", 40),
    ] {
        let mut conn = Conn::connected(&broker, Version::V5, "it");
        let refused = (0..most).find(|n| conn.subscribe(&format!("{prefix}{n}/+"), 0).is_error());
        let refused = refused.expect("the names are bounded");
        assert!(refused > most / 2, "{refused}");
        let log = broker.server();
        log.await_log("limits.subscription_bytes allows (4096 bytes)");
        // An ended subscription makes room.
        conn.write(|out| {
            let gone = format!("{prefix}0/+");
            let filters = std::iter::once(gone.as_str());
            encode::unsubscribe(out, Version::V5, id(9), &Properties::default(), filters);
        });
        conn.packet();
        assert!(
            !conn
                .subscribe(&format!("{prefix}{refused}/+"), 0)
                .is_error()
        );
    }
}

#[test]
fn subscription_without_room_for_its_filter_is_refused_with_the_reason() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    let deep = format!("deep{}/#", "/x".repeat(20));
    assert_eq!(conn.subscribe(&deep, 0), ReasonCode::QUOTA_EXCEEDED);
    broker.server().await_log("more than 16 levels: deep/");
}

#[test]
fn refusal_for_a_full_home_names_the_settings() {
    let broker = Broker::with("[limits]\ntopics_per_shard = 2\n");
    if !broker.is_crore() {
        return;
    }
    let mut conn = Conn::connected(&broker, Version::V311, "it");
    let refused = (0..10).find(|n| conn.subscribe(&format!("t/{n}"), 0).is_error());
    let refused = refused.expect("two shards have four topics");
    broker.server().await_log("limits.topics_per_shard");
    broker.server().await_log(&format!(": t/{refused}"));
}

#[test]
fn control_character_in_a_topic_is_named_in_the_refusal() {
    for topic in CONTROLS {
        let broker = Broker::start();
        if !broker.is_crore() {
            return;
        }
        let mut conn = Conn::connected(&broker, Version::V5, "it");
        conn.publish(&message(topic, 1, 1, b"x"));
        assert_eq!(
            conn.packet().ack(PubAck),
            (1, ReasonCode::TOPIC_NAME_INVALID)
        );
        broker.server().await_log(
            "PUBLISH: the topic has a control character (U+0000 to U+001F, U+007F to U+009F); leave it out: ",
        );
        assert_eq!(conn.subscribe(topic, 0), ReasonCode::TOPIC_FILTER_INVALID);
        assert_eq!(
            conn.subscribe(&format!("{topic}/#"), 0),
            ReasonCode::TOPIC_FILTER_INVALID
        );
        // A message of QoS 0 has no acknowledgement, so the reason is in a DISCONNECT.
        conn.publish(&message(topic, 0, 0, b"x"));
        let received = conn.packet();
        let Packet::Disconnect(disconnect) = received.packet() else {
            panic!("a DISCONNECT is due");
        };
        assert_eq!(disconnect.reason, ReasonCode::TOPIC_NAME_INVALID);
        let words = disconnect.properties.reason_string().unwrap_or_default();
        assert!(words.contains("U+007F to U+009F"), "{words}");
        // Over HTTP the reason is in the body of the 400.
        let mut query = String::new();
        topic
            .bytes()
            .for_each(|byte| query.push_str(&format!("%{byte:02X}")));
        let (head, body) = http(&broker, &format!("POST /pub?topic={query}"), &[], b"x");
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        let body = String::from_utf8(body).expect("text");
        assert!(body.contains("U+007F to U+009F"), "{body}");
    }
}

#[test]
fn refused_client_of_3_1_1_is_logged_with_the_reason() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let mut conn = Conn::connected(&broker, Version::V311, "it");
    conn.publish(&message("a/\u{85}", 1, 1, b"x"));
    assert_eq!(conn.end(), None);
    broker.server().await_log(r"leave it out: a/\xc2\x85");
}

#[test]
fn a_malformed_connect_is_in_the_log() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let mut conn = Conn::open(&broker, Version::V311);
    conn.send(b"\x10\x08\0\x04MQTT\x04\x02");
    assert_eq!(conn.read_to_end(), b"");
    broker
        .server()
        .await_log("CONNECT: the packet ends within a field");
}

#[test]
fn the_reason_string_says_what_is_wrong_with_a_packet() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    conn.send(b"\x82\x02\0\x01");
    let received = conn.packet();
    let Packet::Disconnect(disconnect) = received.packet() else {
        panic!("a DISCONNECT is due");
    };
    let words = disconnect.properties.reason_string();
    assert_eq!(words, Some("the packet ends within a field"));
    broker.server().await_log("the packet ends within a field");
    // If the client's maximum packet size leaves no room for a reason string, it gets only the code of the CONNACK. The reason is in the
    // log.
    let mut properties = PropertyWriter::new();
    properties.authentication_method("x").expect("it fits");
    let mut connect = plain_connect(Version::V5, "it");
    connect.properties = properties.properties();
    let mut conn = Conn::open(&broker, Version::V5);
    conn.write(|out| encode::connect(out, &connect));
    assert!(matches!(conn.packet().packet(), Packet::ConnAck(_)));
}

#[test]
fn websocket_without_the_subprotocol_is_refused_with_its_name() {
    // No subprotocol, one of an older version, and one in other letter case: names of subprotocols are case-sensitive (RFC 6455 section
    // 4.1).
    for offer in ["", "mqttv3.1", "MQTT"] {
        let broker = Broker::start();
        if !broker.is_crore() {
            return;
        }
        let offer = format!("Sec-WebSocket-Protocol: {offer}");
        let mut headers = vec![
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ];
        if !offer.ends_with(' ') {
            headers.push(&offer);
        }
        let (head, body) = http(&broker, "GET /mqtt", &headers, b"");
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        let body = String::from_utf8(body).expect("text");
        assert!(body.contains("Sec-WebSocket-Protocol: mqtt"), "{body}");
        let server = broker.server();
        server.await_log("WebSockets at a path that has none");
        let log = server.log();
        assert!(
            log.contains("example=/mqtt") && !log.contains("packets of MQTT"),
            "{log}"
        );
    }
}
