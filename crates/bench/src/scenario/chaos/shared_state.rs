//! The state that the threads of a `chaos` run share: topics and their retention, the subscriptions of each client, the content of
//! messages, and the progress of publishers and clients.
//!
//! The seed and the number of connections determine everything except the progress.
//!
//! A *gap* is the notice that messages are lost.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::client::position::Position;
pub use crate::client::subscription::Transport;
use crate::measure::payload::Random;
use crate::scenario::centrifugo::frames::Format;
use strum::{IntoStaticStr, VariantArray};

/// The number of ordinary topics is the number of clients divided by this.
const CLIENTS_PER_TOPIC: u32 = 10;
/// One in this many clients subscribes to a topic with large messages, and to no other topic.
const LARGE_EVERY: u32 = 50;
/// Size of a large message. A few large messages fill the sockets and the outbox of a stalled client.
const LARGE_BYTES: usize = 60_000;
/// Bytes of a message's header: topic, number and length in hexadecimal.
const HEADER_BYTES: usize = 24;
/// The maximum number of topics of one client.
const TOPICS_MAX: u32 = 5;

/// The retention of a topic's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Retention {
    /// Keeps everything that a run publishes.
    Deep,
    /// Keeps too few messages for a client that is away for long.
    Short,
    /// Keeps nothing.
    Unkept,
    /// Keeps the large messages of about a minute.
    LargeDeep,
    /// Keeps the large messages of about a second. A slow client receives a gap and continues.
    LargeSkip,
    /// Keeps the large messages of about a second. A slow client is disconnected.
    LargeShort,
}

impl Retention {
    /// All kinds of retention.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The first level of the names of topics with this retention.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// `rule.log_messages`.
    pub fn log_messages(self) -> u32 {
        match self {
            Retention::Deep => 1_000_000,
            Retention::Short => 4,
            Retention::Unkept => 0,
            Retention::LargeDeep => 400,
            Retention::LargeSkip | Retention::LargeShort => 6,
        }
    }

    /// The number of messages that the log is certain to keep.
    pub fn kept_count(self) -> u32 {
        match self {
            Retention::Deep => u32::MAX,
            other => other.log_messages(),
        }
    }

    fn is_large(self) -> bool {
        matches!(
            self,
            Retention::LargeDeep | Retention::LargeSkip | Retention::LargeShort
        )
    }
}

/// The server's settings for a run.
pub fn settings(accepts_per_s: u32) -> String {
    // Outboxes have room for two large messages. The intervals of heartbeats and polls are so short that both happen in a run.
    let mut text = format!(
        "[limits]\naccepts_per_s = {accepts_per_s}\noutbox_bytes = 131072\n\n[heartbeat]\ninterval_s = 7\n\n[publish]\nidempotency_keys = 1000000\n"
    );
    for &retention in Retention::ALL {
        let slow = if retention == Retention::LargeSkip {
            "skip"
        } else {
            "disconnect"
        };
        text += &format!(
            "\n[[rule]]\nmatch = \"{}/#\"\nlog_messages = {}\nlog_bytes = \"256 MiB\"\nslow = \"{slow}\"\npoll_timeout_s = 5\n",
            retention.name(),
            retention.log_messages()
        );
    }
    text
}

/// One topic.
pub struct Topic {
    /// The topic's name.
    pub name: String,
    /// The retention of the topic's log.
    pub retention: Retention,
}

/// How a client subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// One subscription over HTTP, for as long as the client lives.
    Http(Transport),
    /// Centrifugo's protocol over WebSocket, with subscriptions that begin and end.
    Centrifugo(Format),
}

/// The protocol and the topics of one client.
pub struct ClientPlan {
    /// The number of the client.
    pub number: u32,
    /// How the client subscribes.
    pub protocol: Protocol,
    /// Whether the client begins with new messages instead of the kept ones.
    pub starts_live: bool,
    /// The client's topics.
    pub topics: Vec<u32>,
}

/// The state that the threads of a run share.
#[derive(Default)]
pub struct SharedState {
    /// The seed of all random numbers.
    pub seed: u64,
    /// The first client that speaks Centrifugo's protocol, as all after it do. `None`: none does.
    pub first_centrifugo: Option<u32>,
    /// All topics.
    pub topics: Vec<Topic>,
    /// For each topic, the number of messages whose publish has begun.
    pub begun_counts: Vec<AtomicU32>,
    /// The first reported position of each message, by topic and number.
    positions: Vec<Mutex<HashMap<u32, Position>>>,
    /// Whether network faults are enabled.
    pub has_faults: AtomicBool,
    /// Whether new messages may be published.
    pub may_publish: AtomicBool,
    /// Whether one last message must be published to every topic.
    pub must_publish_last: AtomicBool,
    /// Publishers without a request in flight or queued.
    pub idle_publishers: AtomicU32,
    /// Clients whose connection was answered.
    pub open_clients: AtomicU32,
    /// Clients that have the last message of each of their topics.
    pub complete_clients: AtomicU32,
    /// The maximum time before a client reconnects, in seconds. 0 means the default.
    pub away_max_s: AtomicU32,
    /// The mean time after which a client moves to the next address, in seconds. 0 means never.
    pub stay_mean_s: AtomicU32,
    /// Whether the threads must end.
    pub must_stop: AtomicBool,
}

impl SharedState {
    /// The state for `connections` clients.
    pub fn new(seed: u64, connections: u32) -> SharedState {
        let ordinary_count = (connections / CLIENTS_PER_TOPIC).max(20);
        let topics: Vec<Topic> = (0..ordinary_count)
            .map(|index| match index % 20 {
                0..14 => Retention::Deep,
                14..18 => Retention::Short,
                _ => Retention::Unkept,
            })
            .chain(
                Retention::ALL
                    .iter()
                    .copied()
                    .filter(|retention| retention.is_large()),
            )
            .enumerate()
            .map(|(index, retention)| Topic {
                name: format!("{}/{index}", retention.name()),
                retention,
            })
            .collect();
        SharedState {
            seed,
            begun_counts: topics.iter().map(|_| AtomicU32::new(0)).collect(),
            positions: topics.iter().map(|_| Mutex::default()).collect(),
            topics,
            ..SharedState::default()
        }
    }

    /// The number of ordinary topics. The topics with large messages have the numbers after them.
    pub fn ordinary_topic_count(&self) -> u32 {
        let large_count = Retention::ALL
            .iter()
            .filter(|retention| retention.is_large())
            .count();
        (self.topics.len() - large_count) as u32
    }

    /// The plan of client `number`.
    pub fn client_plan(&self, number: u32) -> ClientPlan {
        let is_centrifugo = self.first_centrifugo.is_some_and(|first| number >= first);
        let protocol = match is_centrifugo {
            true => Protocol::Centrifugo(
                [Format::Json, Format::Protobuf][(number + number / LARGE_EVERY) as usize % 2],
            ),
            false => {
                let transports = [Transport::Ws, Transport::Sse, Transport::Poll];
                Protocol::Http(transports[number as usize % 3])
            }
        };
        let mut random = Random::new(self.seed ^ u64::from(number) << 20);
        let ordinary_count = self.ordinary_topic_count();
        let large_count = self.topics.len() as u32 - ordinary_count;
        if number % LARGE_EVERY == LARGE_EVERY - 1 {
            // Each topic with large messages gets clients of every transport.
            let turn = number / LARGE_EVERY;
            let topics = vec![ordinary_count + (turn + turn / 3) % large_count];
            // A subscription of Centrifugo's protocol begins as the rule says, which is with the next message.
            let starts_live = is_centrifugo;
            return ClientPlan {
                number,
                protocol,
                starts_live,
                topics,
            };
        }
        let count = match random.below(10) {
            0..5 => 1,
            5..8 => 2,
            _ => 3 + random.below(TOPICS_MAX - 2),
        };
        let mut topics = Vec::new();
        while topics.len() < count as usize {
            let topic = random.below(ordinary_count);
            if !topics.contains(&topic) {
                topics.push(topic);
            }
        }
        // A long-poll never begins with new messages: while a client has no position, the server promises no message between two polls.
        let starts_live =
            is_centrifugo || protocol != Protocol::Http(Transport::Poll) && random.below(10) < 3;
        ClientPlan {
            number,
            protocol,
            starts_live,
            topics,
        }
    }

    /// The number of messages of `topic` whose publish has begun.
    pub fn begun_count(&self, topic: u32) -> u32 {
        self.begun_counts[topic as usize].load(Relaxed)
    }

    /// Checks the position of a message that an answer or a subscriber reports. It must be the position that was reported first.
    ///
    /// # Errors
    /// If the positions differ. The error is the first reported position.
    pub fn check_position(
        &self,
        topic: u32,
        number: u32,
        position: Position,
    ) -> Result<(), Position> {
        let positions = &self.positions[topic as usize];
        let mut positions = positions.lock().expect("no holder panics");
        let first_position = *positions.entry(number).or_insert(position);
        if first_position == position {
            Ok(())
        } else {
            Err(first_position)
        }
    }

    /// A random size for a message of `topic`.
    pub fn random_size(&self, topic: u32, random: &mut Random) -> usize {
        if self.topics[topic as usize].retention.is_large() {
            return LARGE_BYTES;
        }
        let payload_max = if random.below(40) == 0 { 20_000 } else { 600 };
        HEADER_BYTES + random.below(payload_max) as usize
    }
}

/// Appends a message.
pub fn write_payload(topic: u32, number: u32, size: usize, out: &mut String) {
    let letter = letter(topic, number) as char;
    *out += &format!("{topic:08x}{number:08x}{size:08x}");
    out.extend(std::iter::repeat_n(
        letter,
        size.saturating_sub(HEADER_BYTES),
    ));
}

/// The topic and the number of a message, if it is complete and unchanged.
pub fn read_payload(data: &[u8]) -> Option<(u32, u32)> {
    let parse_field = |start: usize| {
        let digits = std::str::from_utf8(data.get(start..start + 8)?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    };
    let (topic, number, size) = (parse_field(0)?, parse_field(8)?, parse_field(16)?);
    let letter = letter(topic, number);
    let is_complete = data.len() == (size as usize).max(HEADER_BYTES)
        && data[HEADER_BYTES..].iter().all(|byte| *byte == letter);
    is_complete.then_some((topic, number))
}

fn letter(topic: u32, number: u32) -> u8 {
    b'a' + (topic.wrapping_add(number) % 26) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_read_back_and_damage_is_seen() {
        for size in [24, 25, 600] {
            let mut text = String::new();
            write_payload(7, 9, size, &mut text);
            assert_eq!(text.len(), size);
            assert_eq!(read_payload(text.as_bytes()), Some((7, 9)));
            assert_eq!(read_payload(&text.as_bytes()[..size - 1]), None);
            assert_eq!(read_payload(format!("{text}x").as_bytes()), None);
        }
    }

    #[test]
    fn every_kind_of_topic_and_client_is_there() {
        let shared = SharedState::new(1, 200);
        for &retention in Retention::ALL {
            assert!(
                shared
                    .topics
                    .iter()
                    .any(|topic| topic.retention == retention)
            );
        }
        let plans: Vec<ClientPlan> = (0..500).map(|number| shared.client_plan(number)).collect();
        for transport in [Transport::Ws, Transport::Sse, Transport::Poll] {
            for topic in shared.ordinary_topic_count()..shared.topics.len() as u32 {
                let matches = |plan: &&ClientPlan| {
                    plan.protocol == Protocol::Http(transport) && plan.topics == [topic]
                };
                assert!(
                    plans.iter().any(|plan| matches(&plan)),
                    "{transport:?}, {topic}"
                );
            }
            let plans_with = || {
                plans
                    .iter()
                    .filter(|plan| plan.protocol == Protocol::Http(transport))
            };
            assert!(plans_with().any(|plan| plan.topics.len() == 1));
            assert!(plans_with().any(|plan| plan.topics.len() > 2));
            assert!(plans_with().any(|plan| plan.topics[0] >= shared.ordinary_topic_count()));
            assert_eq!(
                plans_with().any(|plan| plan.starts_live),
                transport != Transport::Poll
            );
        }
    }
}
