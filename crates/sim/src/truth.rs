//! What the clients together know: every message that was sent, the answers, and the offsets that became known. The checks compare
//! the received messages with it.
//!
//! Invariant: nothing is read from inside a shard. Offsets come only from answers to publishers and from positions given to subscribers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crore_broker::settings::{Keep, Rule};
use crore_wire::topic;

/// The description of a failure, in one sentence.
pub type Violation = String;

/// Number of message keys; key 0 means none.
pub const KEYS: u8 = 6;

/// The name of a key.
pub fn key_name(key: u8) -> Option<String> {
    (key > 0).then(|| format!("k{key}"))
}

/// What a publisher chooses for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSpec {
    /// Its topic.
    pub topic: usize,
    /// Bytes of data.
    pub len: usize,
    /// Its key, below [`KEYS`].
    pub key: u8,
    /// Its own time to live in seconds, if it has one.
    pub ttl_s: Option<u32>,
}

/// The options that a message has over MQTT only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqttOptions {
    /// Its quality of service.
    pub qos: u8,
    /// RETAIN was set.
    pub retain: bool,
    /// The number of the MQTT client that published it.
    pub by: Option<usize>,
}

/// The options of messages that were not published over MQTT.
const NOT_OVER_MQTT: MqttOptions = MqttOptions {
    qos: 1,
    retain: false,
    by: None,
};

/// A message that was sent to the server.
pub struct Message {
    /// What its publisher chose.
    pub spec: MessageSpec,
    /// Its topic.
    pub topic: usize,
    /// Bytes of data.
    pub len: usize,
    /// Its time to live in seconds: its own or the rule's, whichever is shorter.
    pub ttl_s: Option<u32>,
    /// The step in which it was sent.
    pub sent: u32,
    /// The second in which it was sent.
    pub sent_s: u32,
    /// The step in which it was acknowledged.
    pub acked: Option<u32>,
    /// The second in which it was acknowledged.
    pub acked_s: u32,
    /// Its offset, if known.
    pub offset: Option<u64>,
    /// It was refused, and is certainly in no log.
    pub refused: bool,
}

impl Message {
    /// Whether it certainly precedes another message of its topic.
    pub fn is_before(&self, other: &Message) -> bool {
        match (self.offset, other.offset) {
            (Some(one), Some(other)) => one < other,
            _ => self.acked.is_some_and(|acked| acked < other.sent),
        }
    }
}

/// A topic.
pub struct Topic {
    /// Its name.
    pub name: String,
    /// The rule that governs it.
    pub rule: Rule,
    /// Damage may have removed messages that were sent up to this step.
    pub damaged: Option<u32>,
    /// For each delete the steps in which it was sent and answered.
    pub deletes: Vec<(u32, Option<u32>)>,
    /// The messages whose offset is known.
    pub by_offset: BTreeMap<u64, u32>,
    /// All messages, by key.
    pub by_key: [Vec<u32>; KEYS as usize],
}

impl Topic {
    /// Whether only the newest message of each key is kept.
    pub fn keeps_latest(&self) -> bool {
        self.rule.keep == Keep::Latest
    }
}

/// An acknowledged message whose offset is not known exactly.
#[derive(Clone, Copy, Debug)]
pub struct Unplaced {
    /// The message.
    pub number: u32,
    /// Its topic.
    pub topic: usize,
    /// Its offset is greater than this one.
    pub low: u64,
    /// Its offset is less than this one.
    pub high: u64,
}

/// A subscriber's position in one topic.
#[derive(Clone, Copy, Debug)]
pub struct SeenPosition {
    /// The offset.
    pub offset: u64,
    /// A step by which the topic's log had reached this offset.
    pub at: u32,
    /// The second of that step.
    pub at_s: u32,
}

/// What the plan of a world allows the server: the checks use this to tell permitted losses and refusals from wrong ones.
#[derive(Default)]
pub struct Allowances {
    /// The filters of rules whose topics are not durable.
    pub unlogged: Vec<String>,
    /// The most messages of one topic that may wait for a stalled socket, if that is bounded.
    pub waits: Option<usize>,
    /// Logs are shortened by their rules only, neither by the byte budget of the process nor by the limit of topics.
    pub budgets_are_wide: bool,
    /// An engine may store a batch late, so that the outcome of a publish is unknown.
    pub engine_is_late: bool,
    /// A session with many kept messages may end for lack of memory. Its client is told.
    pub memory_is_tight: bool,
    /// Messages of a topic that are kept for MQTT subscribers of QoS 1 and 2 even if the rule keeps fewer.
    pub session_messages: u32,
    /// Some messages are published with RETAIN.
    pub retains: bool,
}

/// Everything that the clients know.
pub struct Truth {
    /// All messages sent, by number.
    pub messages: Vec<Message>,
    /// All topics, by number.
    pub topics: Vec<Topic>,
    /// The MQTT options of messages, by number.
    pub mqtt_options: BTreeMap<u32, MqttOptions>,
    /// Messages acknowledged or delivered since the last check that the engine has them.
    pub unchecked: Vec<u32>,
    /// Which losses and refusals are permitted.
    pub allowed: Allowances,
    /// The current step.
    pub step: u32,
    /// The current second.
    pub now_s: u32,
    /// The last step before stalled sockets opened. The server had handled everything sent until then.
    pub last_stalled_step: Option<u32>,
    /// The step of the last crash.
    pub crashed: Option<u32>,
    /// The events so far, if the run is traced.
    pub trace: Option<Vec<String>>,
}

impl Truth {
    /// Whether a publish or a session may be refused.
    pub fn may_refuse(&self) -> bool {
        !self.allowed.budgets_are_wide || self.allowed.engine_is_late
    }

    /// Whether a message's topic is not durable.
    pub fn is_unlogged(&self, number: u32) -> bool {
        let topic = self.messages[number as usize].topic;
        !self.topics[topic].rule.durable
    }

    /// Whether a crash may have removed messages sent to a topic up to this step.
    pub fn may_have_crashed(&self, topic: usize, at: u32) -> bool {
        let of = &self.topics[topic];
        let crashed = self.crashed.filter(|_| !of.rule.durable).max(of.damaged);
        crashed.is_some_and(|crashed| at <= crashed)
    }

    /// Whether a crash may have removed a message.
    pub fn has_crashed_since(&self, number: u32) -> bool {
        let message = &self.messages[number as usize];
        self.may_have_crashed(message.topic, message.sent)
    }

    /// Whether a crash may have removed messages that match one of these filters.
    pub fn may_have_crashed_for(&self, filters: &[String]) -> bool {
        let overlaps = |passing: &String| {
            let mut filters = filters.iter();
            filters.any(|filter| topic::overlaps(passing.as_bytes(), filter.as_bytes()))
        };
        let is_harmed = self.topics.iter().any(|topic| topic.damaged.is_some());
        is_harmed || self.crashed.is_some() && self.allowed.unlogged.iter().any(overlaps)
    }

    /// Damage may have removed messages of a topic. The remaining ones have new offsets.
    pub fn mark_damaged(&mut self, topic: usize) {
        let of = &mut self.topics[topic];
        of.damaged = self.crashed;
        self.unchecked.clear();
        for number in std::mem::take(&mut of.by_offset).into_values() {
            self.messages[number as usize].offset = None;
        }
    }

    /// Adds an event to the trace.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        let step = self.step;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{step:>6} {}", what()));
        }
    }

    /// Adds a message that is about to be sent. Returns its number.
    pub fn add_message(&mut self, spec: MessageSpec) -> u32 {
        let number = self.messages.len() as u32;
        let topic = &mut self.topics[spec.topic];
        topic.by_key[usize::from(spec.key)].push(number);
        let of_rule = (topic.rule.ttl_s > 0).then_some(topic.rule.ttl_s);
        self.messages.push(Message {
            spec,
            topic: spec.topic,
            len: data_of(number, spec.len).len(),
            ttl_s: spec.ttl_s.into_iter().chain(of_rule).min(),
            sent: self.step,
            sent_s: self.now_s,
            acked: None,
            acked_s: 0,
            offset: None,
            refused: false,
        });
        number
    }

    /// The MQTT options of a message.
    pub fn mqtt_options(&self, number: u32) -> MqttOptions {
        self.mqtt_options
            .get(&number)
            .copied()
            .unwrap_or(NOT_OVER_MQTT)
    }

    /// Messages of a topic that were published with RETAIN.
    pub fn retained(&self, topic: usize) -> impl Iterator<Item = (u32, &Message)> {
        let all = self
            .mqtt_options
            .iter()
            .filter(|(_, mqtt_options)| mqtt_options.retain);
        all.map(|(number, _)| (*number, &self.messages[*number as usize]))
            .filter(move |(_, message)| message.topic == topic)
    }

    /// The data of a message.
    pub fn data(&self, number: u32) -> Vec<u8> {
        data_of(number, self.messages[number as usize].len)
    }

    /// The most bytes that a log counts for a message.
    pub fn bytes_of(&self, number: u32) -> usize {
        // Its row, and its bytes with a frame's header, key, content type and MQTT properties. An eighth is added for the size class.
        48 + (self.messages[number as usize].len + 104) * 9 / 8 + 8
    }

    /// The number of the message with this data. An error if the data is not exactly that of a message.
    pub fn number_of(&self, data: &[u8]) -> Result<u32, Violation> {
        let digits = data.strip_prefix(b"m").unwrap_or_default();
        let end = digits.iter().position(|b| !b.is_ascii_digit());
        let digits = &digits[..end.unwrap_or(digits.len())];
        let number: u32 = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| format!("a message that nobody sent: {}", printable(data)))?;
        let message = self.messages.get(number as usize);
        let whole = message.is_some_and(|m| data_of(number, m.len) == data);
        if !whole {
            return Err(format!("a message that was harmed: {}", printable(data)));
        }
        Ok(number)
    }

    /// Records the offset of a message.
    pub fn set_offset(&mut self, number: u32, offset: u64) -> Result<(), Violation> {
        self.unchecked.push(number);
        let message = &mut self.messages[number as usize];
        match message.offset.replace(offset) {
            Some(known) if known != offset => {
                return Err(format!("message {number} at {offset} and at {known}"));
            }
            _ => {}
        }
        let topic = &mut self.topics[message.topic];
        match topic.by_offset.insert(offset, number) {
            Some(other) if other != number => {
                Err(format!("messages {number} and {other} both at {offset}"))
            }
            _ => Ok(()),
        }
    }

    /// Records that a message was acknowledged to its publisher.
    pub fn acknowledge(&mut self, number: u32) {
        self.unchecked.push(number);
        let message = &mut self.messages[number as usize];
        (message.acked, message.acked_s) = (Some(self.step), self.now_s);
    }

    /// Records that a message was refused. A slow engine may still store it after the home has stopped waiting.
    pub fn refuse(&mut self, number: u32) {
        self.messages[number as usize].refused = !self.allowed.engine_is_late;
    }

    /// Whether all messages after `seen` must still be in the log, so that a gap would be wrong.
    pub fn must_reach_back(&self, topic: usize, seen: SeenPosition) -> bool {
        let of = &self.topics[topic];
        let age_s = of.rule.log_age_s.min(of.rule.position_age_s);
        let touched = |(_, done): &(u32, Option<u32>)| done.is_none_or(|done| done >= seen.at);
        if !self.allowed.budgets_are_wide
            || of.rule.messages_max() == 0
            || self.may_have_crashed(topic, seen.at)
            || self.now_s - seen.at_s >= age_s
            || of.deletes.iter().any(touched)
        {
            return false;
        }
        let since = self.messages.iter().enumerate().filter(|(_, m)| {
            let later = match m.offset {
                Some(offset) => offset > seen.offset,
                None => m.acked.is_none_or(|acked| acked >= seen.at),
            };
            m.topic == topic && later
        });
        let (mut count, mut bytes, mut keys) = (0, 0, 0_u32);
        for (number, message) in since {
            if self.now_s - message.sent_s >= of.rule.log_age_s {
                return false;
            }
            count += 1;
            keys |= 1 << message.spec.key;
            bytes += self.bytes_of(number as u32);
        }
        if of.keeps_latest() {
            count = keys.count_ones();
        }
        count <= of.rule.messages_max() && bytes <= of.rule.log_bytes
    }

    /// Checks the order of publishes: a message that was acknowledged before another was sent must have the lower offset.
    pub fn check_order(&self) -> Result<(), Violation> {
        for topic in &self.topics {
            let mut latest: Option<(u32, u32)> = None;
            for number in topic.by_offset.values() {
                let message = &self.messages[*number as usize];
                if let (Some((sent, other)), Some(acked)) = (latest, message.acked)
                    && acked < sent
                {
                    return Err(format!(
                        "message {number} was acknowledged before {other} was sent and stands behind it"
                    ));
                }
                if latest.is_none_or(|(sent, _)| message.sent > sent) {
                    latest = Some((message.sent, *number));
                }
            }
        }
        Ok(())
    }

    /// Acknowledged messages whose offset never became known.
    pub fn unplaced(&self) -> Vec<Unplaced> {
        let mut found = Vec::new();
        for (number, message) in self.messages.iter().enumerate() {
            let Some(acked) = message.acked else { continue };
            let is_lost = self.may_have_crashed(message.topic, message.sent);
            if message.offset.is_some() || message.refused || is_lost {
                continue;
            }
            let (mut low, mut high) = (0, u64::MAX);
            for (offset, other) in &self.topics[message.topic].by_offset {
                let other = &self.messages[*other as usize];
                if other.acked.is_some_and(|acked| acked < message.sent) {
                    low = *offset;
                }
                if other.sent > acked {
                    high = high.min(*offset);
                }
            }
            found.push(Unplaced {
                number: number as u32,
                topic: message.topic,
                low,
                high,
            });
        }
        found
    }
}

/// The data of a message: its number, then a pattern derived from it.
fn data_of(number: u32, len: usize) -> Vec<u8> {
    let mut text = String::with_capacity(len + 12);
    let _ = write!(text, "m{number};");
    while text.len() < len {
        let at = text.len() as u32;
        text.push(char::from(
            b'a' + (number.wrapping_mul(7) + at * 11) as u8 % 26,
        ));
    }
    text.into_bytes()
}

/// Bytes as readable text, shortened.
pub fn printable(bytes: &[u8]) -> String {
    let short = &bytes[..bytes.len().min(160)];
    String::from_utf8_lossy(short).escape_debug().to_string()
}
