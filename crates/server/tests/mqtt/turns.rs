//! Tests takeovers of sessions, and the order of packets around them.

use super::sys::Sys;
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message, plain_connect, will};
use crore_wire::mqtt::PacketType::PubAck;
use crore_wire::mqtt::{Disconnect, Properties, ReasonCode, Version, encode};

#[test]
fn a_takeover_ends_the_old_connection_before_the_new_one_is_answered() {
    let broker = Broker::start();
    for (old, new) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let (old, new) = (VERSIONS[old], VERSIONS[new]);
        let mut first = Conn::connected(&broker, old, "it");
        let mut second = Conn::open(&broker, new);
        assert!(
            !second.connect(&plain_connect(new, "it")),
            "a clean session is not there"
        );
        let wanted = (old == Version::V5).then_some(ReasonCode::SESSION_TAKEN_OVER);
        let reason = first.end();
        if broker.is_crore() {
            assert_eq!(reason, wanted);
        }
        assert!(second.is_served());
        second.leave();
    }
}

#[test]
fn message_unacknowledged_on_the_old_connection_comes_to_the_new_one() {
    let broker = Broker::start();
    for version in VERSIONS {
        let client = format!("{version:?}");
        let mut first = Conn::open(&broker, version);
        first.resume(&client);
        first.subscribe("t", 1);
        let mut publisher = Conn::connected(&broker, version, "publisher");
        publisher.publish(&message("t", 1, 1, b"x"));
        publisher.packet().ack(PubAck);
        let id = first.packet().publish().packet_id.expect("an id");
        let mut second = Conn::open(&broker, version);
        assert!(second.resume(&client));
        let received = second.packet();
        assert_eq!(received.publish().packet_id, Some(id));
        assert!(received.publish().dup);
        let wanted = (version == Version::V5).then_some(ReasonCode::SESSION_TAKEN_OVER);
        assert_eq!(first.end(), wanted);
        second.acknowledge(PubAck, id.get());
        assert!(second.is_served());
    }
}

#[test]
fn fifty_takeovers_leave_one_connection() {
    let broker = Broker::start();
    // Fewer than `mqtt.takeovers_per_minute`.
    let mut connections: Vec<Conn> = (0..50)
        .map(|_| {
            let mut conn = Conn::open(&broker, Version::V5);
            conn.resume("it");
            conn
        })
        .collect();
    let mut last = connections.pop().expect("the last");
    for mut conn in connections {
        let reason = conn.end();
        if broker.is_crore() {
            assert_eq!(reason, Some(ReasonCode::SESSION_TAKEN_OVER));
        }
    }
    assert!(last.is_served());
}

#[test]
fn a_will_is_published_when_its_connection_breaks_the_protocol() {
    let broker = Broker::start();
    let mut watcher = Conn::connected(&broker, Version::V5, "watcher");
    watcher.subscribe("w", 0);
    for version in VERSIONS {
        let mut connect = plain_connect(version, "it");
        connect.will = Some(will("w"));
        let mut conn = Conn::open(&broker, version);
        conn.connect(&connect);
        conn.send(b"\x00\x00");
        let wanted = (version == Version::V5).then_some(ReasonCode::MALFORMED_PACKET);
        assert_eq!(conn.end(), wanted);
        assert_eq!(watcher.packet().publish().payload, b"gone");
    }
}

#[test]
fn packets_after_a_disconnect_are_ignored() {
    let broker = Broker::start();
    let mut watcher = Conn::connected(&broker, Version::V5, "watcher");
    watcher.subscribe("t", 0);
    for version in VERSIONS {
        let mut conn = Conn::connected(&broker, version, "it");
        let farewell = Disconnect {
            reason: ReasonCode::NORMAL_DISCONNECTION,
            properties: Properties::default(),
        };
        conn.write(|out| {
            encode::disconnect(out, version, &farewell);
            encode::publish(out, version, &message("t", 0, 0, b"behind"));
        });
        assert_eq!(conn.end(), None, "no DISCONNECT answers a DISCONNECT");
    }
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    watcher.expect_only_from(&mut publisher, "t");
}

#[test]
fn a_session_without_an_expiry_ends_with_its_connection() {
    let broker = Broker::start();
    let mut connect = plain_connect(Version::V5, "it");
    connect.clean_start = false;
    for _ in 0..2 {
        let mut conn = Conn::open(&broker, Version::V5);
        assert!(!conn.connect(&connect));
        conn.leave();
    }
}

#[test]
fn an_expiry_is_counted_from_the_end_of_the_connection() {
    let broker = Broker::with("[mqtt]\nsys_interval_s = 1\n");
    let mut sys = Sys::watch(&broker, "$SYS/broker/clients/expired");
    sys.receive_until("expired", |last| last.contains_key("clients/expired"));
    let none = sys.last.clone();
    let connected = |client: &str| {
        Conn::with_properties(&broker, client, false, |set| {
            set.session_expiry_interval_s(1);
        })
    };
    let (_stays, _) = connected("it");
    let (leaves, _) = connected("other");
    leaves.cut();
    sys.receive_until_grown("clients/expired", &none, 1);
    let (heir, present) = connected("it");
    assert!(present, "it lived while it was connected");
    heir.cut();
    sys.receive_until_grown("clients/expired", &none, 2);
    let (_, present) = connected("it");
    assert!(!present, "it has expired");
}
