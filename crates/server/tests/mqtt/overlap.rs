//! Tests a client with several subscriptions that match one message. It receives one copy, live and from the log, also when one of the
//! subscriptions ends.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, id, message};
use crore_wire::mqtt::PacketType::{PubAck, PubComp, PubRec};
use crore_wire::mqtt::{
    Packet, Properties, PropertyWriter, Qos, SubscribeOptions, Version, encode,
};
use std::collections::BTreeMap;

/// Filters with their QoS. The subscription identifier is the index in this list, counted from 1.
const FILTERS: [(&str, u8); 4] = [("a/b", 1), ("a/+", 2), ("a/#", 1), ("c/#", 1)];
/// Topics, each with the identifiers of its matching subscriptions and the QoS of the delivery if the message is published with QoS 2.
const TOPICS: [(&str, &[u32], u8); 4] = [
    ("a/b", &[1, 2, 3], 2),
    ("a/c", &[2, 3], 2),
    ("a/b/d", &[3], 1),
    ("c/x", &[4], 1),
];
/// The client's Receive Maximum: small, so that the client is behind for long.
const RECEIVE_MAX: u16 = 3;

/// A received copy of a message: QoS and subscription identifiers.
type Received = (u8, Vec<u32>);

fn open(broker: &Broker, name: &str) -> (Conn, bool) {
    Conn::with_properties(broker, name, false, |set| {
        set.session_expiry_interval_s(600)
            .receive_maximum(RECEIVE_MAX);
    })
}

fn subscribe_all(conn: &mut Conn) {
    for (n, (filter, qos)) in (1..).zip(FILTERS) {
        let options = SubscribeOptions::of(Qos::from_repr(qos).expect("a QoS"));
        let mut set = PropertyWriter::new();
        set.subscription_identifier(u32::from(n));
        conn.write(|out| {
            let filters = std::iter::once((filter, options));
            encode::subscribe(out, Version::V5, id(n), &set.properties(), filters);
        });
        assert!(matches!(conn.packet().packet(), Packet::SubAck(_)));
    }
}

fn publish(publisher: &mut Conn, numbers: std::ops::Range<u16>) {
    for number in numbers {
        let (topic, ..) = TOPICS[usize::from(number) % TOPICS.len()];
        publisher.deliver(&message(topic, 2, number, number.to_string().as_bytes()));
    }
}

/// The messages that a client has received.
#[derive(Default)]
struct Deliveries {
    /// The copies received of each message, by the message's number.
    copies_by_number: BTreeMap<u16, Vec<Received>>,
    order: Vec<u16>,
    /// Number of received messages of QoS 2 that the server has not released yet.
    unreleased: usize,
    /// Whether an UNSUBACK has arrived.
    is_unsubscribed: bool,
}

impl Deliveries {
    /// Receives one packet, and answers it.
    fn receive(&mut self, conn: &mut Conn) {
        let received = conn.packet();
        match received.packet() {
            Packet::Publish(publish) => {
                let number: u16 = std::str::from_utf8(publish.payload)
                    .expect("text")
                    .parse()
                    .expect("a number");
                let mut identifiers: Vec<u32> =
                    publish.properties.subscription_identifiers().collect();
                identifiers.sort_unstable();
                let copies = self.copies_by_number.entry(number).or_default();
                copies.push((publish.qos.bits(), identifiers));
                self.order.push(number);
                let packet_id = publish.packet_id.expect("an id").get();
                let is_qos2 = publish.qos == Qos::ExactlyOnce;
                conn.acknowledge([PubAck, PubRec][usize::from(is_qos2)], packet_id);
                self.unreleased += usize::from(is_qos2);
            }
            Packet::PubRel(ack) => {
                conn.acknowledge(PubComp, ack.packet_id.get());
                self.unreleased -= 1;
            }
            Packet::UnsubAck(_) => self.is_unsubscribed = true,
            other => panic!("{other:?} came"),
        }
    }

    /// Receives packets until each of these messages has arrived, and the server has released all of QoS 2.
    fn receive_until(&mut self, conn: &mut Conn, numbers: std::ops::Range<u16>) {
        let has_all = |copies_by_number: &BTreeMap<u16, _>| {
            numbers.clone().all(|n| copies_by_number.contains_key(&n))
        };
        while !has_all(&self.copies_by_number) || self.unreleased > 0 {
            self.receive(conn);
        }
    }

    /// Checks that each message was received once, in the order of its topic, with all matching identifiers and the highest granted QoS.
    fn assert_each_once(&self, numbers: std::ops::Range<u16>) {
        let copies_by_number = &self.copies_by_number;
        assert!(
            copies_by_number.keys().copied().eq(numbers),
            "{copies_by_number:?}"
        );
        for (number, copies) in copies_by_number {
            let (topic, identifiers, qos) = TOPICS[usize::from(*number) % TOPICS.len()];
            assert_eq!(
                copies[..],
                [(qos, identifiers.to_vec())],
                "{number} of {topic}"
            );
        }
        for topic in 0..TOPICS.len() {
            let of_topic = self
                .order
                .iter()
                .filter(|n| usize::from(**n) % TOPICS.len() == topic);
            assert!(of_topic.is_sorted(), "{:?}", self.order);
        }
    }
}

impl Deliveries {
    /// Checks the copies that a client received, some before and some after its subscription to `ended_filter` was removed. Messages up to number 80 were published
    /// before that, later ones after it.
    fn assert_deliveries_around_end(&self, ended_filter: &str, matched: &[u16]) {
        for number in matched {
            let (topic, identifiers, qos) = TOPICS[usize::from(*number) % TOPICS.len()];
            let (copies, complete) = (&self.copies_by_number[number], (qos, identifiers.to_vec()));
            let remaining = delivery_after_end(ended_filter, *number).expect("it is matched");
            let allowed: &[&[&Received]] = match (complete == remaining, *number > 80) {
                (true, _) | (_, true) => &[&[&remaining]],
                (false, false) => &[&[&complete], &[&remaining], &[&complete, &remaining]],
            };
            let copies: Vec<&Received> = copies.iter().collect();
            assert!(
                allowed.contains(&&copies[..]),
                "{number} of {topic} without {ended_filter}: {copies:?}"
            );
        }
        for topic in 0..TOPICS.len() {
            // The first copies are in order, and so are the second copies.
            let mut seen = std::collections::BTreeSet::new();
            let of_topic = self
                .order
                .iter()
                .filter(|n| usize::from(**n) % TOPICS.len() == topic);
            let (first, second): (Vec<u16>, Vec<u16>) = of_topic.partition(|n| seen.insert(**n));
            assert!(
                first.is_sorted() && second.is_sorted(),
                "{first:?} {second:?}"
            );
        }
    }
}

#[test]
fn message_missed_by_a_session_comes_once_for_several_matching_subscriptions() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // several copies are allowed
    }
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let (mut conn, _) = open(&broker, "it");
    subscribe_all(&mut conn);
    let mut deliveries = Deliveries::default();
    // These messages make the subscriptions' positions differ: each has the offset of its own last message.
    publish(&mut publisher, 1..10);
    deliveries.receive_until(&mut conn, 1..10);
    let mut next = 10;
    for _ in 0..3 {
        conn.leave();
        publish(&mut publisher, next..next + 40);
        let (resumed, present) = open(&broker, "it");
        assert!(present);
        conn = resumed;
        // The client is still behind when live messages come. It reads everything before it leaves and connects again.
        for _ in 0..30 {
            deliveries.receive(&mut conn);
        }
        publish(&mut publisher, next + 40..next + 60);
        deliveries.receive_until(&mut conn, next..next + 60);
        next += 60;
    }
    for (topic, ..) in TOPICS {
        conn.expect_only_from(&mut publisher, topic);
    }
    deliveries.assert_each_once(1..next);
}

#[test]
fn connected_client_that_fell_behind_gets_each_message_once() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // several copies are allowed
    }
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let (mut conn, _) = open(&broker, "it");
    subscribe_all(&mut conn);
    let mut deliveries = Deliveries::default();
    let mut next = 1;
    for _ in 0..4 {
        publish(&mut publisher, next..next + 30);
        deliveries.receive_until(&mut conn, next..next + 30);
        next += 30;
    }
    for (topic, ..) in TOPICS {
        conn.expect_only_from(&mut publisher, topic);
    }
    deliveries.assert_each_once(1..next);
}

/// The delivery of a message after the filter `ended_filter` has ended: the identifiers of the remaining subscriptions that match, and their
/// highest QoS. `None` if none matches.
fn delivery_after_end(ended_filter: &str, number: u16) -> Option<Received> {
    let (_, identifiers, _) = TOPICS[usize::from(number) % TOPICS.len()];
    let filter = |identifier: u32| FILTERS[identifier as usize - 1];
    let remaining = identifiers
        .iter()
        .copied()
        .filter(|n| filter(*n).0 != ended_filter);
    let remaining: Vec<u32> = remaining.collect();
    let qos = remaining.iter().map(|n| filter(*n).1).max()?;
    Some((qos, remaining))
}

/// Each message with a remaining matching subscription arrives, in the order of its topic. If the ended subscription matched too, a
/// message from before the end may arrive twice: once with the ended subscription's identifier and once without (MQTT 5.0 section 3.3.4).
/// All other messages arrive once.
#[test]
fn other_matching_subscriptions_lose_nothing_when_one_is_removed() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // several copies are allowed
    }
    for ended_filter in ["a/b", "a/+", "a/#"] {
        let client = format!("without {ended_filter}");
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        let (mut conn, _) = open(&broker, &client);
        subscribe_all(&mut conn);
        conn.leave();
        publish(&mut publisher, 1..81);
        let (mut conn, present) = open(&broker, &client);
        assert!(present);
        let mut deliveries = Deliveries::default();
        for _ in 0..10 {
            deliveries.receive(&mut conn);
        }
        conn.write(|out| {
            let filters = std::iter::once(ended_filter);
            encode::unsubscribe(out, Version::V5, id(50), &Properties::default(), filters);
        });
        while !deliveries.is_unsubscribed {
            deliveries.receive(&mut conn);
        }
        publish(&mut publisher, 81..101);
        let matched: Vec<u16> = (1..101)
            .filter(|n| delivery_after_end(ended_filter, *n).is_some())
            .collect();
        while deliveries.unreleased > 0
            || !matched
                .iter()
                .all(|n| deliveries.copies_by_number.contains_key(n))
        {
            deliveries.receive(&mut conn);
        }
        for (n, (topic, ..)) in (0..).zip(TOPICS) {
            if delivery_after_end(ended_filter, n).is_some() {
                conn.expect_only_from(&mut publisher, topic);
            }
        }
        deliveries.assert_deliveries_around_end(ended_filter, &matched);
        publisher.leave();
    }
}

#[test]
fn client_that_leaves_while_it_gets_retained_messages_gets_all_of_them_and_no_older_ones() {
    let broker = Broker::start();
    let topics = ["r/1", "r/2", "r/3"];
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    let (mut other, _) = open(&broker, "for whom the log keeps messages");
    other.subscribe("r/#", 1);
    for topic in topics {
        publisher.deliver(&message(topic, 1, 1, b"old"));
        let mut retained = message(topic, 1, 2, b"retained");
        retained.retain = true;
        publisher.deliver(&retained);
    }
    let open = || {
        Conn::with_properties(&broker, "it", false, |set| {
            set.session_expiry_interval_s(600).receive_maximum(1);
        })
    };
    let (mut conn, _) = open();
    conn.write(|out| {
        let filters = ["r/1", "r/+"].map(|it| (it, SubscribeOptions::of(Qos::AtLeastOnce)));
        encode::subscribe(
            out,
            Version::V5,
            id(1),
            &Properties::default(),
            filters.into_iter(),
        );
    });
    // One message, which is not acknowledged, and the SUBACK.
    for _ in 0..2 {
        conn.packet();
    }
    conn.cut();
    let (mut conn, present) = open();
    assert!(present);
    for topic in topics {
        publisher.deliver(&message(topic, 1, 3, b"new"));
    }
    let (mut retained, mut others) = (BTreeMap::new(), Vec::new());
    while retained.len() < topics.len() || others.len() < topics.len() {
        let received = conn.packet();
        let publish = received.publish();
        match publish.retain {
            true => _ = retained.insert(publish.topic.to_string(), publish.payload.to_vec()),
            false => others.push(String::from_utf8_lossy(publish.payload).into_owned()),
        }
        let id = publish.packet_id.expect("an id").get();
        conn.acknowledge(PubAck, id);
    }
    assert_eq!(others, ["new"; 3]);
    assert!(retained.values().all(|it| it == b"retained"));
}
