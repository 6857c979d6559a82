//! Tests MQTT over WebSocket (MQTT 5.0 chapter 6). A packet may span several binary frames, and a frame may contain several packets.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, id, message, plain_connect};
use crore_wire::mqtt::{Packet, Properties, Qos, SubscribeOptions, Version, encode};

const PATH: &str = "/mqtt";

#[test]
fn the_subprotocol_is_chosen() {
    let broker = Broker::start();
    for offer in ["mqtt", "other, mqtt"] {
        let (_, head) = Conn::websocket(&broker, Version::V5, PATH, offer);
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let chosen = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-protocol"));
        assert_eq!(
            chosen.map(|(_, value)| value.trim()),
            Some("mqtt"),
            "{head}"
        );
    }
}

#[test]
fn packets_and_frames_have_nothing_to_do_with_each_other() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut bytes = Vec::new();
        encode::connect(&mut bytes, &plain_connect(version, "it"));
        let filters = std::iter::once(("t", SubscribeOptions::of(Qos::AtMostOnce)));
        encode::subscribe(&mut bytes, version, id(1), &Properties::default(), filters);
        encode::publish(&mut bytes, version, &message("t", 0, 0, &[b'x'; 300]));
        for size in [1, 3, 7, 130, bytes.len()] {
            let (mut conn, _) = Conn::websocket(&broker, version, PATH, "mqtt");
            for chunk in bytes.chunks(size) {
                conn.send(chunk);
            }
            assert!(matches!(conn.packet().packet(), Packet::ConnAck(_)));
            assert!(matches!(conn.packet().packet(), Packet::SubAck(_)));
            assert_eq!(conn.packet().publish().payload, [b'x'; 300]);
            conn.leave();
        }
    }
}

#[test]
fn a_text_frame_ends_the_connection() {
    let broker = Broker::start();
    let (mut conn, _) = Conn::websocket(&broker, Version::V5, PATH, "mqtt");
    conn.connect(&plain_connect(Version::V5, "it"));
    // A text frame with a PUBLISH whose bytes are also valid text.
    conn.send_frame(1, b"\x30\x04\0\x01tx");
    assert_eq!(conn.read_to_end(), b"");
    if broker.is_crore() {
        // RFC 6455 section 7.4.1: the server received a type of data that it cannot accept.
        assert_eq!(conn.close_code(), Some(1003));
    }
}

#[test]
fn a_large_message_comes_over_a_websocket() {
    let broker = Broker::start();
    let (mut conn, _) = Conn::websocket(&broker, Version::V5, PATH, "mqtt");
    conn.connect(&plain_connect(Version::V5, "it"));
    conn.subscribe("t", 0);
    let payload = vec![b'x'; 50_000];
    let mut publisher = Conn::connected(&broker, Version::V311, "publisher");
    for _ in 0..20 {
        publisher.publish(&message("t", 0, 0, &payload));
    }
    for _ in 0..20 {
        assert_eq!(conn.packet().publish().payload, payload);
    }
}

#[test]
fn a_websocket_and_a_socket_share_a_session() {
    let broker = Broker::start();
    let mut conn = Conn::open(&broker, Version::V5);
    conn.resume("it");
    conn.subscribe("t", 1);
    conn.leave();
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    publisher.deliver(&message("t", 1, 1, b"missed"));
    let (mut conn, _) = Conn::websocket(&broker, Version::V5, PATH, "mqtt");
    assert!(conn.resume("it"));
    assert_eq!(conn.packet().publish().payload, b"missed");
}
