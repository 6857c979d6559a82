//! The state that the threads of a run share: the topics with the retention of their logs, the subscriptions of each client, the
//! content of a message, and the progress of the publishers.
//!
//! Everything but the progress follows from the seed and the number of connections.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::client::place::Place;
pub use crate::client::subscription::Transport;
use crate::measure::payload::Random;
use strum::{IntoStaticStr, VariantArray};

/// Clients for each ordinary topic, before some clients take several.
const CLIENTS_PER_TOPIC: u32 = 10;
/// One of so many clients has a topic of large messages, and nothing else.
const LARGE_EVERY: u32 = 50;
/// Bytes of a large message: a few of them fill sockets and outbox of a client that is stalled.
const LARGE_BYTES: usize = 60_000;
/// Bytes of a message's header: topic, number and length in hexadecimal.
const HEADER_BYTES: usize = 24;
/// Topics of one client at most.
const TOPICS_MAX: u32 = 5;

/// The retention of a topic's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Kind {
    /// Everything that a run publishes.
    Deep,
    /// Too little for a client that is away for long.
    Short,
    /// Nothing.
    Unkept,
    /// Large messages, all that a minute brings.
    LargeDeep,
    /// Large messages, a second's; a client that falls behind is told and goes on.
    LargeSkip,
    /// The same, but such a client is disconnected.
    LargeShort,
}

impl Kind {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The first level of its topics' names.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// `rule.log_messages`.
    pub fn log_messages(self) -> u32 {
        match self {
            Kind::Deep => 1_000_000,
            Kind::Short => 4,
            Kind::Unkept => 0,
            Kind::LargeDeep => 400,
            Kind::LargeSkip | Kind::LargeShort => 6,
        }
    }

    /// Messages that the log surely holds.
    pub fn kept(self) -> u32 {
        match self {
            Kind::Deep => u32::MAX,
            other => other.log_messages(),
        }
    }

    fn is_large(self) -> bool {
        matches!(self, Kind::LargeDeep | Kind::LargeSkip | Kind::LargeShort)
    }
}

/// The server's settings for a run.
pub fn settings(accepts_per_s: u32) -> String {
    // Outboxes of two large messages; heartbeats and poll timeouts that a run meets.
    let mut text = format!(
        "[limits]\naccepts_per_s = {accepts_per_s}\noutbox_bytes = 131072\n\n[heartbeat]\ninterval_s = 7\n\n[publish]\nidempotency_keys = 1000000\n"
    );
    for &kind in Kind::ALL {
        let slow = if kind == Kind::LargeSkip {
            "skip"
        } else {
            "disconnect"
        };
        text += &format!(
            "\n[[rule]]\nmatch = \"{}/#\"\nlog_messages = {}\nlog_bytes = \"256 MiB\"\nslow = \"{slow}\"\npoll_timeout_s = 5\n",
            kind.name(),
            kind.log_messages()
        );
    }
    text
}

/// One topic.
pub struct Topic {
    /// Its name.
    pub name: String,
    /// The retention of its log.
    pub kind: Kind,
}

/// The part that one client plays.
pub struct Part {
    /// Which client it is.
    pub number: u32,
    /// How it subscribes.
    pub transport: Transport,
    /// It begins with new messages, not with those that are kept.
    pub live: bool,
    /// To which topics.
    pub topics: Vec<u32>,
}

/// The state that the threads of a run share.
#[derive(Default)]
pub struct World {
    /// The seed of everything that is drawn at random.
    pub seed: u64,
    /// All topics.
    pub topics: Vec<Topic>,
    /// How many messages of each topic have begun to be published.
    pub begun: Vec<AtomicU32>,
    /// Where messages stand, by topic and number, as it was said first.
    places: Vec<Mutex<HashMap<u32, Place>>>,
    /// The network fails.
    pub faults: AtomicBool,
    /// New messages may be published.
    pub feeding: AtomicBool,
    /// One last message is to be published to every topic.
    pub closing: AtomicBool,
    /// Publishers that have nothing under way.
    pub idle_publishers: AtomicU32,
    /// Clients that are connected and answered.
    pub live: AtomicU32,
    /// Clients that have the last message of all their topics.
    pub complete: AtomicU32,
    /// Seconds that a client stays away at most; 0: as long as the network's faults say.
    pub away_s: AtomicU32,
    /// Seconds after which a client goes to the next address by itself, on average; 0: it stays.
    pub stays_s: AtomicU32,
    /// The threads end.
    pub stop: AtomicBool,
}

impl World {
    /// A world for so many clients.
    pub fn new(seed: u64, connections: u32) -> World {
        let ordinary = (connections / CLIENTS_PER_TOPIC).max(20);
        let topics: Vec<Topic> = (0..ordinary)
            .map(|index| match index % 20 {
                0..14 => Kind::Deep,
                14..18 => Kind::Short,
                _ => Kind::Unkept,
            })
            .chain(Kind::ALL.iter().copied().filter(|kind| kind.is_large()))
            .enumerate()
            .map(|(index, kind)| Topic {
                name: format!("{}/{index}", kind.name()),
                kind,
            })
            .collect();
        World {
            seed,
            begun: topics.iter().map(|_| AtomicU32::new(0)).collect(),
            places: topics.iter().map(|_| Mutex::default()).collect(),
            topics,
            ..World::default()
        }
    }

    /// Topics of ordinary messages; those of large ones lie behind them.
    pub fn ordinary(&self) -> u32 {
        let large = Kind::ALL.iter().filter(|kind| kind.is_large()).count();
        (self.topics.len() - large) as u32
    }

    /// The part that client `number` plays.
    pub fn part(&self, number: u32) -> Part {
        let transport = [Transport::Ws, Transport::Sse, Transport::Poll][number as usize % 3];
        let mut random = Random::new(self.seed ^ u64::from(number) << 20);
        let ordinary = self.ordinary();
        let large = self.topics.len() as u32 - ordinary;
        if number % LARGE_EVERY == LARGE_EVERY - 1 {
            // Every transport meets every one of these topics.
            let turn = number / LARGE_EVERY;
            let topics = vec![ordinary + (turn + turn / 3) % large];
            let live = false;
            return Part {
                number,
                transport,
                live,
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
            let topic = random.below(ordinary);
            if !topics.contains(&topic) {
                topics.push(topic);
            }
        }
        // Between two long-polls without a position nothing is promised.
        let live = transport != Transport::Poll && random.below(10) < 3;
        Part {
            number,
            transport,
            live,
            topics,
        }
    }

    /// How many messages of `topic` have begun to be published.
    pub fn begun(&self, topic: u32) -> u32 {
        self.begun[topic as usize].load(Relaxed)
    }

    /// Takes the place at which a message stands, by an answer or at a subscriber.
    ///
    /// # Errors
    /// When it was said to stand elsewhere: with that place.
    pub fn stands(&self, topic: u32, number: u32, place: Place) -> Result<(), Place> {
        let places = &self.places[topic as usize];
        let mut places = places.lock().expect("no holder panics");
        let known = *places.entry(number).or_insert(place);
        if known == place { Ok(()) } else { Err(known) }
    }

    /// Bytes of a message of `topic`.
    pub fn size(&self, topic: u32, random: &mut Random) -> usize {
        if self.topics[topic as usize].kind.is_large() {
            return LARGE_BYTES;
        }
        let most = if random.below(40) == 0 { 20_000 } else { 600 };
        HEADER_BYTES + random.below(most) as usize
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

/// The topic and the number of a message, when it is whole and nothing in it is changed.
pub fn read_payload(data: &[u8]) -> Option<(u32, u32)> {
    let field = |at: usize| {
        let digits = std::str::from_utf8(data.get(at..at + 8)?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    };
    let (topic, number, size) = (field(0)?, field(8)?, field(16)?);
    let letter = letter(topic, number);
    let whole = data.len() == (size as usize).max(HEADER_BYTES)
        && data[HEADER_BYTES..].iter().all(|byte| *byte == letter);
    whole.then_some((topic, number))
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
        let world = World::new(1, 200);
        for &kind in Kind::ALL {
            assert!(world.topics.iter().any(|topic| topic.kind == kind));
        }
        let parts: Vec<Part> = (0..500).map(|number| world.part(number)).collect();
        for transport in [Transport::Ws, Transport::Sse, Transport::Poll] {
            for topic in world.ordinary()..world.topics.len() as u32 {
                let met = |part: &&Part| part.transport == transport && part.topics == [topic];
                assert!(
                    parts.iter().any(|part| met(&part)),
                    "{transport:?}, {topic}"
                );
            }
            let of = || parts.iter().filter(|part| part.transport == transport);
            assert!(of().any(|part| part.topics.len() == 1));
            assert!(of().any(|part| part.topics.len() > 2));
            assert!(of().any(|part| part.topics[0] >= world.ordinary()));
            assert_eq!(of().any(|part| part.live), transport != Transport::Poll);
        }
    }
}
