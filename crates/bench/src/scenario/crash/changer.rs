//! A client that deletes and purges topics, replaces latest values and retained messages, and publishes to topics whose short logs drop old
//! messages. The client makes one change at a time. So after a crash each topic must have the state after its last answered change. The
//! topic of a change without an answer may instead have the state after that change.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::checker::{Fault, Faults};
use super::log_reader;
use super::message::{self, CHANGED_TOPICS, LogKind, Message, PUBLISHERS, TOPICS};
use crate::client::link::{Link, LinkError, reconnect_until_gone};
use crate::measure::payload::Random;

/// Timeout for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum pause after an answer, in milliseconds.
const PAUSE_MS_MAX: u32 = 5;
/// One in this many changes deletes the topic, and one in as many purges the topic.
const DELETION_EVERY: u32 = 12;
/// The number of different keys of latest values.
const KEYS: u32 = 4;
/// The number of messages that a short log keeps.
pub const SHORT_LOG_MESSAGES: usize = 3;

/// One change of a topic.
#[derive(Clone, Copy, Debug)]
enum Change {
    Publish {
        message: Message,
        key: u32,
        retain: bool,
    },
    Delete,
    Purge,
}

/// The state of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Topic {
    /// Key and number of each message.
    entries: Vec<(u32, u32)>,
    retained_number: Option<u32>,
}

impl Topic {
    fn apply(&mut self, kind: LogKind, change: &Change) {
        let Change::Publish {
            message,
            key,
            retain,
        } = change
        else {
            return *self = Topic::default();
        };
        let is_full = self.entries.len() == SHORT_LOG_MESSAGES;
        match kind {
            LogKind::Latest => self.entries.retain(|(other, _)| other != key),
            LogKind::Short if is_full => drop(self.entries.remove(0)),
            _ => {}
        }
        self.entries.push((*key, message.number));
        if *retain {
            self.retained_number = Some(message.number);
        }
    }

    fn numbers(&self) -> Vec<u32> {
        self.entries.iter().map(|(_, number)| *number).collect()
    }
}

/// The client.
pub struct Changer {
    topics: Vec<Topic>,
    random: Random,
    sent_count: u32,
    /// The change without an answer, and the index of its topic.
    pending: Option<(u32, Change)>,
    /// Answered changes.
    pub answered: u64,
    /// Answers that violate the protocol.
    pub violations: Vec<String>,
}

impl Changer {
    /// A client that has made no change yet.
    pub fn new(seed: u64) -> Changer {
        Changer {
            topics: vec![Topic::default(); CHANGED_TOPICS as usize],
            random: Random::new(seed ^ 0xc4a6),
            sent_count: 0,
            pending: None,
            answered: 0,
            violations: Vec::new(),
        }
    }

    /// Changes topics until the server is gone, a change gets no answer, or `stop` is set.
    pub fn run(&mut self, address: SocketAddr, stop: &AtomicBool) {
        let violation = reconnect_until_gone(|| {
            let mut link = Link::open(address, TIMEOUT)?;
            while !stop.load(Relaxed) {
                // The connection was lost before the answer. Only the logs show whether the server made the change.
                if self.pending.is_some() {
                    return Ok(());
                }
                self.make_change(&mut link)?;
                let pause = u64::from(self.random.below(PAUSE_MS_MAX * 1000));
                std::thread::sleep(Duration::from_micros(pause));
            }
            Ok(())
        });
        self.violations
            .extend(violation.map(|reason| format!("the changer: {reason}")));
    }

    fn make_change(&mut self, link: &mut Link) -> Result<(), LinkError> {
        let index = self.random.below(CHANGED_TOPICS);
        let change = match self.random.below(DELETION_EVERY) {
            0 => Change::Delete,
            1 => Change::Purge,
            _ => {
                self.sent_count += 1;
                let number = message::number(PUBLISHERS, self.sent_count);
                let message = Message::small(TOPICS + index, number);
                // In a topic with latest values the value of each key counts as retained, so a retained message could not be checked.
                let retain =
                    message::log_kind(index) != LogKind::Latest && self.random.below(2) == 0;
                let key = self.random.below(KEYS);
                Change::Publish {
                    message,
                    key,
                    retain,
                }
            }
        };
        self.pending = Some((index, change));
        let (status, _) = link.request(request(index, &change).as_bytes())?;
        match (change, status) {
            (Change::Publish { .. }, 201 | 202) | (Change::Delete | Change::Purge, 200 | 404) => {
                self.topics[index as usize].apply(message::log_kind(index), &change);
                self.answered += 1;
            }
            (_, 429 | 503) => {}
            _ => {
                return Err(LinkError::violation(format!(
                    "answered {status} to {change:?}"
                )));
            }
        }
        self.pending = None;
        Ok(())
    }

    /// Deletes all topics, because their state is unknown after the log has lost its newest segment.
    pub fn delete_all(&mut self, address: SocketAddr, faults: &mut Faults) {
        self.pending = None;
        self.topics.fill(Topic::default());
        for index in 0..CHANGED_TOPICS {
            let request = request(index, &Change::Delete);
            let result =
                Link::open(address, TIMEOUT).and_then(|mut link| link.request(request.as_bytes()));
            match result {
                Ok((200 | 404, _)) => {}
                other => faults.add(Fault::Protocol, || {
                    format!("a delete was answered {other:?}")
                }),
            }
        }
    }

    /// Compares all topics with their expected states. The states that are found are the expected ones from now on.
    pub fn check_topics(&mut self, address: SocketAddr, faults: &mut Faults) {
        for violation in self.violations.drain(..) {
            faults.add(Fault::Protocol, || violation);
        }
        let pending = self.pending.take();
        let with_pending_change = |index: u32, topic: &Topic| {
            let mut topic = topic.clone();
            if let Some((_, change)) = pending
                .as_ref()
                .filter(|(pending_index, _)| *pending_index == index)
            {
                topic.apply(message::log_kind(index), change);
            }
            topic
        };
        let must_be_retained = (0..).zip(&self.topics).filter(|(index, topic)| {
            topic.retained_number.is_some()
                && with_pending_change(*index, topic).retained_number.is_some()
        });
        let topic_numbers: Vec<u32> = (0..CHANGED_TOPICS)
            .filter(|index| message::log_kind(*index) != LogKind::Latest)
            .map(|index| TOPICS + index)
            .collect();
        let retained =
            match log_reader::read_retained(address, &topic_numbers, must_be_retained.count()) {
                Ok(retained) => retained,
                Err(reason) => return faults.add(Fault::Retained, || reason.to_string()),
            };
        for (index, topic) in (0..).zip(&mut self.topics) {
            let topic_number = TOPICS + index;
            let found_numbers = log_reader::read_numbers(address, topic_number, faults);
            let found_retained = retained.iter().find(|(topic, _)| *topic == topic_number);
            let found_retained = found_retained.map(|(_, number)| *number);
            let topic_after = with_pending_change(index, topic);
            let matches = |topic: &Topic| {
                topic.numbers() == found_numbers && topic.retained_number == found_retained
            };
            if matches(&topic_after) {
                *topic = topic_after;
            } else if !matches(topic) {
                let name = message::topic_name(topic_number);
                faults.add(Fault::Changed, || {
                    format!("{name}: {found_numbers:x?}, retained {found_retained:x?}, instead of {topic:x?} or {topic_after:x?}")
                });
            }
        }
    }
}

fn request(index: u32, change: &Change) -> String {
    let name = message::topic_name(TOPICS + index);
    match change {
        Change::Delete => format!("DELETE /pub/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        Change::Purge => format!("DELETE /pub/{name}?purge HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        Change::Publish {
            message,
            key,
            retain,
        } => {
            let data = message.payload();
            let key = match message::log_kind(index) {
                LogKind::Latest => format!("Crore-Key: k{key}\r\n"),
                _ => String::new(),
            };
            format!(
                "POST /pub/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n{key}Crore-Retain: {retain}\r\nContent-Length: {}\r\n\r\n{data}",
                data.len()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic_after(kind: LogKind, changes: &[(u32, u32)]) -> Topic {
        let mut topic = Topic::default();
        for (number, key) in changes {
            let message = Message::small(TOPICS, *number);
            topic.apply(
                kind,
                &Change::Publish {
                    message,
                    key: *key,
                    retain: *number == 2,
                },
            );
        }
        topic
    }

    #[test]
    fn logs_keep_messages_by_their_kind() {
        let changes = [(1, 0), (2, 1), (3, 0), (4, 2), (5, 3)];
        assert_eq!(
            topic_after(LogKind::Long, &changes).numbers(),
            [1, 2, 3, 4, 5]
        );
        assert_eq!(topic_after(LogKind::Short, &changes).numbers(), [3, 4, 5]);
        assert_eq!(
            topic_after(LogKind::Latest, &changes).numbers(),
            [2, 3, 4, 5]
        );
        let mut topic = topic_after(LogKind::Short, &changes);
        assert_eq!(topic.retained_number, Some(2));
        topic.apply(LogKind::Short, &Change::Purge);
        assert_eq!(topic, Topic::default());
    }
}
