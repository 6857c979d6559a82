//! Tests statements of the specifications about PUBLISH in both directions: DUP, RETAIN, order, expiry.

use super::{receive, subscribe_without_retained};
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message};
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{Packet, PropertyWriter, ReasonCode, Version};

#[test]
fn dup_is_each_delivery_s_own() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut subscriber = Conn::connected(&broker, version, "subscriber");
        subscriber.subscribe("t", 2);
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        // After the last acknowledgement the id may be used for a new message, whatever its DUP says.
        for qos in [1, 1, 2, 2] {
            let mut publish = message("t", qos, 9, b"x");
            publish.dup = true;
            publisher.deliver(&publish);
            let received = subscriber.packet();
            assert!(!received.publish().dup, "QoS {qos}");
        }
    }
}

#[test]
fn retained_message_stays_until_it_is_replaced_or_removed() {
    let broker = Broker::start();
    for version in VERSIONS {
        let topic = &format!("{version:?}");
        let mut watcher = Conn::connected(&broker, version, "watcher");
        watcher.subscribe(topic, 0);
        let mut publisher = Conn::connected(&broker, version, "publisher");
        let mut retained = message(topic, 1, 1, b"one");
        retained.retain = true;
        publisher.deliver(&retained);
        // A retained message of QoS 0 replaces it; a message without RETAIN does not.
        let mut retained = message(topic, 0, 0, b"two");
        retained.retain = true;
        publisher.publish(&retained);
        publisher.deliver(&message(topic, 1, 2, b"three"));
        for payload in [&b"one"[..], b"two", b"three"] {
            let received = watcher.packet();
            assert_eq!(received.publish().payload, payload);
            assert!(!received.publish().retain, "a standing subscription");
        }
        // The publisher's session ends, and the retained message stays.
        publisher.leave();
        let mut late = Conn::connected(&broker, version, "late");
        for _ in 0..2 {
            // The same SUBSCRIBE again brings the retained message again.
            late.subscribe(topic, 1);
            let received = late.packet();
            assert_eq!(received.publish().payload, b"two");
            assert!(received.publish().retain);
            assert_eq!(received.publish().packet_id, None, "the lower QoS");
        }
        let mut publisher = Conn::connected(&broker, version, "publisher");
        let mut empty = message(topic, 1, 3, b"");
        empty.retain = true;
        publisher.deliver(&empty);
        for conn in [&mut watcher, &mut late] {
            let received = conn.packet();
            assert_eq!(
                (received.publish().payload, received.publish().retain),
                (&b""[..], false)
            );
        }
        let mut later = Conn::connected(&broker, version, "later");
        later.subscribe(topic, 1);
        later.expect_only_from(&mut publisher, topic);
    }
}

#[test]
fn acknowledgements_come_in_the_order_of_the_publishes() {
    // The topics belong to several shards, whose answers arrive in any order.
    let broker = Broker::start();
    for version in VERSIONS {
        let mut conn = Conn::connected(&broker, version, "it");
        let topics: Vec<String> = (0..60).map(|n| format!("order/{n}")).collect();
        let qos = |n: usize| 1 + (n % 2) as u8;
        for (n, topic) in topics.iter().enumerate() {
            conn.publish(&message(topic, qos(n), 1000 + n as u16, b"x"));
        }
        let mut last = [0, 0];
        for n in 0..topics.len() {
            let received = conn.packet();
            let (kind, is) = match received.packet() {
                Packet::PubAck(ack) => (0, ack.packet_id.get()),
                Packet::PubRec(ack) => (1, ack.packet_id.get()),
                other => panic!("{n}: {other:?}"),
            };
            assert!(is > last[kind], "{is} behind {}", last[kind]);
            last[kind] = is;
        }
        let second: Vec<u16> = (0..60).filter(|n| n % 2 == 1).map(|n| 1000 + n).collect();
        for is in &second {
            conn.acknowledge(PubRel, *is);
        }
        for is in second {
            assert_eq!(conn.packet().ack(PubComp), (is, ReasonCode::SUCCESS));
        }
    }
}

#[test]
fn publishes_sent_before_a_receipt_are_released_in_order() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut conn = Conn::connected(&broker, version, "it");
        conn.subscribe("t", 2);
        let mut publisher = Conn::connected(&broker, version, "publisher");
        let mut ids = Vec::new();
        for n in 1..=10u16 {
            publisher.deliver(&message("t", 2, n, &n.to_be_bytes()));
            ids.push(receive(&mut conn, &n.to_be_bytes()));
        }
        for is in &ids {
            conn.acknowledge(PubRec, *is);
        }
        for is in &ids {
            assert_eq!(conn.packet().ack(PubRel).0, *is);
        }
    }
}

#[test]
fn a_message_that_waited_beyond_its_expiry_is_dropped() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // Mosquitto sends more than the client's receive maximum
    }
    let mut retained = PropertyWriter::new();
    retained.message_expiry_interval_s(2);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for (id, topic) in [(1, "a"), (2, "b")] {
        let mut publish = message(topic, 1, id, topic.as_bytes());
        publish.retain = true;
        publish.properties = retained.properties();
        publisher.deliver(&publish);
    }
    let (mut conn, _) = Conn::with_properties(&broker, "it", true, |set| {
        set.receive_maximum(1);
    });
    conn.subscribe("a", 1);
    let id = receive(&mut conn, b"a");
    conn.subscribe("b", 1);
    broker.server().await_kept("b", 0);
    // The delivery that has begun is completed. The message that waited has expired, and is not sent any more.
    conn.acknowledge(PubAck, id);
    publisher.deliver(&message("b", 1, 3, b"new"));
    receive(&mut conn, b"new");
}

#[test]
fn a_failure_ends_a_delivery() {
    let broker = Broker::start();
    let mut conn = Conn::open(&broker, Version::V5);
    conn.resume("it");
    subscribe_without_retained(&mut conn, "t", 2);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for (qos, kind) in [(1, 0x40), (2, 0x50)] {
        publisher.deliver(&message("t", qos, 1, b"unwanted"));
        let id = receive(&mut conn, b"unwanted").to_be_bytes();
        conn.send([kind, 3, id[0], id[1], 0x83]);
    }
    assert!(conn.is_served(), "no PUBREL answers a failure");
    conn.cut();
    let mut conn = Conn::open(&broker, Version::V5);
    assert!(conn.resume("it"));
    conn.expect_only_from(&mut publisher, "t");
}
