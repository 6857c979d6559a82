//! Tests the state that a session keeps between connections.

use super::receive;
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message};
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{PropertyWriter, Version};

/// Resumes a kept session with this Receive Maximum.
fn resume_with(broker: &Broker, receive_max: u16) -> Conn {
    let with = |set: &mut PropertyWriter| {
        set.session_expiry_interval_s(600)
            .receive_maximum(receive_max);
    };
    Conn::with_properties(broker, "it", false, with).0
}

#[test]
fn a_session_keeps_to_the_receive_maximum_of_each_connection() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // Mosquitto 2.0 sends more after the first acknowledgement
    }
    let mut conn = resume_with(&broker, 10);
    conn.subscribe("t", 2);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let mut ids = Vec::new();
    for n in 1..=6u8 {
        publisher.deliver(&message("t", 1 + n % 2, u16::from(n), &[b'0' + n]));
        ids.push(receive(&mut conn, &[b'0' + n]));
    }
    // The first message is acknowledged by PUBREC. It waits for PUBCOMP, and is never sent as a PUBLISH again.
    conn.acknowledge(PubRec, ids[0]);
    assert_eq!(conn.packet().ack(PubRel).0, ids[0]);
    conn.cut();
    publisher.publish(&message("t", 0, 0, b"between"));
    publisher.deliver(&message("t", 1, 7, b"7"));
    let mut conn = resume_with(&broker, 2);
    assert_eq!(conn.packet().ack(PubRel).0, ids[0]);
    conn.acknowledge(PubComp, ids[0]);
    let mut under_way = Vec::new();
    for n in 2..=7u8 {
        if under_way.len() == 2 {
            conn.expect_nothing_from(&mut publisher);
            finish(&mut conn, under_way.remove(0));
        }
        if n == 7 {
            // This message of QoS 0 needs no acknowledgement. Still it does not overtake messages that are sent again.
            assert_eq!(conn.packet().publish().payload, b"between");
        }
        let received = conn.packet();
        let publish = received.publish();
        assert_eq!(publish.payload, [b'0' + n], "in their order");
        assert_eq!(publish.dup, n < 7, "{n}");
        let id = publish.packet_id.expect("an id").get();
        if n < 7 {
            assert_eq!(id, ids[usize::from(n) - 1], "with their ids");
        } else {
            assert!(!ids[2..].contains(&id), "with an id of its own");
        }
        under_way.push((id, publish.qos.bits()));
    }
    for sent in under_way {
        finish(&mut conn, sent);
    }
    conn.expect_only_from(&mut publisher, "t");
}

fn finish(conn: &mut Conn, (id, qos): (u16, u8)) {
    if qos == 1 {
        return conn.acknowledge(PubAck, id);
    }
    conn.acknowledge(PubRec, id);
    assert_eq!(conn.packet().ack(PubRel).0, id);
    conn.acknowledge(PubComp, id);
}

#[test]
fn a_session_keeps_its_subscriptions_with_what_they_asked_for() {
    let broker = Broker::start();
    for version in VERSIONS {
        let name = format!("{version:?}");
        let mut conn = Conn::open(&broker, version);
        conn.resume(&name);
        for (filter, qos) in [("zero", 0), ("one", 1), ("two/+", 2)] {
            conn.subscribe(filter, qos);
        }
        conn.leave();
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        publisher.deliver(&message("zero", 1, 1, b"not kept"));
        let mut conn = Conn::open(&broker, version);
        assert!(conn.resume(&name));
        assert!(conn.is_served());
        // When the new filter is granted at all homes (the parts of shards that keep topics), they know the session's old filters too.
        // Before that a message of QoS 0 would not be delivered.
        conn.subscribe("other/#", 0);
        for (topic, granted) in [("zero", 0), ("one", 1), ("two/x", 2)] {
            publisher.deliver(&message(topic, 2, 1, b"x"));
            let received = conn.packet();
            assert_eq!(received.publish().topic, topic);
            assert_eq!(received.publish().qos.bits(), granted);
        }
    }
}

#[test]
fn a_message_without_quality_comes_to_a_session_as_it_is() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // left to servers
    }
    let mut conn = Conn::open(&broker, Version::V5);
    conn.resume("it");
    conn.subscribe("t", 1);
    conn.cut();
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    publisher.publish(&message("t", 0, 0, b"x"));
    assert!(publisher.is_served());
    let mut conn = Conn::open(&broker, Version::V5);
    assert!(conn.resume("it"));
    assert_eq!(receive(&mut conn, b"x"), 0, "QoS 0");
}
