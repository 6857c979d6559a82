//! Topics and messages of a `crash` run. A message's number contains the number of its publisher, which determines the QoS. Topic and number
//! determine whether the message is retained. So a reader can check a message without further records.

use std::fmt::Write;

use crate::measure::payload::Random;
use crate::scenario::chaos::{read_payload, write_payload};

/// The number of topics. It is larger than the number of partitions, so most partitions have several topics.
pub const TOPICS: u32 = 48;
/// The number of topics that [`Changer`](super::changer::Changer) uses. Their numbers follow those of the other topics.
pub const CHANGED_TOPICS: u32 = 9;
/// The maximum number of MQTT clients with a durable session. Each has a topic for its will. Their numbers follow those of the changed topics.
pub const SESSIONS_MAX: u32 = 1_000;
/// The number of the first will topic.
const FIRST_WILL_TOPIC: u32 = TOPICS + CHANGED_TOPICS;
/// The number of groups of topics. A group has a filter of its own.
pub const GROUPS: u32 = 4;
/// The number of publishers.
pub const PUBLISHERS: u32 = 32;
/// The number of low bits of a message's number that count the messages of its publisher.
const COUNT_BITS: u32 = 24;
/// One in this many topics may have a retained message.
const RETAINED_TOPIC_EVERY: u32 = 3;
/// In such a topic, one in this many messages of a publisher is published as retained.
const RETAINED_MESSAGE_EVERY: u32 = 5;
/// One in this many messages may be much larger than the others.
const LARGE_EVERY: u32 = 40;
/// The size limit of a large message, in multiples of the usual limit.
const LARGE_FACTOR: u32 = 30;

/// How a publisher publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishMethod {
    /// An HTTP request for each message.
    Post,
    /// HTTP requests with several messages each.
    Batch,
    /// MQTT with QoS 1 or 2.
    Mqtt,
}

/// The method of a publisher.
pub fn publish_method(publisher: u32) -> PublishMethod {
    [
        PublishMethod::Post,
        PublishMethod::Batch,
        PublishMethod::Post,
        PublishMethod::Mqtt,
    ][publisher as usize % 4]
}

/// Whether the publisher gives each message an idempotency key. Such a publisher repeats a message that got no answer.
pub fn is_keyed(publisher: u32) -> bool {
    publish_method(publisher) != PublishMethod::Mqtt && (publisher / 4).is_multiple_of(2)
}

/// Whether an MQTT publisher uses MQTT 5, and not 3.1.1.
pub fn is_mqtt_5(publisher: u32) -> bool {
    (publisher / 4).is_multiple_of(2)
}

/// The QoS with which an MQTT subscriber of QoS 2 receives the publisher's messages.
pub fn qos_of(publisher: u32) -> u8 {
    match publish_method(publisher) {
        PublishMethod::Mqtt if !(publisher / 8).is_multiple_of(2) => 2,
        _ => 1,
    }
}

/// The number of a publisher's message `count`. The first message has `count` 1.
pub fn number(publisher: u32, count: u32) -> u32 {
    publisher << COUNT_BITS | count
}

/// The publisher of the message with this number, and the message's `count`.
pub fn origin(number: u32) -> (u32, u32) {
    (number >> COUNT_BITS, number & ((1 << COUNT_BITS) - 1))
}

/// Whether the topic may have a retained message.
pub fn may_retain(topic: u32) -> bool {
    topic.is_multiple_of(RETAINED_TOPIC_EVERY)
}

/// The retention of a topic that the changer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Keeps everything.
    Long,
    /// Keeps the newest messages.
    Short,
    /// Keeps the newest message of each key.
    Latest,
}

/// The retention of the changer's topic `index`.
pub fn log_kind(index: u32) -> LogKind {
    [LogKind::Long, LogKind::Short, LogKind::Latest][index as usize % 3]
}

/// The topic to which session `index` publishes its wills.
pub fn will_topic(index: u32) -> u32 {
    FIRST_WILL_TOPIC + index
}

/// The name of a topic.
pub fn topic_name(topic: u32) -> String {
    if let Some(index) = topic.checked_sub(FIRST_WILL_TOPIC) {
        return format!("wills/of/{index}");
    }
    if let Some(index) = topic.checked_sub(TOPICS) {
        let kind = format!("{:?}", log_kind(index)).to_lowercase();
        return format!("changed/{kind}/{index}");
    }
    format!("crash/{}/{topic}", topic % GROUPS)
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The message's topic.
    pub topic: u32,
    /// The message's number.
    pub number: u32,
    /// The size of the payload, in bytes.
    size: u32,
}

impl Message {
    /// A message for a random topic. Its size is random, and usually less than `size` bytes.
    pub fn random(number: u32, size: u32, random: &mut Random) -> Message {
        let is_large = random.below(LARGE_EVERY) == 0;
        let size_max = if is_large { size * LARGE_FACTOR } else { size };
        Message {
            topic: random.below(TOPICS),
            number,
            size: random.below(size_max.max(1)),
        }
    }

    /// A small message.
    pub fn small(topic: u32, number: u32) -> Message {
        let size = 100;
        Message {
            topic,
            number,
            size,
        }
    }

    /// The message's payload.
    pub fn payload(&self) -> String {
        let mut text = String::with_capacity(self.size as usize + 32);
        write_payload(self.topic, self.number, self.size as usize, &mut text);
        text
    }

    /// The message's idempotency key. It contains `run`, so the keys of two runs differ.
    pub fn idempotency_key(&self, run: u64) -> String {
        format!("{run:x}-{:x}", self.number)
    }

    /// Whether the message is published as the retained message.
    pub fn is_retained(&self) -> bool {
        is_retained(self.topic, self.number)
    }

    /// Appends the message as a line of a batch.
    pub fn write_batch_line(&self, key: Option<String>, out: &mut String) {
        let (name, payload) = (topic_name(self.topic), self.payload());
        let key = key.map_or(String::new(), |key| {
            format!(",\"idempotency_key\":\"{key}\"")
        });
        writeln!(out, "{{\"topic\":\"{name}\"{key},\"data\":\"{payload}\"}}")
            .expect("a String takes all");
    }
}

/// Whether this message is published as the retained message. A message in a batch cannot be retained.
pub fn is_retained(topic: u32, number: u32) -> bool {
    let (publisher, count) = origin(number);
    may_retain(topic)
        && publish_method(publisher) != PublishMethod::Batch
        && count.is_multiple_of(RETAINED_MESSAGE_EVERY)
}

/// Topic and number of a received message, if its payload is complete and unchanged.
pub fn parse(payload: &[u8]) -> Option<(u32, u32)> {
    read_payload(payload).filter(|(topic, _)| *topic < FIRST_WILL_TOPIC + SESSIONS_MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn parsed_message_has_its_topic_number_and_origin() {
        let mut random = Random::new(1);
        for publisher in [0, 7, PUBLISHERS - 1] {
            let message = Message::random(number(publisher, 9), 600, &mut random);
            let read = parse(message.payload().as_bytes());
            assert_eq!(read, Some((message.topic, message.number)));
            assert_eq!(origin(message.number), (publisher, 9));
        }
    }

    #[test]
    fn mqtt_publishers_use_both_versions_with_each_qos() {
        let mqtt_publishers =
            (0..PUBLISHERS).filter(|publisher| publish_method(*publisher) == PublishMethod::Mqtt);
        let versions_and_qos: HashSet<(bool, u8)> = mqtt_publishers
            .map(|publisher| (is_mqtt_5(publisher), qos_of(publisher)))
            .collect();
        assert_eq!(versions_and_qos.len(), 4);
    }

    #[test]
    fn every_method_has_publishers_and_http_methods_have_some_with_and_without_keys() {
        for (method, is_keyed_expected) in [
            (PublishMethod::Post, true),
            (PublishMethod::Post, false),
            (PublishMethod::Batch, true),
            (PublishMethod::Batch, false),
            (PublishMethod::Mqtt, false),
        ] {
            let mut all = 0..PUBLISHERS;
            assert!(all.any(|publisher| publish_method(publisher) == method
                && is_keyed(publisher) == is_keyed_expected));
        }
    }
}
