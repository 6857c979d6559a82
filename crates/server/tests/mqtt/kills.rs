//! Tests durable sessions over many kills of the server, by random seeds. Clients connect and leave, subscribe, read, and acknowledge or
//! not, while others publish. Each client must receive every message that its publisher got acknowledged after the SUBACK of the client.
//! The server sends a message until the client acknowledges it, in the order of its topic. A message may be repeated, but no new message
//! may come after a later one.

use std::collections::{BTreeMap, BTreeSet};

use crore_rng::Rng;
use crore_wire::mqtt::{Packet, PacketType, Version};
use crore_wire::topic;

use crate::crash::{crash, start};
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, message};
use crate::support::state::State;

const TOPICS: [&str; 5] = ["a/x", "a/y", "b/x", "b/y", "none/x"];
const FILTERS: [&str; 6] = ["a/x", "a/+", "+/x", "b/#", "none/#", "#"];
const CLIENTS: usize = 8;
const STEPS: usize = 150;
/// Maximum number of attempts to read a message. All attempts together take some seconds; only a failing test needs more than a few.
const READS_MAX: usize = 400;

struct Client {
    name: String,
    conn: Option<Conn>,
    has_session: bool,
    /// For each filter with a SUBACK: the last number published to each topic before the SUBACK.
    filters: BTreeMap<&'static str, [u32; TOPICS.len()]>,
    seen: [BTreeSet<u32>; TOPICS.len()],
    /// The numbers that the client has acknowledged, by topic. The server must send all others again.
    acknowledged: [BTreeSet<u32>; TOPICS.len()],
}

struct SeededRun {
    seed: u64,
    rng: Rng,
    state: State,
    broker: Option<Broker>,
    publisher: Option<Conn>,
    clients: Vec<Client>,
    /// For each topic, the number of messages whose publish was acknowledged.
    published: [u32; TOPICS.len()],
}

impl Client {
    /// Receives a packet. Acknowledges a message if `acknowledges`. Returns whether the packet was a SUBACK.
    fn take(&mut self, acknowledges: bool, seed: u64) -> bool {
        let conn = self.conn.as_mut().expect("it is connected");
        let received = conn.packet();
        let publish = match received.packet() {
            Packet::SubAck(_) => return true,
            Packet::Publish(publish) => publish,
            other => panic!("seed {seed}: {other:?}"),
        };
        let topic_index = TOPICS.iter().position(|topic| *topic == publish.topic);
        let topic_index = topic_index.unwrap_or_else(|| panic!("seed {seed}: {}", publish.topic));
        let text = std::str::from_utf8(publish.payload).expect("text");
        let number: u32 = text.parse().expect("a number");
        let newest = self.seen[topic_index].last().copied().unwrap_or(0);
        assert!(
            !self.seen[topic_index].insert(number) || number > newest,
            "seed {seed}: {} got {number} of {} after {newest}",
            self.name,
            publish.topic
        );
        if acknowledges && let Some(id) = publish.packet_id {
            conn.acknowledge(PacketType::PubAck, id.get());
            self.acknowledged[topic_index].insert(number);
        }
        false
    }

    /// The first message that the client has not acknowledged: its topic and its number.
    fn lacks(&self, published: &[u32]) -> Option<(&'static str, u32)> {
        for (filter, since) in &self.filters {
            for (topic_index, name) in TOPICS.iter().enumerate() {
                if !topic::matches(filter.as_bytes(), name.as_bytes()) {
                    continue;
                }
                let mut all = since[topic_index] + 1..=published[topic_index];
                if let Some(number) =
                    all.find(|number| !self.acknowledged[topic_index].contains(number))
                {
                    return Some((name, number));
                }
            }
        }
        None
    }
}

impl SeededRun {
    fn broker(&self) -> &Broker {
        self.broker.as_ref().expect("it runs")
    }

    /// Most steps are for connected clients: between two kills a client must read, leave messages unacknowledged, and then change its
    /// session.
    fn step(&mut self) {
        let dice = self.rng.below(100);
        match dice {
            0..=29 => {
                for _ in 0..self.rng.range(1, 12) {
                    let topic = self.rng.below(TOPICS.len());
                    self.publish(topic);
                }
                return;
            }
            30..=44 => {
                let client_index = self.rng.below(CLIENTS);
                return self.connect(client_index);
            }
            94.. => return self.kill(),
            _ => {}
        }
        let connected = |client_index: &usize| self.clients[*client_index].conn.is_some();
        let connected: Vec<usize> = (0..CLIENTS).filter(connected).collect();
        if connected.is_empty() {
            return;
        }
        let client_index = self.rng.pick(&connected);
        match dice {
            45..=69 => self.read(client_index),
            70..=87 => self.subscribe(client_index),
            _ => {
                if let Some(conn) = self.clients[client_index].conn.take() {
                    match self.rng.chance(50) {
                        true => conn.cut(),
                        false => drop(conn),
                    }
                }
            }
        }
    }

    fn publish(&mut self, topic: usize) {
        let broker = self.broker.as_ref().expect("it runs");
        let publisher = self
            .publisher
            .get_or_insert_with(|| Conn::connected(broker, Version::V5, ""));
        let number = self.published[topic] + 1;
        publisher.deliver(&message(TOPICS[topic], 1, 1, number.to_string().as_bytes()));
        self.published[topic] = number;
    }

    fn connect(&mut self, client_index: usize) {
        let version = match client_index % 2 {
            0 => Version::V5,
            _ => Version::V311,
        };
        if self.clients[client_index].conn.is_some() {
            return;
        }
        let mut conn = Conn::open(self.broker(), version);
        let present = conn.resume(&self.clients[client_index].name);
        let client = &mut self.clients[client_index];
        // A session without a subscription does not have to survive a crash.
        assert!(
            present || !client.has_session,
            "seed {}: the session of {} has gone",
            self.seed,
            client.name
        );
        client.conn = Some(conn);
    }

    fn read(&mut self, client_index: usize) {
        let acknowledges = self.rng.chance(50);
        let client = &mut self.clients[client_index];
        for _ in 0..self.rng.range(1, 30) {
            let is_coming = client.conn.as_mut().is_some_and(Conn::has_received);
            if !is_coming {
                return;
            }
            client.take(acknowledges, self.seed);
        }
    }

    fn subscribe(&mut self, client_index: usize) {
        let filter = self.rng.pick(&FILTERS);
        let waits = self.rng.chance(80);
        let (seed, published) = (self.seed, self.published);
        let client = &mut self.clients[client_index];
        let Some(conn) = &mut client.conn else { return };
        conn.send_subscribe(filter, 1);
        if !waits {
            // Without a SUBACK it is unknown whether the session has the filter.
            return self.kill();
        }
        while !client.take(true, seed) {}
        client.has_session = true;
        client.filters.entry(filter).or_insert(published);
    }

    fn kill(&mut self) {
        let broker = self.broker.take().expect("it runs");
        self.publisher = None;
        self.broker = Some(crash(&self.state, broker));
        for client_index in 0..CLIENTS {
            self.clients[client_index].conn = None;
            if self.rng.chance(60) {
                self.connect(client_index);
            }
        }
    }

    /// All clients connect, and receive what they still lack.
    fn settle(&mut self) {
        for client_index in 0..CLIENTS {
            self.connect(client_index);
            let (seed, published) = (self.seed, self.published);
            let client = &mut self.clients[client_index];
            while let Some((topic, number)) = client.lacks(&published) {
                let conn = client.conn.as_mut().expect("it is connected");
                let is_coming = eventually_receives(conn);
                let name = &client.name;
                assert!(is_coming, "seed {seed}: {name} lacks {number} of {topic}");
                client.take(true, seed);
            }
        }
    }
}

/// Whether a packet is received within `READS_MAX` attempts.
fn eventually_receives(conn: &mut Conn) -> bool {
    (0..READS_MAX).any(|_| conn.has_received())
}

#[test]
fn acknowledged_messages_reach_durable_sessions_over_kills_in_order() {
    for seed in [1, 2] {
        let state = State::new();
        let Some(broker) = start(&state) else { return };
        let client = |n| Client {
            name: format!("client-{n}"),
            conn: None,
            has_session: false,
            filters: BTreeMap::new(),
            seen: Default::default(),
            acknowledged: Default::default(),
        };
        let mut run = SeededRun {
            seed,
            rng: Rng::new(seed),
            state,
            broker: Some(broker),
            publisher: None,
            clients: (0..CLIENTS).map(client).collect(),
            published: [0; TOPICS.len()],
        };
        for _ in 0..STEPS {
            run.step();
        }
        run.kill();
        run.settle();
    }
}
