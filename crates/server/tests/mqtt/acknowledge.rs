//! Tests QoS 1 and 2 packet by packet, in both directions, across connections of one session.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message};
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{Packet, PacketType, ReasonCode, Version};

/// A subscriber of `t` with a session, and a publisher.
fn subscriber_and_publisher(broker: &Broker, version: Version) -> (Conn, Conn) {
    let mut subscriber = Conn::open(broker, version);
    subscriber.resume(&format!("{version:?}-subscriber"));
    subscriber.subscribe("t", 2);
    let publisher = Conn::connected(broker, Version::V5, &format!("{version:?}-publisher"));
    (subscriber, publisher)
}

fn reconnect(broker: &Broker, old: Conn) -> Conn {
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
            // Without a subscriber, MQTT 5 has a reason code of its own.
            let reason = match version {
                Version::V5 => ReasonCode::NO_MATCHING_SUBSCRIBERS,
                Version::V311 => ReasonCode::SUCCESS,
            };
            assert_eq!(conn.packet().ack(PubAck), (id, reason));
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
        // Another connection of the same session knows the packet id too.
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
        // After the release the id may be used for a new message. The subscriber receives nothing before that message.
        conn.deliver(&message("t", 2, 9, b"twice"));
        assert_eq!(subscriber.packet().publish().payload, b"twice");
        conn.disconnect();
    }
}

#[test]
fn quality_1_comes_again_until_it_is_acknowledged() {
    let broker = Broker::start();
    for version in VERSIONS {
        let (mut subscriber, mut publisher) = subscriber_and_publisher(&broker, version);
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
        // Acknowledgements may be sent in any order. Here the middle one is the first.
        subscriber.acknowledge(PubAck, ids[1]);
        assert!(subscriber.is_served());
        let mut subscriber = reconnect(&broker, subscriber);
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
        let mut subscriber = reconnect(&broker, subscriber);
        subscriber.expect_only_from(&mut publisher, "t");
    }
}

#[test]
fn quality_2_goes_on_where_it_stood() {
    let broker = Broker::start();
    for version in VERSIONS {
        let (mut subscriber, mut publisher) = subscriber_and_publisher(&broker, version);
        publisher.deliver(&message("t", 2, 1, b"x"));
        let id = subscriber
            .packet()
            .publish()
            .packet_id
            .expect("an id")
            .get();
        // The client did not acknowledge the message, so the server sends it again.
        let mut subscriber = reconnect(&broker, subscriber);
        let got = subscriber.packet();
        assert!(got.publish().dup);
        assert_eq!(got.publish().packet_id.expect("an id").get(), id);
        subscriber.acknowledge(PubRec, id);
        assert_eq!(subscriber.packet().ack(PubRel).0, id);
        // The client has received the message but not completed the exchange, so the server sends PUBREL again, and never the message.
        let mut subscriber = reconnect(&broker, subscriber);
        assert_eq!(subscriber.packet().ack(PubRel).0, id);
        subscriber.acknowledge(PubComp, id);
        assert!(subscriber.is_served());
        let mut subscriber = reconnect(&broker, subscriber);
        subscriber.expect_only_from(&mut publisher, "t");
    }
}

#[test]
fn unknown_packet_ids_are_answered_and_allowed() {
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
        if broker.is_crore() {
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
        let (mut subscriber, mut publisher) = subscriber_and_publisher(&broker, version);
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

/// Connects with the session `it`, over TCP or (if `framed`) WebSocket. Also returns whether the session was present.
fn connect_it(broker: &Broker, version: Version, framed: bool) -> (Conn, bool) {
    let mut conn = match framed {
        true => Conn::websocket(broker, version, "/", "mqtt").0,
        false => Conn::open(broker, version),
    };
    let present = conn.resume("it");
    (conn, present)
}

/// The QoS of a message, and wrong acknowledgements for it.
const WRONG: [(u8, &[PacketType]); 5] = [
    (1, &[PubRec]),
    (1, &[PubComp]),
    (2, &[PubAck]),
    (2, &[PubComp]),
    (2, &[PubRec, PubAck]),
];

#[test]
fn an_acknowledgement_of_the_wrong_kind_ends_the_connection_and_settles_nothing() {
    let broker = Broker::start();
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for (n, version) in VERSIONS.into_iter().enumerate() {
        for (n, topic, framed) in [
            (4 * n, "t", false),
            (4 * n + 1, "$share/g/t", false),
            (4 * n + 2, "t", true),
        ] {
            for (qos, acknowledgements) in WRONG {
                let case = format!("{version:?} {topic} {framed} {qos} {acknowledgements:?}");
                let (mut conn, present) = connect_it(&broker, version, framed);
                assert!(!present, "{case}");
                conn.subscribe(topic, 2);
                let payload = format!("{n}");
                publisher.deliver(&message("t", qos, 1, payload.as_bytes()));
                let got = conn.packet();
                let id = got.publish().packet_id.expect("an id").get();
                for kind in acknowledgements {
                    conn.acknowledge(*kind, id);
                }
                let received = acknowledgements.len() > 1;
                if received {
                    assert_eq!(conn.packet().ack(PubRel).0, id, "{case}");
                }
                let why = (version == Version::V5).then_some(ReasonCode::PROTOCOL_ERROR);
                assert_eq!(conn.end(), why, "{case}");
                // The session is unchanged: the server sends the message again, or its PUBREL.
                let (mut conn, present) = connect_it(&broker, version, framed);
                assert!(present, "{case}");
                let got = conn.packet();
                if received {
                    assert_eq!(got.ack(PubRel).0, id, "{case}");
                } else {
                    assert!(got.publish().dup, "{case}");
                    assert_eq!(got.publish().payload, payload.as_bytes(), "{case}");
                    assert_eq!(got.publish().packet_id.expect("an id").get(), id, "{case}");
                }
                conn.cut();
                Conn::connected(&broker, version, "it").disconnect();
            }
        }
    }
}

#[test]
fn message_waiting_to_be_sent_again_can_be_acknowledged() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let (mut subscriber, mut publisher) = subscriber_and_publisher(&broker, Version::V5);
    let mut sent = |qos, id| {
        publisher.deliver(&message("t", qos, id, b"x"));
        let got = subscriber.packet();
        got.publish().packet_id.expect("an id").get()
    };
    let (first, first_id, second_id) = (sent(1, 1), sent(1, 2), sent(2, 3));
    subscriber.cut();
    // The client now accepts one message at a time, but several are in flight from its last connection.
    let (mut subscriber, present) = Conn::with_properties(&broker, "V5-subscriber", false, |set| {
        set.session_expiry_interval_s(600).receive_maximum(1);
    });
    assert!(present);
    let reconnect = subscriber.packet();
    assert_eq!(reconnect.publish().packet_id.expect("an id").get(), first);
    subscriber.acknowledge(PubAck, first_id);
    subscriber.acknowledge(PubRec, second_id);
    assert_eq!(
        subscriber.packet().ack(PubRel),
        (second_id, ReasonCode::SUCCESS)
    );
    subscriber.acknowledge(PubComp, second_id);
    subscriber.acknowledge(PubAck, first);
    assert!(subscriber.is_served(), "none of them comes again");
}

#[test]
fn release_of_a_message_not_yet_received_changes_nothing() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    // A home (the part of a shard that keeps topics) on another shard answers some turns (rounds of its event loop) later. Among many
    // topics some have such a home.
    let refused = (0..64).filter(|n| {
        let topic = format!("of/{n}");
        let mut conn = Conn::connected(&broker, Version::V5, &format!("{n}"));
        let mut bytes = Vec::new();
        let publish = message(&topic, 2, 9, b"x");
        crore_wire::mqtt::encode::publish(&mut bytes, Version::V5, &publish);
        bytes.extend_from_slice(&[0x62, 2, 0, 9]);
        conn.send(&bytes);
        match conn.packet().packet() {
            Packet::Disconnect(disconnect) => {
                assert_eq!(disconnect.reason, ReasonCode::PROTOCOL_ERROR);
                true
            }
            Packet::PubRec(_) => {
                assert_eq!(conn.packet().ack(PubComp), (9, ReasonCode::SUCCESS));
                false
            }
            other => panic!("PUBREC is due before anything else, {other:?} came"),
        }
    });
    // Publishes to homes on the connection's own shard are answered at once.
    assert!(refused.count() < 64);
}

#[test]
fn each_of_many_publishes_with_one_id_gets_its_pubrec() {
    const EACH: usize = 20;
    let broker = Broker::start();
    for version in VERSIONS {
        for round in 0..32 {
            let topic = format!("of/{round}");
            let mut subscriber = Conn::connected(&broker, Version::V5, "subscriber");
            subscriber.subscribe(&topic, 0);
            let mut conn = Conn::connected(&broker, version, "it");
            let mut publish = message(&topic, 2, 9, b"once");
            let mut bytes = Vec::new();
            for _ in 0..EACH {
                crore_wire::mqtt::encode::publish(&mut bytes, version, &publish);
                publish.dup = true;
            }
            conn.send(&bytes);
            for n in 0..EACH {
                let got = conn.packet();
                assert_eq!(got.ack(PubRec).0, 9, "{version:?} {round} {n}");
            }
            conn.acknowledge(PubRel, 9);
            assert_eq!(conn.packet().ack(PubComp), (9, ReasonCode::SUCCESS));
            assert!(conn.is_served(), "and nothing more");
            assert_eq!(subscriber.packet().publish().payload, b"once");
            assert!(subscriber.is_served(), "once");
        }
    }
}
