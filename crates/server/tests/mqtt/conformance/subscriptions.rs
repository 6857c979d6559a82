//! Tests SUBSCRIBE, UNSUBSCRIBE, their answers, and shared subscriptions.

use super::{receive, subscribe_all, unsubscribe_all};
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, message};
use crate::support::{eventually, until};
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec, PubRel};
use crore_wire::mqtt::{Packet, ReasonCode, Version};

#[test]
fn every_filter_has_its_code_in_its_place() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut conn = Conn::connected(&broker, version, "it");
        let names: Vec<String> = (0..40)
            .map(|n| match n % 4 {
                0 => format!("{n}"),
                1 => format!("{n}/+"),
                2 => format!("{n}/#"),
                _ => format!("$share/g/{n}"),
            })
            .collect();
        let filters: Vec<(&str, u8)> = names
            .iter()
            .enumerate()
            .map(|(n, name)| (name.as_str(), (n % 3) as u8))
            .collect();
        let reasons = subscribe_all(&mut conn, &filters);
        assert_eq!(reasons.len(), filters.len());
        for (n, reason) in reasons.iter().enumerate() {
            let granted = [
                ReasonCode::SUCCESS,
                ReasonCode::GRANTED_QOS_1,
                ReasonCode::GRANTED_QOS_2,
            ][n % 3];
            assert_eq!(*reason, granted, "{version:?}, {}", filters[n].0);
        }
        // Filters are compared as text. A different text is a different filter, even if it matches the same topics.
        let gone = unsubscribe_all(&mut conn, &["0", "1/x", "1/+", "0", "+", "2/#", "3"]);
        if version == Version::V5 {
            let (yes, no) = (ReasonCode::SUCCESS, ReasonCode::NO_SUBSCRIPTION_EXISTED);
            assert_eq!(gone, [yes, no, yes, no, no, yes, no]);
        }
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        for (id, topic) in [(1, "0"), (2, "1/x"), (3, "2"), (4, "3"), (5, "4")] {
            publisher.deliver(&message(topic, 1, id, topic.as_bytes()));
        }
        receive(&mut conn, b"3");
        receive(&mut conn, b"4");
        conn.expect_only_from(&mut publisher, "4");
    }
}

#[test]
fn delivery_begun_before_an_unsubscribe_is_finished() {
    let broker = Broker::start();
    for version in VERSIONS {
        for filter in ["t", "t/#"] {
            let client = format!("{version:?}{}", filter.len());
            let mut conn = Conn::open(&broker, version);
            conn.resume(&client);
            conn.subscribe(filter, 2);
            let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
            publisher.deliver(&message("t", 1, 1, b"one"));
            publisher.deliver(&message("t", 2, 2, b"two"));
            let (id_of_one, id_of_two) = (receive(&mut conn, b"one"), receive(&mut conn, b"two"));
            unsubscribe_all(&mut conn, &[filter]);
            publisher.deliver(&message("t", 1, 3, b"new"));
            conn.acknowledge(PubRec, id_of_two);
            assert_eq!(conn.packet().ack(PubRel).0, id_of_two);
            conn.cut();
            let mut conn = Conn::open(&broker, version);
            assert!(conn.resume(&client));
            assert_eq!(receive(&mut conn, b"one"), id_of_one);
            assert_eq!(conn.packet().ack(PubRel).0, id_of_two);
            conn.acknowledge(PubAck, id_of_one);
            conn.acknowledge(PubComp, id_of_two);
            conn.expect_nothing_from(&mut publisher);
        }
    }
}

#[test]
fn no_wildcard_first_finds_a_topic_of_the_server() {
    let broker = Broker::with("[mqtt]\nsys_interval_s = 1\n");
    if !broker.is_crore() {
        return; // it lets clients publish them
    }
    for version in VERSIONS {
        let mut conn = Conn::connected(&broker, version, "it");
        let filters = [("#", 0), ("+/#", 0), ("+/broker/uptime", 0)];
        assert_eq!(subscribe_all(&mut conn, &filters).len(), 3);
        // The server publishes `$SYS` topics only while they have a subscriber.
        let mut watcher = Conn::connected(&broker, version, "watcher");
        let subscribe: &[u8] = match version {
            Version::V5 => b"\x82\x0c\0\x01\0\0\x06$SYS/#\0",
            Version::V311 => b"\x82\x0b\0\x01\0\x06$SYS/#\0",
        };
        watcher.send(subscribe);
        // The first values are retained. Further ones are published while `conn` is connected.
        let mut uptimes = 0;
        while uptimes < 3 {
            if let Packet::Publish(publish) = watcher.packet().packet() {
                uptimes += usize::from(publish.topic.ends_with("/uptime"));
            }
        }
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        conn.expect_only_from(&mut publisher, "t");
    }
}

/// Members of the group `$share/g/t` with these client ids, at QoS 2.
fn group<const N: usize>(broker: &Broker, version: Version, names: [&str; N]) -> [Conn; N] {
    names.map(|name| {
        let mut conn = Conn::connected(broker, version, name);
        conn.subscribe("$share/g/t", 2);
        conn
    })
}

/// The index of the member that receives the next message of the group.
fn receiving_member(members: &mut [Conn; 2]) -> usize {
    eventually("a message to one of them", || {
        (0..2).find(|member| members[*member].has_received())
    })
}

#[test]
fn a_group_s_quality_2_stays_with_its_member() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut members = group(&broker, version, ["one", "two"]);
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        publisher.deliver(&message("t", 2, 1, b"x"));
        let chosen = receiving_member(&mut members);
        receive(&mut members[chosen], b"x");
        let [first, second] = members;
        let (dead, mut other) = if chosen == 0 {
            (first, second)
        } else {
            (second, first)
        };
        // The dead member's session ends with its connection. Its message of QoS 2 goes to no other member.
        dead.cut();
        publisher.deliver(&message("t", 2, 2, b"next"));
        receive(&mut other, b"next");
        assert!(other.is_served());
    }
}

#[test]
fn a_group_s_quality_1_goes_to_another_member_first() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // a SHOULD that Mosquitto leaves out
    }
    for version in VERSIONS {
        let mut members = group(&broker, version, ["one", "two"]);
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        publisher.deliver(&message("t", 1, 1, b"x"));
        let chosen = receiving_member(&mut members);
        receive(&mut members[chosen], b"x");
        let [first, second] = members;
        let (dead, mut other) = if chosen == 0 {
            (first, second)
        } else {
            (second, first)
        };
        dead.cut();
        let id = receive(&mut other, b"x");
        other.acknowledge(PubAck, id);
        publisher.deliver(&message("t", 1, 2, b"next"));
        receive(&mut other, b"next");
    }
}

#[test]
fn a_group_s_message_that_is_refused_is_gone() {
    let broker = Broker::start();
    for (qos, kind) in [(1, 0x40), (2, 0x50)] {
        let mut members = group(&broker, Version::V5, ["one", "two"]);
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        publisher.deliver(&message("t", qos, 1, b"unwanted"));
        let chosen = receiving_member(&mut members);
        let id = receive(&mut members[chosen], b"unwanted").to_be_bytes();
        members[chosen].send([kind, 3, id[0], id[1], 0x83]);
        for conn in &mut members {
            conn.expect_nothing_from(&mut publisher);
        }
    }
}

#[test]
fn each_member_gets_the_quality_that_it_was_granted() {
    let broker = Broker::start();
    for version in VERSIONS {
        // Each version has its own topic, since a member that ends may leave unacknowledged messages to the next members of its group.
        let topic = format!("{version:?}");
        let mut members: Vec<Conn> = (0..3)
            .map(|qos| {
                let mut conn = Conn::connected(&broker, version, &format!("member{qos}"));
                conn.subscribe(&format!("$share/g/{topic}"), qos);
                conn
            })
            .collect();
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        for id in 1..=9 {
            publisher.deliver(&message(&topic, 2, id, b"x"));
        }
        let mut count = 0;
        until("each message", || {
            for (qos, conn) in members.iter_mut().enumerate() {
                while conn.has_received() {
                    assert_eq!(usize::from(conn.packet().publish().qos.bits()), qos);
                    count += 1;
                }
            }
            count >= 9
        });
        assert_eq!(count, 9);
        assert!(members.iter_mut().all(Conn::is_served), "each message once");
    }
}
