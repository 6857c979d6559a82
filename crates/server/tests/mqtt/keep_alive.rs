//! Tests the keep alive. A silent client is disconnected after one and a half times the interval, and its will is published.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message, plain_connect, will};
use crate::support::{eventually, until};
use crore_wire::mqtt::{Packet, ReasonCode, Version};

/// Connects with a keep alive and a will.
fn connect_with_will(
    broker: &Broker,
    version: Version,
    client_id: &str,
    keep_alive_s: u16,
) -> Conn {
    let mut connect = plain_connect(version, client_id);
    connect.keep_alive_s = keep_alive_s;
    connect.will = Some(will("w"));
    let mut conn = Conn::open(broker, version);
    conn.connect(&connect);
    conn
}

#[test]
fn client_silent_for_one_and_a_half_keep_alives_is_ended() {
    let broker = Broker::start();
    let mut watcher = Conn::connected(&broker, Version::V5, "watcher");
    watcher.subscribe("w", 0);
    for version in VERSIONS {
        let mut longer = connect_with_will(&broker, version, "longer", 4);
        let mut conn = connect_with_will(&broker, version, "it", 1);
        let wanted = (version == Version::V5).then_some(ReasonCode::KEEP_ALIVE_TIMEOUT);
        assert_eq!(conn.end(), wanted);
        assert_eq!(
            watcher.packet().publish().payload,
            b"gone",
            "it leaves its will"
        );
        assert!(longer.is_served(), "its time is not over");
        longer.leave();
    }
}

#[test]
fn client_that_pings_stays() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut pings = connect_with_will(&broker, version, "pings", 2);
        let mut silent = connect_with_will(&broker, version, "silent", 2);
        until("the end of the other", || {
            assert!(pings.is_served());
            silent.has_received() || silent.has_ended()
        });
        let wanted = (version == Version::V5).then_some(ReasonCode::KEEP_ALIVE_TIMEOUT);
        assert_eq!(silent.end(), wanted);
        assert!(pings.is_served());
    }
}

#[test]
fn messages_from_the_server_do_not_keep_a_client_alive() {
    let broker = Broker::start();
    let mut conn = connect_with_will(&broker, Version::V5, "it", 1);
    conn.subscribe("t", 0);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let reason = eventually("its end", || {
        publisher.publish(&message("t", 0, 0, b"x"));
        match conn.packet().packet() {
            Packet::Publish(_) => None,
            Packet::Disconnect(disconnect) => Some(disconnect.reason),
            other => panic!("{other:?} came"),
        }
    });
    assert_eq!(reason, ReasonCode::KEEP_ALIVE_TIMEOUT);
}

#[test]
fn incomplete_packet_does_not_keep_its_client_alive() {
    let broker = Broker::with("[timeouts]\nbody_s = 3600\n");
    if !broker.is_crore() {
        return; // Mosquitto accepts any byte as activity
    }
    let mut conn = connect_with_will(&broker, Version::V311, "it", 1);
    // The bytes of a PUBLISH that never ends. Only complete packets count as activity.
    conn.send(b"\x30\xff\x7f\0\x01a");
    until("its end", || {
        conn.send(b"x");
        conn.has_ended()
    });
}

#[test]
fn client_without_a_keep_alive_is_never_timed_out() {
    let broker = Broker::start();
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    connect_with_will(&broker, Version::V5, "silent", 1).end();
    assert!(conn.is_served(), "longer than the other was silent");
}
