//! The truth: everything that the clients know in total. It has every message that was sent, the answers, and the offsets that became
//! known. The checks compare the received messages with the truth.
//!
//! Invariant: nothing is read from inside a shard. Offsets come only from answers to publishers and from the positions of subscribers.
//!
//! A *gap* is the notice that messages are lost.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crore_broker::settings::{RetentionMode, Rule};
use crore_wire::topic;

/// A broken promise of the server, in one sentence.
pub type Violation = String;

/// Number of message keys; key 0 means none.
pub const KEYS: u8 = 6;

/// The name of a key.
pub fn key_name(key: u8) -> Option<String> {
    (key > 0).then(|| format!("k{key}"))
}

/// The properties of a message that its publisher chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSpec {
    /// The topic of the message.
    pub topic: usize,
    /// Bytes of data.
    pub len: usize,
    /// The key of the message, below [`KEYS`].
    pub key: u8,
    /// The message's own time to live in seconds; `None` if only that of the rule applies.
    pub ttl_s: Option<u32>,
}

/// The options that a message has over MQTT only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqttOptions {
    /// The quality of service.
    pub qos: u8,
    /// Whether RETAIN was set.
    pub retain: bool,
    /// The number of the MQTT client that published the message; `None` for wills and messages over HTTP.
    pub by: Option<usize>,
}

/// The most times that a message is published: once, and again after each crash.
const COPIES_MAX: usize = 4;

/// The options of messages that were not published over MQTT.
const NOT_OVER_MQTT: MqttOptions = MqttOptions {
    qos: 1,
    retain: false,
    by: None,
};

/// A message that was sent to the server.
pub struct Message {
    /// The properties that the publisher chose.
    pub spec: MessageSpec,
    /// The topic of the message.
    pub topic: usize,
    /// Bytes of data.
    pub len: usize,
    /// The time to live in seconds: the message's own or that of the rule, whichever is shorter; `None` if the message never expires.
    pub ttl_s: Option<u32>,
    /// The step in which the message was sent.
    pub sent_step: u32,
    /// The second in which the message was sent.
    pub sent_s: u32,
    /// The step in which the message was acknowledged, if it was.
    pub acked_step: Option<u32>,
    /// The second of that step.
    pub acked_s: u32,
    /// The message's offset, if known.
    pub offset: Option<u64>,
    /// Whether the message was refused, and no log contains it.
    pub refused: bool,
}

impl Message {
    /// Whether this message certainly precedes another message of its topic.
    pub fn is_before(&self, other: &Message) -> bool {
        match (self.offset, other.offset) {
            (Some(one), Some(other)) => one < other,
            _ => self.acked_step.is_some_and(|acked| acked < other.sent_step),
        }
    }
}

/// A topic.
pub struct Topic {
    /// The topic's name.
    pub name: String,
    /// The rule that governs the topic.
    pub rule: Rule,
    /// The step of the last damage to its log. The damage may have removed messages that were sent in this step or before.
    pub damage_step: Option<u32>,
    /// For each delete: the step in which it was sent, and the step in which it was answered (if it was answered).
    pub deletes: Vec<(u32, Option<u32>)>,
    /// The numbers of the messages with a known offset, by offset.
    pub by_offset: BTreeMap<u64, u32>,
    /// The numbers of all messages, by key.
    pub by_key: [Vec<u32>; KEYS as usize],
}

impl Topic {
    /// Whether only the newest message of each key is kept.
    pub fn keeps_latest(&self) -> bool {
        self.rule.keep == RetentionMode::Latest
    }
}

/// An acknowledged message whose offset is not known exactly.
#[derive(Clone, Copy, Debug)]
pub struct UnplacedMessage {
    /// The number of the message.
    pub number: u32,
    /// The message's topic.
    pub topic: usize,
    /// The message's offset is greater than this one.
    pub low: u64,
    /// The message's offset is less than this one.
    pub high: u64,
}

/// A subscriber's position in one topic.
#[derive(Clone, Copy, Debug)]
pub struct SeenPosition {
    /// The offset.
    pub offset: u64,
    /// A step in which the topic's log had already reached the offset.
    pub step: u32,
    /// The second of that step.
    pub second: u32,
}

/// The losses and refusals that the plan permits. The checks report all others.
#[derive(Default)]
pub struct Allowances {
    /// The filters of rules whose topics are not durable.
    pub non_durable_filters: Vec<String>,
    /// The maximum number of messages of one topic that may wait for a stalled socket; `None` if there is no such limit.
    pub stalled_messages_max: Option<usize>,
    /// Whether only rules remove messages from logs, since the byte budget of the process and the limit of topics are never reached.
    pub budgets_are_wide: bool,
    /// Whether the engine (the simulated log) may store a batch late, so that the outcome of a publish is unknown.
    pub engine_is_late: bool,
    /// Whether the server may end a session with many kept messages for lack of memory. The server tells the client.
    pub memory_is_tight: bool,
    /// Number of messages of a topic that the server keeps for MQTT subscribers of QoS 1 and 2, even if the rule keeps fewer.
    pub session_messages: u32,
    /// Whether some messages are published with RETAIN.
    pub retains: bool,
    /// MQTT sessions survive a crash. A will to a topic that is not durable may be published again after a crash.
    pub sessions_are_durable: bool,
}

/// Everything that the clients know.
pub struct Truth {
    /// All messages sent, by number.
    pub messages: Vec<Message>,
    /// All topics, by number.
    pub topics: Vec<Topic>,
    /// The MQTT options of messages, by number.
    pub mqtt_options: BTreeMap<u32, MqttOptions>,
    /// Messages that were acknowledged or delivered since the last check of the engine's log. The log must contain them.
    pub to_check_in_log: Vec<u32>,
    /// Which losses and refusals are permitted.
    pub allowed: Allowances,
    /// The current step.
    pub step: u32,
    /// The current second.
    pub now_s: u32,
    /// The last step before stalled sockets opened. The server has handled everything that was sent in it or before.
    pub last_stalled_step: Option<u32>,
    /// The step of the last crash.
    pub crash_step: Option<u32>,
    /// Whether a crash has damaged a partition, perhaps one without a topic of this run.
    pub has_damaged_partition: bool,
    /// The events so far, if the run is traced.
    pub trace: Option<Vec<String>>,
}

impl Truth {
    /// Whether a publish or a session may be refused.
    pub fn may_refuse(&self) -> bool {
        !self.allowed.budgets_are_wide || self.allowed.engine_is_late
    }

    /// Whether a message may be published more than once, so that its offset is not known: a will or a QoS 2 message whose topic is not durable.
    pub fn has_copies(&self, number: u32) -> bool {
        let is_repeated = |it: &MqttOptions| it.by.is_none() || it.qos == 2;
        let mqtt_options = self.mqtt_options.get(&number);
        self.allowed.sessions_are_durable
            && self.is_non_durable(number)
            && mqtt_options.is_some_and(is_repeated)
    }

    /// The most copies of a message in the log.
    pub fn copies_max(&self, number: u32) -> usize {
        match self.has_copies(number) {
            true => COPIES_MAX,
            false => 1,
        }
    }

    /// Whether a message may have been published before a crash and again after it.
    pub fn may_be_published_again(&self, number: u32) -> bool {
        let sent_step = self.messages[number as usize].sent_step;
        let crashed = |crash_step| sent_step <= crash_step;
        self.has_copies(number) && self.crash_step.is_some_and(crashed)
    }

    /// Whether a message's topic is not durable.
    pub fn is_non_durable(&self, number: u32) -> bool {
        let topic = self.messages[number as usize].topic;
        !self.topics[topic].rule.durable
    }

    /// Whether a crash or damage may have removed messages that were sent to a topic in the step `by_step` or before.
    pub fn crash_may_have_removed(&self, topic: usize, by_step: u32) -> bool {
        let state = &self.topics[topic];
        let crash_step = self.crash_step.filter(|_| !state.rule.durable);
        let last_loss = crash_step.max(state.damage_step);
        last_loss.is_some_and(|last_loss| by_step <= last_loss)
    }

    /// Whether a crash or damage may have removed a message.
    pub fn may_be_lost_in_crash(&self, number: u32) -> bool {
        let message = &self.messages[number as usize];
        self.crash_may_have_removed(message.topic, message.sent_step)
    }

    /// Whether a crash or damage may have removed messages that match one of these filters.
    pub fn may_have_lost_for(&self, filters: &[String]) -> bool {
        let overlaps = |non_durable: &String| {
            let mut filters = filters.iter();
            filters.any(|filter| topic::overlaps(non_durable.as_bytes(), filter.as_bytes()))
        };
        // The server cannot know which topics the lost messages had.
        self.has_damaged_partition
            || self.crash_step.is_some() && self.allowed.non_durable_filters.iter().any(overlaps)
    }

    /// Forgets the known offsets of a topic, because the last crash damaged its log and may have removed messages. The remaining messages
    /// have new offsets.
    pub fn mark_damaged(&mut self, topic: usize) {
        let state = &mut self.topics[topic];
        state.damage_step = self.crash_step;
        self.to_check_in_log.clear();
        for number in std::mem::take(&mut state.by_offset).into_values() {
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
            sent_step: self.step,
            sent_s: self.now_s,
            acked_step: None,
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

    /// An upper bound of the bytes that a log counts for a message.
    pub fn bytes_of(&self, number: u32) -> usize {
        // A row of 48 bytes, and the data with at most 104 bytes of frame header, key, content type and MQTT properties. Rounding up to a
        // size class adds at most an eighth.
        48 + (self.messages[number as usize].len + 104) * 9 / 8 + 8
    }

    /// The number of the message with this data. An error if no message has exactly this data.
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
        self.to_check_in_log.push(number);
        if self.has_copies(number) {
            return Ok(());
        }
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
        self.to_check_in_log.push(number);
        let message = &mut self.messages[number as usize];
        (message.acked_step, message.acked_s) = (Some(self.step), self.now_s);
    }

    /// Records that a message was refused. With a slow engine a refusal is uncertain: the engine may store the message after the server has
    /// refused it.
    pub fn refuse(&mut self, number: u32) {
        self.messages[number as usize].refused = !self.allowed.engine_is_late;
    }

    /// Whether the log must still contain all messages after `seen`, so that a gap would be wrong.
    pub fn must_reach_back(&self, topic: usize, seen: SeenPosition) -> bool {
        let state = &self.topics[topic];
        let rule = &state.rule;
        let age_s = rule.log_age_s.min(rule.position_age_s);
        let may_be_later =
            |(_, done): &(u32, Option<u32>)| done.is_none_or(|done| done >= seen.step);
        if !self.allowed.budgets_are_wide
            || rule.messages_max() == 0
            || self.crash_may_have_removed(topic, seen.step)
            || self.now_s - seen.second >= age_s
            || state.deletes.iter().any(may_be_later)
        {
            return false;
        }
        let since = self.messages.iter().enumerate().filter(|(_, m)| {
            let later = match m.offset {
                Some(offset) => offset > seen.offset,
                None => m
                    .acked_step
                    .is_none_or(|acked_step| acked_step >= seen.step),
            };
            m.topic == topic && later
        });
        let (mut count, mut bytes, mut keys) = (0, 0, 0_u32);
        for (number, message) in since {
            if self.now_s - message.sent_s >= rule.log_age_s {
                return false;
            }
            let copies = self.copies_max(number as u32);
            count += copies as u32;
            keys |= 1 << message.spec.key;
            bytes += copies * self.bytes_of(number as u32);
        }
        if state.keeps_latest() {
            count = keys.count_ones();
        }
        count <= rule.messages_max() && bytes <= rule.log_bytes
    }

    /// Checks the order of each topic: if a message was acknowledged before another one was sent, it must have the lower offset.
    pub fn check_order(&self) -> Result<(), Violation> {
        for topic in &self.topics {
            let mut latest: Option<(u32, u32)> = None;
            for number in topic.by_offset.values() {
                let message = &self.messages[*number as usize];
                if let (Some((sent, other)), Some(acked)) = (latest, message.acked_step)
                    && acked < sent
                {
                    return Err(format!(
                        "message {number} was acknowledged before {other} was sent and stands behind it"
                    ));
                }
                if latest.is_none_or(|(sent, _)| message.sent_step > sent) {
                    latest = Some((message.sent_step, *number));
                }
            }
        }
        Ok(())
    }

    /// Acknowledged messages whose offset never became known.
    pub fn unplaced(&self) -> Vec<UnplacedMessage> {
        let mut found = Vec::new();
        for (number, message) in self.messages.iter().enumerate() {
            let Some(acked) = message.acked_step else {
                continue;
            };
            let is_lost = self.crash_may_have_removed(message.topic, message.sent_step);
            let is_unplaceable = message.refused || is_lost || self.has_copies(number as u32);
            if message.offset.is_some() || is_unplaceable {
                continue;
            }
            let (mut low, mut high) = (0, u64::MAX);
            for (offset, other) in &self.topics[message.topic].by_offset {
                let other = &self.messages[*other as usize];
                if other
                    .acked_step
                    .is_some_and(|acked| acked < message.sent_step)
                {
                    low = *offset;
                }
                if other.sent_step > acked {
                    high = high.min(*offset);
                }
            }
            found.push(UnplacedMessage {
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
