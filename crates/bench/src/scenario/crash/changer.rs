//! A client that changes topics: it deletes and purges topics, replaces latest values and retained messages, and lets short logs drop old
//! messages. The client makes one change at a time. So after a crash each topic must have the state after its last answered change. The
//! topic of a change without an answer may instead have the state after that change.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::checker::{Fault, Faults};
use super::log_reader;
use super::message::{self, CHANGED_TOPICS, LogKind, Message, PUBLISHERS, TOPICS};
use crate::client::link::{End, Link, reconnect_until_gone};
use crate::measure::payload::Random;

/// Timeout for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum pause after an answer, in milliseconds.
const REST_MS: u32 = 5;
/// One in this many changes deletes the topic, and one in as many purges the topic.
const ENDS_EVERY: u32 = 12;
/// The number of different keys of latest values.
const KEYS: u32 = 4;
/// Messages that a short log keeps.
pub const SHORT: usize = 3;

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
    retained: Option<u32>,
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
        match kind {
            LogKind::Latest => self.entries.retain(|(other, _)| other != key),
            LogKind::Short if self.entries.len() == SHORT => drop(self.entries.remove(0)),
            _ => {}
        }
        self.entries.push((*key, message.number));
        if *retain {
            self.retained = Some(message.number);
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
    sent: u32,
    /// The change without an answer, and its topic.
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
            sent: 0,
            pending: None,
            answered: 0,
            violations: Vec::new(),
        }
    }

    /// Changes topics until the server is gone, a change gets no answer, or `stop` is set.
    pub fn run(&mut self, address: SocketAddr, stop: &AtomicBool) {
        let wrong = reconnect_until_gone(|| {
            let mut link = Link::open(address, TIMEOUT)?;
            while !stop.load(Relaxed) {
                // After a lost connection, the change may or may not have been made. Only the logs show which.
                if self.pending.is_some() {
                    return Ok(());
                }
                self.change(&mut link)?;
                let pause = u64::from(self.random.below(REST_MS * 1000));
                std::thread::sleep(Duration::from_micros(pause));
            }
            Ok(())
        });
        self.violations
            .extend(wrong.map(|why| format!("the changer: {why}")));
    }

    fn change(&mut self, link: &mut Link) -> Result<(), End> {
        let index = self.random.below(CHANGED_TOPICS);
        let change = match self.random.below(ENDS_EVERY) {
            0 => Change::Delete,
            1 => Change::Purge,
            _ => {
                self.sent += 1;
                let number = message::number(PUBLISHERS, self.sent);
                let message = Message::small(TOPICS + index, number);
                // Topics with latest values get no retained messages: there the value of each key counts as retained, so a retained message
                // could not be checked.
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
        let (status, _) = link.ask(request(index, &change).as_bytes())?;
        match (change, status) {
            (Change::Publish { .. }, 201 | 202) | (Change::Delete | Change::Purge, 200 | 404) => {
                self.topics[index as usize].apply(message::log_kind(index), &change);
                self.answered += 1;
            }
            (_, 429 | 503) => {}
            _ => return Err(End::violation(format!("answered {status} to {change:?}"))),
        }
        self.pending = None;
        Ok(())
    }

    /// Deletes all topics, because their state is unknown after the log has lost its newest segment.
    pub fn start_over(&mut self, address: SocketAddr, faults: &mut Faults) {
        self.pending = None;
        self.topics.fill(Topic::default());
        for index in 0..CHANGED_TOPICS {
            let request = request(index, &Change::Delete);
            let deleted =
                Link::open(address, TIMEOUT).and_then(|mut link| link.ask(request.as_bytes()));
            match deleted {
                Ok((200 | 404, _)) => {}
                other => faults.add(Fault::Protocol, || {
                    format!("a delete was answered {other:?}")
                }),
            }
        }
    }

    /// Compares all topics with their expected states. From now on the states found are the expected ones.
    pub fn compare(&mut self, address: SocketAddr, faults: &mut Faults) {
        for why in self.violations.drain(..) {
            faults.add(Fault::Protocol, || why);
        }
        let pending = self.pending.take();
        let changed = |index: u32, topic: &Topic| {
            let mut topic = topic.clone();
            if let Some((_, change)) = pending.as_ref().filter(|(of, _)| *of == index) {
                topic.apply(message::log_kind(index), change);
            }
            topic
        };
        let least = (0..).zip(&self.topics).filter(|(index, topic)| {
            topic.retained.is_some() && changed(*index, topic).retained.is_some()
        });
        let ids: Vec<u32> = (0..CHANGED_TOPICS)
            .filter(|index| message::log_kind(*index) != LogKind::Latest)
            .map(|index| TOPICS + index)
            .collect();
        let retained = match log_reader::retained(address, &ids, least.count()) {
            Ok(retained) => retained,
            Err(why) => return faults.add(Fault::Retained, || why.to_string()),
        };
        for (index, topic) in (0..).zip(&mut self.topics) {
            let id = TOPICS + index;
            let found = log_reader::numbers(address, id, faults);
            let last = retained.iter().find(|(topic, _)| *topic == id);
            let last = last.map(|(_, number)| *number);
            let after = changed(index, topic);
            let is = |topic: &Topic| topic.numbers() == found && topic.retained == last;
            if is(&after) {
                *topic = after;
            } else if !is(topic) {
                let name = message::name(id);
                faults.add(Fault::Changed, || {
                    format!("{name}: {found:x?}, retained {last:x?}, instead of {topic:x?} or {after:x?}")
                });
            }
        }
    }
}

fn request(index: u32, change: &Change) -> String {
    let name = message::name(TOPICS + index);
    match change {
        Change::Delete => format!("DELETE /pub/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        Change::Purge => format!("DELETE /pub/{name}?purge HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        Change::Publish {
            message,
            key,
            retain,
        } => {
            let data = message.data();
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

    fn after(kind: LogKind, changes: &[(u32, u32)]) -> Topic {
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
    fn each_kind_of_topic_keeps_what_its_rule_says() {
        let changes = [(1, 0), (2, 1), (3, 0), (4, 2), (5, 3)];
        assert_eq!(after(LogKind::Long, &changes).numbers(), [1, 2, 3, 4, 5]);
        assert_eq!(after(LogKind::Short, &changes).numbers(), [3, 4, 5]);
        assert_eq!(after(LogKind::Latest, &changes).numbers(), [2, 3, 4, 5]);
        let mut topic = after(LogKind::Short, &changes);
        assert_eq!(topic.retained, Some(2));
        topic.apply(LogKind::Short, &Change::Purge);
        assert_eq!(topic, Topic::default());
    }
}
