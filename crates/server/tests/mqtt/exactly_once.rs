//! Tests QoS 2 over kills of the server (`state.durable_sessions`). A message is published once, and each subscriber receives it once. A
//! kill may come between any two packets.
//!
//! The clients do what MQTT 5.0 section 4.3.3 says: a sender keeps each message until its PUBREC, and its packet id until the PUBCOMP. A
//! receiver keeps the packet id from the PUBLISH until the PUBREL. Packet ids are used again as soon as they are free.

use std::collections::BTreeSet;

use crore_rng::Rng;
use crore_wire::mqtt::{Packet, PacketType, Publish, ReasonCode, Version};

use crate::crash::{crash, is_in_the_log, start, start_with, start_with_limit};
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, message};
use crate::support::state::State;
use crate::support::until;

fn connect(broker: &Broker, client: &str) -> (Conn, bool) {
    let mut conn = Conn::open(broker, Version::V5);
    let present = conn.resume(client);
    (conn, present)
}

fn payload(conn: &mut Conn) -> (u16, bool, String) {
    let received = conn.packet();
    let publish = received.publish();
    let text = String::from_utf8_lossy(publish.payload).into_owned();
    (publish.packet_id.expect("an id").get(), publish.dup, text)
}

#[test]
fn qos_2_message_that_a_client_sends_again_after_a_crash_is_published_once() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut watcher, _) = connect(&broker, "watcher");
    watcher.subscribe("t", 1);
    watcher.leave();
    let (mut conn, _) = connect(&broker, "publisher");
    let publish_one = message("t", 2, 7, b"one");
    conn.publish(&publish_one);
    assert_eq!(conn.packet().ack(PacketType::PubRec).0, 7);
    let broker = crash(&state, broker);
    let (mut conn, present) = connect(&broker, "publisher");
    assert!(
        present,
        "a session that has published needs no subscription"
    );
    conn.publish(&Publish {
        dup: true,
        ..publish_one
    });
    assert_eq!(conn.packet().ack(PacketType::PubRec).0, 7);
    let broker = crash(&state, broker);
    let (mut conn, _) = connect(&broker, "publisher");
    conn.acknowledge(PacketType::PubRel, 7);
    let released = conn.packet().ack(PacketType::PubComp);
    assert_eq!(released, (7, ReasonCode::SUCCESS));
    // Again, as if the PUBCOMP had been lost with the server.
    let broker = crash(&state, broker);
    let (mut conn, _) = connect(&broker, "publisher");
    conn.acknowledge(PacketType::PubRel, 7);
    let released = conn.packet().ack(PacketType::PubComp);
    assert_eq!(released, (7, ReasonCode::PACKET_IDENTIFIER_NOT_FOUND));
    // The packet id is free: the next message has it too.
    conn.deliver(&message("t", 2, 7, b"two"));
    let (mut watcher, _) = connect(&broker, "watcher");
    for text in ["one", "two"] {
        let (id, _, received) = payload(&mut watcher);
        assert_eq!(received, text);
        watcher.acknowledge(PacketType::PubAck, id);
    }
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    watcher.expect_nothing_from(&mut publisher);
}

#[test]
fn qos_2_message_is_recognised_when_only_a_checkpoint_has_it() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut watcher, _) = connect(&broker, "watcher");
    watcher.subscribe("t", 1);
    let (mut conn, _) = connect(&broker, "publisher");
    let one = message("t", 2, 7, b"a message in a checkpoint");
    conn.publish(&one);
    conn.packet().ack(PacketType::PubRec);
    let (id, _, _) = payload(&mut watcher);
    watcher.acknowledge(PacketType::PubAck, id);
    assert!(watcher.is_served());
    watcher.leave();
    until("the checkpoint", || !is_in_the_log(&state, one.payload));
    let broker = crash(&state, broker);
    let (mut conn, _) = connect(&broker, "publisher");
    conn.publish(&Publish { dup: true, ..one });
    assert_eq!(conn.packet().ack(PacketType::PubRec).0, 7);
    conn.acknowledge(PacketType::PubRel, 7);
    let released = conn.packet().ack(PacketType::PubComp);
    assert_eq!(released, (7, ReasonCode::SUCCESS));
    let (mut watcher, _) = connect(&broker, "watcher");
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    watcher.expect_nothing_from(&mut publisher);
}

/// The limits are lower after the crash, so the server would refuse the message now. But it is already in the log, so the client gets the
/// missing answer, and the packet id is free after that.
#[test]
fn qos_2_message_that_is_in_the_log_is_acknowledged_although_the_limits_are_lower_now() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut watcher, _) = connect(&broker, "watcher");
    watcher.subscribe("t", 1);
    watcher.leave();
    let (mut conn, _) = connect(&broker, "publisher");
    let [known, unknown] = [b'a', b'b'].map(|byte| vec![byte; 2_000]);
    conn.publish(&message("t", 2, 7, &known));
    assert_eq!(conn.packet().ack(PacketType::PubRec).0, 7);
    broker.kill();
    let broker = start_with_limit(&state, true, 1_000).expect("a server of ours");
    let (mut conn, _) = connect(&broker, "publisher");
    for (id, payload, expected) in [
        (7, &known, ReasonCode::SUCCESS),
        (8, &unknown, ReasonCode::QUOTA_EXCEEDED),
    ] {
        let again = message("t", 2, id, payload);
        conn.publish(&Publish { dup: true, ..again });
        assert_eq!(conn.packet().ack(PacketType::PubRec), (id, expected));
    }
    conn.acknowledge(PacketType::PubRel, 7);
    let released = conn.packet().ack(PacketType::PubComp);
    assert_eq!(released, (7, ReasonCode::SUCCESS));
    for id in [7, 8] {
        conn.deliver(&message("t", 2, id, b"new"));
    }
    let (mut watcher, _) = connect(&broker, "watcher");
    let mut lengths = [(); 3].map(|()| {
        let (id, _, text) = payload(&mut watcher);
        watcher.acknowledge(PacketType::PubAck, id);
        text.len()
    });
    lengths.sort();
    assert_eq!(lengths, [3, 3, 2_000]);
}

#[test]
fn qos_2_message_is_recognised_by_a_server_without_session_records() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut watcher, _) = connect(&broker, "watcher");
    watcher.subscribe("t", 1);
    watcher.leave();
    let (mut conn, _) = connect(&broker, "publisher");
    let one = message("t", 2, 7, b"one");
    conn.publish(&one);
    assert_eq!(conn.packet().ack(PacketType::PubRec).0, 7);
    conn.cut();
    broker.stop();
    let broker = start_with(&state, false).expect("a server of ours");
    let (mut conn, present) = connect(&broker, "publisher");
    assert!(present);
    conn.publish(&Publish { dup: true, ..one });
    assert_eq!(conn.packet().ack(PacketType::PubRec).0, 7);
    let (mut watcher, _) = connect(&broker, "watcher");
    let (id, _, _) = payload(&mut watcher);
    watcher.acknowledge(PacketType::PubAck, id);
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    watcher.expect_nothing_from(&mut publisher);
}

/// A client has an unreleased message when a server starts that records sessions for the first time.
#[test]
fn qos_2_message_from_before_the_records_is_recognised_after_each_crash_until_it_is_released() {
    let state = State::new();
    let Some(broker) = start_with(&state, false) else {
        return;
    };
    let (mut watcher, _) = connect(&broker, "watcher");
    watcher.subscribe("t", 1);
    watcher.leave();
    let (mut conn, _) = connect(&broker, "publisher");
    let one = message("t", 2, 7, b"one");
    conn.publish(&one);
    assert_eq!(conn.packet().ack(PacketType::PubRec).0, 7);
    conn.cut();
    broker.stop();
    let mut broker = start(&state).expect("a server of ours");
    for crashes in 0..3 {
        let (mut conn, present) = connect(&broker, "publisher");
        assert!(present, "{crashes}");
        conn.publish(&Publish { dup: true, ..one });
        assert_eq!(conn.packet().ack(PacketType::PubRec).0, 7);
        // The session goes on with a message that its home knows.
        conn.deliver(&message("other", 2, 8, b"other"));
        broker = crash(&state, broker);
    }
    let (mut conn, _) = connect(&broker, "publisher");
    conn.acknowledge(PacketType::PubRel, 7);
    let released = conn.packet().ack(PacketType::PubComp);
    assert_eq!(released, (7, ReasonCode::SUCCESS));
    let broker = crash(&state, broker);
    let (mut conn, _) = connect(&broker, "publisher");
    conn.deliver(&message("t", 2, 7, b"two"));
    let (mut watcher, _) = connect(&broker, "watcher");
    for text in ["one", "two"] {
        let (id, _, received) = payload(&mut watcher);
        assert_eq!(received, text);
        watcher.acknowledge(PacketType::PubAck, id);
    }
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    watcher.expect_nothing_from(&mut publisher);
}

#[test]
fn session_that_begins_anew_publishes_with_the_packet_ids_of_the_one_before() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut watcher, _) = connect(&broker, "watcher");
    watcher.subscribe("t", 1);
    watcher.leave();
    let (mut conn, _) = connect(&broker, "publisher");
    conn.publish(&message("t", 2, 7, b"one"));
    conn.packet().ack(PacketType::PubRec);
    let broker = crash(&state, broker);
    // Clean Start without a session that outlives the connection.
    let mut conn = Conn::connected(&broker, Version::V5, "publisher");
    conn.leave();
    let (mut conn, present) = connect(&broker, "publisher");
    assert!(!present);
    conn.deliver(&message("t", 2, 7, b"two"));
    let (mut watcher, _) = connect(&broker, "watcher");
    for text in ["one", "two"] {
        let (id, _, received) = payload(&mut watcher);
        assert_eq!(received, text);
        watcher.acknowledge(PacketType::PubAck, id);
    }
}

#[test]
fn qos_2_delivery_continues_after_a_crash() {
    let state = State::new();
    let Some(broker) = start(&state) else { return };
    let (mut conn, _) = connect(&broker, "it");
    conn.subscribe("t", 2);
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    publisher.deliver(&message("t", 2, 1, b"one"));
    let (id, dup, text) = payload(&mut conn);
    assert_eq!((dup, &*text), (false, "one"));
    let broker = crash(&state, broker);
    let (mut conn, present) = connect(&broker, "it");
    assert!(present);
    assert_eq!(payload(&mut conn), (id, true, "one".to_string()));
    conn.acknowledge(PacketType::PubRec, id);
    assert_eq!(conn.packet().ack(PacketType::PubRel).0, id);
    let broker = crash(&state, broker);
    let (mut conn, _) = connect(&broker, "it");
    assert_eq!(conn.packet().ack(PacketType::PubRel).0, id);
    conn.acknowledge(PacketType::PubComp, id);
    let mut publisher = Conn::connected(&broker, Version::V5, "");
    publisher.deliver(&message("t", 2, 1, b"two"));
    let (id, dup, text) = payload(&mut conn);
    assert_eq!((dup, &*text), (false, "two"));
    conn.acknowledge(PacketType::PubRec, id);
    assert_eq!(conn.packet().ack(PacketType::PubRel).0, id);
}

const TOPICS: [&str; 4] = ["a/x", "a/y", "b/x", "none/x"];
/// Each device subscribes to all topics, by names or by a filter.
const FILTERS: [&[&str]; 4] = [&["#"], &TOPICS, &["a/+", "b/x", "none/#"], &["#", "a/x"]];
const DEVICES: usize = 4;
const STEPS: usize = 250;
/// Packet ids in use at once. They are few, so that each is used again soon.
const IDS: u16 = 5;
/// Maximum number of attempts to read. All attempts together take some seconds; only a failing test needs more than a few.
const READS_MAX: usize = 400;

/// A message that the device has sent, until its PUBCOMP.
struct Outgoing {
    id: u16,
    topic: usize,
    qos: u8,
    text: String,
    is_released: bool,
}

/// A client that keeps its side of the session in memory, over kills of the server.
struct Device {
    name: String,
    conn: Option<Conn>,
    has_session: bool,
    outgoing: Vec<Outgoing>,
    /// Packet ids of QoS 2 messages from the server that are not released.
    incoming: BTreeSet<u16>,
    /// By topic and QoS, the last number received of each publisher.
    came: [[[u32; DEVICES]; 3]; TOPICS.len()],
}

struct SeededRun {
    seed: u64,
    rng: Rng,
    // It is dropped before its directory is removed.
    broker: Option<Broker>,
    state: State,
    devices: Vec<Device>,
    /// By topic, QoS and publisher: the number of messages sent.
    sent: [[[u32; DEVICES]; 3]; TOPICS.len()],
}

impl Device {
    /// Receives a packet, and answers it if `answers`.
    fn take(&mut self, answers: bool, seed: u64) {
        let conn = self.conn.as_mut().expect("it is connected");
        let received = conn.packet();
        match received.packet() {
            Packet::Publish(publish) => {
                let id = publish.packet_id.expect("an id").get();
                let qos = publish.qos.bits();
                let is_new = qos == 1 || self.incoming.insert(id);
                if is_new {
                    let (topic, text) = (publish.topic, publish.payload);
                    count_received(&mut self.came, &self.name, topic, qos, text, seed);
                }
                let kind = match qos {
                    1 => PacketType::PubAck,
                    _ => PacketType::PubRec,
                };
                if answers {
                    conn.acknowledge(kind, id);
                }
            }
            Packet::PubRel(ack) => {
                self.incoming.remove(&ack.packet_id.get());
                if answers {
                    conn.acknowledge(PacketType::PubComp, ack.packet_id.get());
                }
            }
            Packet::PubRec(ack) => {
                let id = ack.packet_id.get();
                let sent = self.outgoing.iter_mut().find(|sent| sent.id == id);
                sent.expect("it was sent").is_released = true;
                if answers {
                    conn.acknowledge(PacketType::PubRel, id);
                }
            }
            Packet::PubAck(ack) | Packet::PubComp(ack) => {
                let id = ack.packet_id.get();
                self.outgoing.retain(|sent| sent.id != id);
            }
            Packet::SubAck(_) => {}
            other => panic!("seed {seed}: {other:?}"),
        }
    }

    fn send(&mut self, device_index: usize, dup: bool) {
        let sent = &self.outgoing[device_index];
        let conn = self.conn.as_mut().expect("it is connected");
        if sent.is_released {
            return conn.acknowledge(PacketType::PubRel, sent.id);
        }
        let publish = message(TOPICS[sent.topic], sent.qos, sent.id, sent.text.as_bytes());
        conn.publish(&Publish { dup, ..publish });
    }
}

/// Checks and counts a received message, whose text is `publisher number`. With QoS 2 it must be the next one of its publisher. With QoS 1
/// it may also be a repeated one.
fn count_received(
    came: &mut [[[u32; DEVICES]; 3]; TOPICS.len()],
    device: &str,
    topic: &str,
    qos: u8,
    text: &[u8],
    seed: u64,
) {
    let at = TOPICS.iter().position(|it| *it == topic).expect("a topic");
    let text = std::str::from_utf8(text).expect("text");
    let (publisher, number) = text.split_once(' ').expect("two words");
    let publisher: usize = publisher.parse().expect("a number");
    let number: u32 = number.trim().parse().expect("a number");
    let last = &mut came[at][usize::from(qos)][publisher];
    let is_next = number == *last + 1 || qos == 1 && number <= *last;
    assert!(
        is_next,
        "seed {seed}: {device} got {number} of {publisher} in {topic} with QoS {qos} after {last}"
    );
    *last = number.max(*last);
}

impl SeededRun {
    fn connect(&mut self, at: usize) {
        let broker = self.broker.as_ref().expect("it runs");
        let device = &mut self.devices[at];
        if device.conn.is_some() {
            return;
        }
        let (conn, present) = connect(broker, &device.name);
        assert!(
            present || !device.has_session,
            "seed {}: the session of {} has gone",
            self.seed,
            device.name
        );
        (device.conn, device.has_session) = (Some(conn), true);
        for at in 0..device.outgoing.len() {
            device.send(at, true);
        }
    }

    fn step(&mut self) {
        let device_index = self.rng.below(DEVICES);
        match self.rng.below(100) {
            0..=34 => self.publish(device_index),
            35..=49 => self.connect(device_index),
            50..=87 => self.read(device_index),
            88..=91 => {
                if let Some(conn) = self.devices[device_index].conn.take() {
                    match self.rng.chance(50) {
                        true => conn.cut(),
                        false => drop(conn),
                    }
                }
            }
            _ => self.kill(),
        }
    }

    fn publish(&mut self, device_index: usize) {
        let device = &mut self.devices[device_index];
        if device.conn.is_none() {
            return;
        }
        for _ in 0..self.rng.range(1, 4) {
            let is_free = |id: &u16| device.outgoing.iter().all(|sent| sent.id != *id);
            let Some(id) = (1..=IDS).find(is_free) else {
                return;
            };
            let topic = self.rng.below(TOPICS.len());
            // With QoS 1 a message that is sent again may arrive after later ones. So each device uses one QoS for each topic.
            let qos = 1 + ((topic + device_index) % 2) as u8;
            let number = &mut self.sent[topic][usize::from(qos)][device_index];
            *number += 1;
            device.outgoing.push(Outgoing {
                id,
                topic,
                qos,
                // Two large messages in flight are more than a record of the session may have.
                text: match self.rng.chance(20) {
                    true => format!("{device_index} {number:<5000}"),
                    false => format!("{device_index} {number}"),
                },
                is_released: false,
            });
            device.send(device.outgoing.len() - 1, false);
        }
    }

    fn read(&mut self, device_index: usize) {
        let answers = self.rng.chance(80);
        let kills = self.rng.chance(50);
        let device = &mut self.devices[device_index];
        for _ in 0..self.rng.range(1, 20) {
            if !device.conn.as_mut().is_some_and(Conn::has_received) {
                return;
            }
            device.take(answers, self.seed);
            if !answers {
                // A client answers in order, so after a packet without an answer it answers no more on this connection.
                device.conn = None;
                if kills {
                    self.kill();
                }
                return;
            }
        }
    }

    fn kill(&mut self) {
        let broker = self.broker.take().expect("it runs");
        self.broker = Some(crash(&self.state, broker));
        for device in &mut self.devices {
            device.conn = None;
        }
    }

    /// All devices reconnect, complete the messages that they have sent, and receive the messages that they lack.
    fn settle(&mut self) {
        for device_index in 0..DEVICES {
            self.connect(device_index);
        }
        let mut looks = 0;
        while self.devices.iter().any(|it| !it.outgoing.is_empty())
            || self.devices.iter().any(|it| it.came != self.sent)
        {
            let is_read = self.devices.iter_mut().map(|device| {
                let is_coming = device.conn.as_mut().is_some_and(Conn::has_received);
                if is_coming {
                    device.take(true, self.seed);
                }
                is_coming
            });
            looks = match is_read.filter(|is_read| *is_read).count() {
                0 => looks + 1,
                _ => 0,
            };
            for device in &self.devices {
                assert!(
                    looks < READS_MAX,
                    "seed {}: {} has {:?} of {:?} and waits for {} answers",
                    self.seed,
                    device.name,
                    device.came,
                    self.sent,
                    device.outgoing.len()
                );
            }
        }
    }
}

#[test]
fn qos_2_messages_come_once_and_in_order_over_kills() {
    let seeds = std::env::var("CRORE_SEEDS").ok();
    let seeds = seeds.map_or(1, |seeds| seeds.parse().expect("a number"));
    for seed in 1..=seeds {
        let state = State::new();
        let Some(broker) = start(&state) else { return };
        let device = |at: usize| Device {
            name: format!("device-{at}"),
            conn: None,
            has_session: false,
            outgoing: Vec::new(),
            incoming: BTreeSet::new(),
            came: Default::default(),
        };
        let mut run = SeededRun {
            seed,
            rng: Rng::new(seed),
            state,
            broker: Some(broker),
            devices: (0..DEVICES).map(device).collect(),
            sent: Default::default(),
        };
        for (at, filters) in FILTERS.iter().enumerate() {
            run.connect(at);
            let conn = run.devices[at].conn.as_mut().expect("it is connected");
            for filter in *filters {
                conn.subscribe(filter, 2);
            }
        }
        for _ in 0..STEPS {
            run.step();
        }
        run.kill();
        run.settle();
    }
}
