//! QoS 1 and 2 packet by packet, both ways, across connections of one session.

use crate::broker::Broker;
use crate::conn::{Conn, VERSIONS, message};
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{ReasonCode, Version};

/// A subscriber of `t` with a session and a publisher.
fn pair(broker: &Broker, version: Version) -> (Conn, Conn) {
    let mut subscriber = Conn::open(broker, version);
    subscriber.resume(&format!("{version:?}-subscriber"));
    subscriber.subscribe("t", 2);
    let publisher = Conn::connected(broker, Version::V5, &format!("{version:?}-publisher"));
    (subscriber, publisher)
}

fn again(broker: &Broker, old: Conn) -> Conn {
    let version = old.version;
    old.cut();
    let mut conn = Conn::open(broker, version);
    assert!(
        conn.resume(&format!("{version:?}-subscriber")),
        "session present"
    );
    conn
}

#[test]
fn quality_1_is_acknowledged_with_its_packet_id() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut conn = Conn::connected(&broker, version, "it");
        for id in [1, 65_535, 300] {
            conn.publish(&message("t", 1, id, b"x"));
            let (acknowledged, reason) = conn.packet().ack(PubAck);
            assert_eq!(acknowledged, id);
            // Nobody subscribes, which 5 may say.
            assert!(!reason.is_error(), "{reason:?}");
        }
    }
}

#[test]
fn quality_2_is_published_once_however_often_it_is_sent() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut subscriber = Conn::connected(&broker, Version::V5, "subscriber");
        subscriber.subscribe("t", 0);
        let client = format!("{version:?}");
        let mut conn = Conn::open(&broker, version);
        conn.resume(&client);
        let mut publish = message("t", 2, 9, b"once");
        conn.publish(&publish);
        assert_eq!(conn.packet().ack(PubRec).0, 9);
        publish.dup = true;
        conn.publish(&publish);
        assert_eq!(conn.packet().ack(PubRec).0, 9);
        // Another connection of the same session knows the id too.
        conn.cut();
        let mut conn = Conn::open(&broker, version);
        assert!(conn.resume(&client));
        conn.publish(&publish);
        assert_eq!(conn.packet().ack(PubRec).0, 9);
        for _ in 0..2 {
            conn.acknowledge(PubRel, 9);
            assert_eq!(conn.packet().ack(PubComp).0, 9);
        }
        assert_eq!(subscriber.packet().publish().payload, b"once");
        subscriber.expect_quiet();
        // Released, the id stands for a new message.
        conn.deliver(&message("t", 2, 9, b"twice"));
        assert_eq!(subscriber.packet().publish().payload, b"twice");
        conn.disconnect();
    }
}

#[test]
fn quality_1_comes_again_until_it_is_acknowledged() {
    let broker = Broker::start();
    for version in VERSIONS {
        let (mut subscriber, mut publisher) = pair(&broker, version);
        for (id, payload) in [(1, b"one"), (2, b"two"), (3, b"thr")] {
            publisher.deliver(&message("t", 1, id, payload));
        }
        let ids: Vec<u16> = (0..3)
            .map(|_| {
                subscriber
                    .packet()
                    .publish()
                    .packet_id
                    .expect("an id")
                    .get()
            })
            .collect();
        // Acknowledgements may come in any order; the middle one does.
        subscriber.acknowledge(PubAck, ids[1]);
        assert!(subscriber.is_served());
        let mut subscriber = again(&broker, subscriber);
        for (payload, id) in [(b"one", ids[0]), (b"thr", ids[2])] {
            let got = subscriber.packet();
            let publish = got.publish();
            assert_eq!(publish.payload, payload, "in their order");
            assert!(publish.dup, "marked as sent before");
            assert_eq!(
                publish.packet_id.expect("an id").get(),
                id,
                "with their ids"
            );
            subscriber.acknowledge(PubAck, id);
        }
        publisher.deliver(&message("t", 1, 4, b"new"));
        let got = subscriber.packet();
        assert_eq!(
            (got.publish().payload, got.publish().dup),
            (&b"new"[..], false)
        );
        subscriber.acknowledge(PubAck, got.publish().packet_id.expect("an id").get());
        assert!(subscriber.is_served());
        let mut subscriber = again(&broker, subscriber);
        subscriber.expect_quiet();
    }
}

#[test]
fn quality_2_goes_on_where_it_stood() {
    let broker = Broker::start();
    for version in VERSIONS {
        let (mut subscriber, mut publisher) = pair(&broker, version);
        publisher.deliver(&message("t", 2, 1, b"x"));
        let id = subscriber
            .packet()
            .publish()
            .packet_id
            .expect("an id")
            .get();
        // Not received: the message again.
        let mut subscriber = again(&broker, subscriber);
        let got = subscriber.packet();
        assert!(got.publish().dup);
        assert_eq!(got.publish().packet_id.expect("an id").get(), id);
        subscriber.acknowledge(PubRec, id);
        assert_eq!(subscriber.packet().ack(PubRel).0, id);
        // Received and not complete: PUBREL again and never the message.
        let mut subscriber = again(&broker, subscriber);
        assert_eq!(subscriber.packet().ack(PubRel).0, id);
        subscriber.acknowledge(PubComp, id);
        assert!(subscriber.is_served());
        let mut subscriber = again(&broker, subscriber);
        subscriber.expect_quiet();
    }
}

#[test]
fn ids_that_nobody_knows_are_answered_and_not_punished() {
    let broker = Broker::start();
    for version in VERSIONS {
        let five = version == Version::V5;
        let unknown = if five {
            ReasonCode::PACKET_IDENTIFIER_NOT_FOUND
        } else {
            ReasonCode::SUCCESS
        };
        let mut conn = Conn::connected(&broker, version, "it");
        conn.acknowledge(PubRel, 77);
        assert_eq!(conn.packet().ack(PubComp), (77, unknown));
        if broker.is_ours() {
            conn.acknowledge(PubRec, 78);
            assert_eq!(conn.packet().ack(PubRel), (78, unknown));
        }
        conn.acknowledge(PubComp, 79);
        assert!(conn.is_served());
    }
}

#[test]
fn a_session_s_packet_ids_are_not_used_twice_at_once() {
    let broker = Broker::start();
    for version in VERSIONS {
        let (mut subscriber, mut publisher) = pair(&broker, version);
        let mut ids = Vec::new();
        for number in 1..=20 {
            publisher.deliver(&message("t", 1 + number as u8 % 2, number, b"x"));
            ids.push(
                subscriber
                    .packet()
                    .publish()
                    .packet_id
                    .expect("an id")
                    .get(),
            );
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 20);
    }
}
