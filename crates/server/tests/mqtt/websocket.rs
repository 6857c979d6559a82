//! MQTT over WebSocket (MQTT 5.0 chapter 6): binary frames that have nothing to do with packets.

use crate::broker::Broker;
use crate::conn::{Conn, message, plain};
use crore_wire::mqtt::Version;

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
fn a_large_message_comes_over_a_websocket() {
    let broker = Broker::start();
    let (mut conn, _) = Conn::websocket(&broker, Version::V5, PATH, "mqtt");
    conn.connect(&plain(Version::V5, "it"));
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
    conn.disconnect();
    conn.end();
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    publisher.publish(&message("t", 1, 1, b"missed"));
    publisher.packet();
    let (mut conn, _) = Conn::websocket(&broker, Version::V5, PATH, "mqtt");
    assert!(conn.resume("it"));
    assert_eq!(conn.packet().publish().payload, b"missed");
}
