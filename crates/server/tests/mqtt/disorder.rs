//! Tests clients that send valid packets in random order. They use packet ids again, acknowledge messages that were never sent, and begin, change and end
//! subscriptions in one write. Meanwhile others take over their sessions, and topics are deleted. Other clients are not affected.

use crate::doors::http;
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, VERSIONS, id, message, plain_connect, will};
use crore_wire::mqtt::{
    Ack, Packet, Properties, PropertyWriter, Qos, ReasonCode, RetainHandling, SubscribeOptions,
    Version, encode,
};
use std::collections::BTreeSet;

const FILTERS: [&str; 8] = [
    "t",
    "u",
    "t/+",
    "#",
    "+",
    "$share/g/t",
    "$share/g/+",
    "$share/h/t/#",
];
const TOPICS: [&str; 4] = ["t", "u", "t/a", "t/b"];
const REASONS: [ReasonCode; 2] = [ReasonCode::SUCCESS, ReasonCode::UNSPECIFIED_ERROR];
/// Number of connections.
const CONNECTIONS: u64 = 300;
/// Number of packets on each connection.
const PACKETS: u64 = 24;

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
    fn pick<'a, T: ?Sized>(&mut self, options: &[&'a T]) -> &'a T {
        options[self.below(options.len() as u64) as usize]
    }
    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }
}

fn packet(random: &mut Random, version: Version, out: &mut Vec<u8>) {
    let number = id(random.below(3) as u16 + 1);
    let nothing = Properties::default();
    match random.below(12) {
        0..4 => {
            let filters: Vec<_> = (0..=random.below(3))
                .map(|_| {
                    let filter = random.pick(&FILTERS);
                    let qos = Qos::from_repr(random.below(3) as u8).expect("a QoS");
                    let v5 = version == Version::V5;
                    let options = SubscribeOptions {
                        max_qos: qos,
                        no_local: v5 && !filter.starts_with('$') && random.chance(),
                        retain_as_published: v5 && random.chance(),
                        retain_handling: match v5 && random.chance() {
                            true => RetainHandling::SendIfNew,
                            false => RetainHandling::Send,
                        },
                    };
                    (filter, options)
                })
                .collect();
            encode::subscribe(out, version, number, &nothing, filters.into_iter());
        }
        4..6 => {
            let filters: Vec<_> = (0..=random.below(2))
                .map(|_| random.pick(&FILTERS))
                .collect();
            encode::unsubscribe(out, version, number, &nothing, filters.into_iter());
        }
        6..9 => {
            let payload: &[u8] = if random.chance() { b"" } else { &[b'x'; 40] };
            let topic = random.pick(&TOPICS);
            let mut publish = message(topic, random.below(3) as u8, number.get(), payload);
            publish.retain = random.chance();
            let mut properties = PropertyWriter::new();
            if version == Version::V5 && random.below(3) == 0 {
                properties.message_expiry_interval_s(random.below(3) as u32);
                properties.topic_alias(random.below(2) as u16 + 1);
                publish.properties = properties.properties();
            }
            publish.dup = publish.packet_id.is_some() && random.chance();
            encode::publish(out, version, &publish);
        }
        9..11 => {
            let reason = REASONS[random.below(2) as usize];
            let ack = Ack {
                packet_id: number,
                reason: if version == Version::V5 {
                    reason
                } else {
                    ReasonCode::SUCCESS
                },
                properties: nothing,
            };
            let success = Ack {
                reason: ReasonCode::SUCCESS,
                ..ack
            };
            match random.below(4) {
                0 => encode::puback(out, version, &ack),
                1 => encode::pubrec(out, version, &ack),
                2 => encode::pubrel(out, version, &success),
                _ => encode::pubcomp(out, version, &success),
            }
        }
        _ => encode::pingreq(out),
    }
}

#[test]
fn packets_in_random_order_do_not_affect_other_clients() {
    let small_limits = "[limits]\ntopics_per_connection = 5\n[mqtt]\nsession_messages = 3\n";
    let fewest = "[limits]\ntopics_per_shard = 2\nfilters_per_shard = 2\n[mqtt]\nreceive_max = 1\n\
                  inflight_max = 1\n[[rule]]\nmatch = \"#\"\nlog_messages = 0\nposition_age_s = 1\n";
    let latest = "[[rule]]\nmatch = \"#\"\nkeep = \"latest\"\n";
    for settings in [small_limits, fewest, latest] {
        send_in_random_order(settings);
    }
}

fn send_in_random_order(settings: &str) {
    let broker = Broker::with(settings);
    let mut witness = Conn::connected(&broker, Version::V5, "witness");
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut open = Vec::new();
    for number in 0..CONNECTIONS {
        let version = VERSIONS[random.below(2) as usize];
        let mut properties = PropertyWriter::new();
        if version == Version::V5 {
            properties.session_expiry_interval_s(if random.chance() { 600 } else { 0 });
            properties.receive_maximum(random.below(3) as u16 + 1);
            properties.topic_alias_maximum(random.below(3) as u16);
            if random.below(4) == 0 {
                properties.maximum_packet_size_bytes(60);
            }
        }
        let mut of_will = PropertyWriter::new();
        if version == Version::V5 {
            of_will.will_delay_interval_s(random.below(2) as u32);
        }
        let mut connect = plain_connect(version, random.pick(&["one", "two", "three"]));
        let mut last = will(random.pick(&TOPICS));
        last.properties = of_will.properties();
        last.retain = random.chance();
        connect.will = random.chance().then_some(last);
        connect.clean_start = random.below(3) == 0;
        connect.properties = properties.properties();
        let mut conn = Conn::open(&broker, version);
        let mut packets = Vec::new();
        encode::connect(&mut packets, &connect);
        for _ in 0..PACKETS {
            packet(&mut random, version, &mut packets);
        }
        conn.send(packets);
        open.push(conn);
        if open.len() > 4 {
            open.swap_remove(random.below(4) as usize).cut();
        }
        if broker.is_crore() && random.below(8) == 0 {
            let topic = random.pick(&TOPICS);
            http(&broker, &format!("DELETE /pub/{topic}"), &[], b"");
        }
        if number % 20 == 0 {
            assert!(witness.is_served(), "connection {number}");
        }
    }
    assert!(witness.is_served());
}

#[test]
fn message_returned_by_a_group_member_of_a_deleted_topic_leaves_others_alone() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // nobody else deletes topics
    }
    let retained: Vec<_> = (0..6).map(|n| format!("x/{n}")).collect();
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for topic in &retained {
        let mut message = message(topic, 1, 1, topic.as_bytes());
        message.retain = true;
        publisher.deliver(&message);
    }
    // Twelve rounds, so that the topics have different homes (the part of a shard that keeps topics), and the members connect to both
    // shards.
    for round in 0..12 {
        let topic = format!("t/{round}");
        let shared = format!("$share/g/{topic}");
        let mut member = Conn::connected(&broker, Version::V5, "member");
        member.subscribe(&shared, 1);
        publisher.deliver(&message(&topic, 1, 1, b"x"));
        assert_eq!(member.packet().publish().payload, b"x");
        let mut other = Conn::connected(&broker, Version::V5, "other");
        other.subscribe(&shared, 1);
        let (head, _) = http(&broker, &format!("DELETE /pub/{topic}"), &[], b"");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        // Sends SUBSCRIBE and UNSUBSCRIBE in one write, so that a home receives both in one turn (one round of its event loop).
        let mut packets = Vec::new();
        let (nothing, options) = (
            Properties::default(),
            SubscribeOptions::of(Qos::AtLeastOnce),
        );
        let filters = retained.iter().map(|topic| (&topic[..], options));
        encode::subscribe(&mut packets, Version::V5, id(1), &nothing, filters);
        let filters = std::iter::once(&shared[..]);
        encode::unsubscribe(&mut packets, Version::V5, id(2), &nothing, filters);
        member.send(packets);
        let mut left: BTreeSet<_> = retained.iter().cloned().collect();
        while !left.is_empty() {
            let received = member.packet();
            if let Packet::Publish(publish) = received.packet() {
                assert_eq!(publish.topic.as_bytes(), publish.payload);
                assert!(left.remove(publish.topic), "{} came twice", publish.topic);
            }
        }
        assert!(other.is_served(), "the message was deleted");
        member.leave();
    }
}
