//! Topics and messages of a run. All of a message but its bytes is in its topic and its number, so that a reader
//! knows its publisher, and whether it was to be retained.

use std::fmt::Write;

use crate::measure::payload::Random;
use crate::scenario::chaos::{read_payload, write_payload};

/// Topics: some more than there are partitions, so that most partitions have several.
pub const TOPICS: u32 = 48;
/// Topics that are changed in other ways too: their numbers follow.
pub const CHANGED: u32 = 9;
/// Groups of topics: a subscription by filter takes one group.
pub const GROUPS: u32 = 4;
/// Publishers.
pub const PUBLISHERS: u32 = 32;
/// Bits of a number that count the messages of one publisher.
const COUNT_BITS: u32 = 24;
/// One of so many topics has a retained message.
const RETAINED_TOPICS: u32 = 3;
/// One of so many messages of such a topic is to be retained.
const RETAINED_MESSAGES: u32 = 5;
/// One of so many messages is much larger than the others.
const LARGE_EVERY: u32 = 40;
/// How much larger it may be.
const LARGE_TIMES: u32 = 30;

/// The way in which a publisher publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// An HTTP request for each message.
    Post,
    /// HTTP requests of many messages.
    Batch,
    /// MQTT with QoS 1.
    Mqtt,
}

/// The way of a publisher.
pub fn way(publisher: u32) -> Way {
    [Way::Post, Way::Batch, Way::Post, Way::Mqtt][publisher as usize % 4]
}

/// Whether the publisher gives each message an idempotency key, and therefore repeats messages without an answer.
pub fn is_keyed(publisher: u32) -> bool {
    way(publisher) != Way::Mqtt && (publisher / 4).is_multiple_of(2)
}

/// The number of a publisher's message: counts from 1.
pub fn number(publisher: u32, count: u32) -> u32 {
    publisher << COUNT_BITS | count
}

/// The publisher of this number, and how many messages it had published with this one.
pub fn origin(number: u32) -> (u32, u32) {
    (number >> COUNT_BITS, number & ((1 << COUNT_BITS) - 1))
}

/// Whether the topic may have a retained message.
pub fn retains(topic: u32) -> bool {
    topic.is_multiple_of(RETAINED_TOPICS)
}

/// The log of a topic of those that are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Everything.
    Long,
    /// The newest messages.
    Short,
    /// The newest message of each key.
    Latest,
}

/// The log of topic `index` of those that are changed.
pub fn changed(index: u32) -> Changed {
    [Changed::Long, Changed::Short, Changed::Latest][index as usize % 3]
}

/// The name of a topic.
pub fn name(topic: u32) -> String {
    if let Some(index) = topic.checked_sub(TOPICS) {
        let kind = format!("{:?}", changed(index)).to_lowercase();
        return format!("changed/{kind}/{index}");
    }
    format!("crash/{}/{topic}", topic % GROUPS)
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its topic.
    pub topic: u32,
    /// Its number.
    pub number: u32,
    /// Bytes of its data.
    size: u32,
}

impl Message {
    /// A message of a random topic, of about `size` bytes.
    pub fn draw(number: u32, size: u32, random: &mut Random) -> Message {
        let large = random.below(LARGE_EVERY) == 0;
        let most = if large { size * LARGE_TIMES } else { size };
        Message {
            topic: random.below(TOPICS),
            number,
            size: random.below(most.max(1)),
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

    /// Its data.
    pub fn data(&self) -> String {
        let mut text = String::with_capacity(self.size as usize + 32);
        write_payload(self.topic, self.number, self.size as usize, &mut text);
        text
    }

    /// Its idempotency key. `run` tells it from the keys of another run.
    pub fn key(&self, run: u64) -> String {
        format!("{run:x}-{:x}", self.number)
    }

    /// Whether it is to be retained.
    pub fn is_retained(&self) -> bool {
        is_retained(self.topic, self.number)
    }

    /// Appends its line of a batch.
    pub fn line(&self, key: Option<String>, out: &mut String) {
        let (name, data) = (name(self.topic), self.data());
        let key = key.map_or(String::new(), |key| {
            format!(",\"idempotency_key\":\"{key}\"")
        });
        writeln!(out, "{{\"topic\":\"{name}\"{key},\"data\":\"{data}\"}}")
            .expect("a String takes all");
    }
}

/// Whether this message of this topic was to be retained. A line of a batch has no place for it.
pub fn is_retained(topic: u32, number: u32) -> bool {
    let (publisher, count) = origin(number);
    retains(topic) && way(publisher) != Way::Batch && count.is_multiple_of(RETAINED_MESSAGES)
}

/// Topic and number of data that came whole and unchanged.
pub fn read(data: &[u8]) -> Option<(u32, u32)> {
    read_payload(data).filter(|(topic, _)| *topic < TOPICS + CHANGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_back_and_tell_their_origin() {
        let mut random = Random::new(1);
        for publisher in [0, 7, PUBLISHERS - 1] {
            let message = Message::draw(number(publisher, 9), 600, &mut random);
            let read = read(message.data().as_bytes());
            assert_eq!(read, Some((message.topic, message.number)));
            assert_eq!(origin(message.number), (publisher, 9));
        }
    }

    #[test]
    fn every_way_has_publishers_and_both_ways_of_http_have_some_with_and_without_keys() {
        for (of, keyed) in [
            (Way::Post, true),
            (Way::Post, false),
            (Way::Batch, true),
            (Way::Batch, false),
            (Way::Mqtt, false),
        ] {
            let mut all = 0..PUBLISHERS;
            assert!(all.any(|one| way(one) == of && is_keyed(one) == keyed));
        }
    }
}
