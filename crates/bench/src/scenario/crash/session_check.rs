//! Compares what a durable session received with the logs. This module uses no sockets.
//!
//! * Session Present is 1 from the SUBACK until the client ends the session.
//! * A session of QoS 1 or 2 receives every message of the log after its SUBACK. Messages of one topic and one QoS come in order (MQTT 5 §4.6).
//! * A message of QoS 1 may come again on a later connection, unless the server has surely handled its acknowledgement and has not crashed
//!   since. A message of QoS 2 comes once, under a packet id that no other unreleased message has.
//!
//! If a client subscribes while messages are published, the first message of a topic and a QoS determines where the subscription began. Until then a
//! message that may be a retained one determines nothing.
//!
//! A session whose connection ended while it got retained messages gets them again on a later connection. So such a message proves no hole.
//!
//! If a crash came before the SUBACK, the session may be there although the subscriptions were not promised. The client subscribes again, and messages
//! that were in flight to it before the crash may come first. Only from the next message on none may be missing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use serde::Serialize;

use super::checker::{Checker, Fault};
use super::message;
use super::session::SessionEvent;

/// The maximum number of notes of each kind.
const NOTES_MAX: usize = 10;

/// What sessions did and received.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SessionCounts {
    /// Clients with a session.
    pub clients: u64,
    /// Connections.
    pub connections: u64,
    /// Connections that found their session.
    pub resumed: u64,
    /// Rounds in which a client was away, added up.
    pub rounds_away: u64,
    /// Messages that were received, without repetitions.
    pub received: u64,
    /// Messages of QoS 1 that came again.
    pub qos1_repeated: u64,
    /// Wills that were published.
    pub wills: u64,
    /// Wills that were published again.
    pub wills_twice: u64,
    /// Wills that were due a moment before a crash, or whose connections began then, and were not published.
    pub wills_lost_at_crash: u64,
    /// Wills that were published although the client disconnected, a moment before a crash.
    pub wills_after_disconnect: u64,
    /// Descriptions of the first of each kind that is not a fault, although it should not happen.
    pub notes: BTreeMap<&'static str, Vec<String>>,
}

impl SessionCounts {
    /// Describes something that the server does not promise yet.
    pub fn note(&mut self, kind: &'static str, what: impl FnOnce() -> String) {
        let notes = self.notes.entry(kind).or_default();
        if notes.len() < NOTES_MAX {
            notes.push(what());
        }
    }
}

/// Where a subscription began in the log of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Start {
    #[default]
    Unknown,
    /// At the first message that came.
    Seen(usize),
    /// Here, because nobody published while the client subscribed.
    Exact(usize),
}

/// A message that was received: on which connection, and whether it was acknowledged.
#[derive(Clone, Copy, Debug)]
struct Receipt {
    connection: u32,
    is_acknowledged: bool,
}

/// The messages of one topic and one QoS.
#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    start: Start,
    /// The index after the newest message.
    next: usize,
    /// The next hole is none: messages from before the crash may have come, and the subscription begins behind them.
    may_begin_later: bool,
}

#[derive(Clone, Debug, Default)]
struct TopicProgress {
    /// By QoS. A message of QoS 2 may be sent later than those of QoS 1 behind it, so each QoS has its own start.
    sequences: [Sequence; 3],
    receipts: HashMap<usize, Receipt>,
}

impl TopicProgress {
    /// The messages in this part of the log that did not come.
    fn missing(&self, part: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        part.filter(|index| !self.receipts.contains_key(index))
    }
}

/// How far a session has received each topic.
pub struct SessionProgress {
    name: String,
    qos: u8,
    topics: HashMap<u32, TopicProgress>,
    /// The number of the connection.
    connection: u32,
    /// Session Present of the connection.
    is_present: bool,
    /// The connection on which the client subscribed, and retained messages came.
    subscribed_on: u32,
    /// Connections that ended with a DISCONNECT.
    left: HashSet<u32>,
    /// The last connection before the last crash.
    crashed_after: u32,
}

impl SessionProgress {
    /// The progress of a session with these topics, whose subscriptions have this QoS.
    pub fn new(name: String, qos: u8, topics: &[u32]) -> SessionProgress {
        let topics = topics
            .iter()
            .map(|topic| (*topic, TopicProgress::default()));
        SessionProgress {
            name,
            qos,
            topics: topics.collect(),
            connection: 0,
            is_present: false,
            subscribed_on: 0,
            left: HashSet::new(),
            crashed_after: 0,
        }
    }

    /// The client has subscribed while nobody published: the next messages are those behind the logs that `checker` knows. If there was a session,
    /// whose SUBACK was lost in a crash, the subscriptions go on where they were.
    pub fn begin_here(&mut self, checker: &Checker) {
        if self.is_present {
            return;
        }
        for (topic, progress) in &mut self.topics {
            let count = checker.count(*topic);
            progress.sequences.fill(Sequence {
                start: Start::Exact(count),
                next: count,
                may_begin_later: false,
            });
        }
    }

    /// The server has crashed. All events so far are from before.
    pub fn crashed(&mut self) {
        self.crashed_after = self.connection;
    }

    /// Checks an event from before the last start.
    pub fn check(
        &mut self,
        event: SessionEvent,
        checker: &mut Checker,
        counts: &mut SessionCounts,
    ) {
        match event {
            SessionEvent::Connected { present, expected } => {
                self.connection += 1;
                self.is_present = present;
                counts.connections += 1;
                counts.resumed += u64::from(present);
                if expected.is_some_and(|expected| expected != present) {
                    checker.faults.add(Fault::SessionPresent, || {
                        format!("{}: {present}, connection {}", self.name, self.connection)
                    });
                }
            }
            SessionEvent::Subscribing => {
                self.subscribed_on = self.connection;
                self.begin(|progress| progress.receipts.clear());
            }
            SessionEvent::Subscribed => self.begin(|_| ()),
            SessionEvent::Left => drop(self.left.insert(self.connection)),
            SessionEvent::IdReused { topic, number } => {
                checker.faults.add(Fault::Skipped, || {
                    let topic = message::name(topic);
                    format!(
                        "{}: {topic} {number:#x} came under the packet id of another message, which is not released",
                        self.name
                    )
                });
            }
            SessionEvent::Message {
                topic,
                number,
                qos,
                is_acknowledged,
            } => {
                let receipt = Receipt {
                    connection: self.connection,
                    is_acknowledged,
                };
                self.check_message(topic, number, qos, receipt, checker, counts);
            }
        }
    }

    /// The subscriptions begin anew.
    fn begin(&mut self, change: impl Fn(&mut TopicProgress)) {
        let sequence = Sequence {
            may_begin_later: self.is_present,
            ..Sequence::default()
        };
        for progress in self.topics.values_mut() {
            progress.sequences.fill(sequence);
            change(progress);
        }
    }

    /// The QoS with which this message must come.
    fn qos_of(&self, number: u32) -> u8 {
        let (publisher, _) = message::origin(number);
        message::qos(publisher).min(self.qos)
    }

    fn check_message(
        &mut self,
        topic: u32,
        number: u32,
        qos: u8,
        receipt: Receipt,
        checker: &mut Checker,
        counts: &mut SessionCounts,
    ) {
        let name = format!("{}: {} {number:#x}", self.name, message::name(topic));
        let Some(index) = checker.index_of(topic, number) else {
            return checker.faults.add(Fault::SeenIsLost, || name);
        };
        let right = self.qos_of(number);
        if qos != right {
            let why = || format!("{name} has QoS {qos} instead of {right}");
            checker.faults.add(Fault::Protocol, why);
        }
        let may_be_retained = message::is_retained(topic, number);
        let is_subscribing = self.subscribed_on == self.connection;
        let earlier = self
            .topics
            .get(&topic)
            .and_then(|it| it.receipts.get(&index))
            .copied();
        if let Some(earlier) = earlier {
            // It may come as the retained message too, even on a later connection, if the client left before that. And the SUBSCRIBE of a
            // session whose SUBACK was lost repeats subscriptions that overlap.
            if may_be_retained || is_subscribing {
                return;
            }
            self.check_repetition(&name, qos, earlier, receipt, checker, counts);
        }
        let mut holes = self.holes(topic, index, qos, checker);
        let Some(progress) = self.topics.get_mut(&topic) else {
            return; // the client has checked it
        };
        let sequence = &mut progress.sequences[usize::from(qos)];
        match sequence.start {
            Start::Unknown if may_be_retained => return,
            Start::Unknown => {
                sequence.start = Start::Seen(index);
                sequence.next = index;
            }
            Start::Seen(start) | Start::Exact(start) if index < start => {
                if !may_be_retained && sequence.start == Start::Exact(start) {
                    checker.faults.add(Fault::SeenAgain, || {
                        format!(
                            "{name}, message {index}, on connection {}, although the subscription began at message {start} on connection {}",
                            receipt.connection, self.subscribed_on
                        )
                    });
                }
                return;
            }
            _ if sequence.may_begin_later && !holes.is_empty() => {
                *sequence = Sequence {
                    start: Start::Seen(index),
                    next: index,
                    may_begin_later: false,
                };
                holes.clear();
            }
            _ => {}
        }
        let is_new = progress.receipts.insert(index, receipt).is_none();
        counts.received += u64::from(is_new);
        if !is_new || may_be_retained && !holes.is_empty() {
            return;
        }
        if index < sequence.next {
            checker
                .faults
                .add(Fault::Disorder, || format!("{name} came late"));
        }
        sequence.next = (index + 1).max(sequence.next);
        if self.qos > 0 {
            self.report_missing(
                topic,
                &holes,
                checker,
                &format!(
                    "before {number:#x} on connection {}, subscribed on {}",
                    receipt.connection, self.subscribed_on
                ),
            );
        }
    }

    fn check_repetition(
        &self,
        name: &str,
        qos: u8,
        earlier: Receipt,
        now: Receipt,
        checker: &mut Checker,
        counts: &mut SessionCounts,
    ) {
        let is_handled = earlier.is_acknowledged
            && self.left.contains(&earlier.connection)
            && earlier.connection > self.crashed_after;
        let what = || {
            format!(
                "{name} on connections {} and {}",
                earlier.connection, now.connection
            )
        };
        match qos {
            1 if earlier.connection < now.connection && !is_handled => counts.qos1_repeated += 1,
            _ => checker.faults.add(Fault::SeenAgain, what),
        }
    }

    /// The messages of this QoS that should have come before the one at `index` and did not.
    fn holes(&self, topic: u32, index: usize, qos: u8, checker: &Checker) -> Vec<usize> {
        let Some(progress) = self.topics.get(&topic) else {
            return Vec::new();
        };
        let sequence = progress.sequences[usize::from(qos)];
        if sequence.start == Start::Unknown {
            return Vec::new();
        }
        let missing = progress.missing(sequence.next..index);
        missing
            .filter(|index| self.qos_of(checker.number_at(topic, *index)) == qos)
            .collect()
    }

    /// Reports messages that did not come. From now on they count as received, so that each is reported once.
    fn report_missing(
        &mut self,
        topic: u32,
        missing: &[usize],
        checker: &mut Checker,
        place: &str,
    ) {
        for index in missing {
            let number = checker.number_at(topic, *index);
            let topic_name = message::name(topic);
            let what = format!(
                "{}: {topic_name} {number:#x} never came, {place}",
                self.name
            );
            checker.faults.add(Fault::Skipped, || what);
            let receipt = Receipt {
                connection: self.connection,
                is_acknowledged: false,
            };
            if let Some(progress) = self.topics.get_mut(&topic) {
                progress.receipts.insert(*index, receipt);
            }
        }
    }

    /// Checks that the session has received all messages.
    pub fn check_all_received(&mut self, checker: &mut Checker) {
        if self.qos == 0 {
            return;
        }
        let topics: Vec<u32> = self.topics.keys().copied().collect();
        for topic in topics {
            let progress = &self.topics[&topic];
            let is_due = |index: &usize| {
                let qos = self.qos_of(checker.number_at(topic, *index));
                match progress.sequences[usize::from(qos)].start {
                    Start::Unknown => false,
                    Start::Seen(start) | Start::Exact(start) => *index >= start,
                }
            };
            let missing = progress.missing(0..checker.count(topic)).filter(is_due);
            let missing: Vec<usize> = missing.collect();
            self.report_missing(topic, &missing, checker, "at the end of its topic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::position::Position;

    /// The topic retains no messages.
    const TOPIC: u32 = 1;
    /// A publisher with QoS 1, and one with QoS 2.
    const PUBLISHERS: [u32; 2] = [3, 11];

    fn number(index: usize) -> u32 {
        message::number(PUBLISHERS[index % 2], index as u32 + 1)
    }

    /// A log with eight messages, of QoS 1 and 2 in turn, and a session of QoS 2 from its beginning.
    fn begun() -> (Checker, SessionProgress) {
        let mut checker = Checker::new();
        let mut progress = SessionProgress::new("it".into(), 2, &[TOPIC]);
        let mut counts = SessionCounts::default();
        for event in [connected(false), SessionEvent::Subscribed] {
            progress.check(event, &mut checker, &mut counts);
        }
        progress.begin_here(&checker);
        for index in 0..8 {
            let position = Position {
                epoch: 1,
                offset: index as u64 + 1,
            };
            checker.check_logged(TOPIC, number(index), position, &[99; 32]);
        }
        (checker, progress)
    }

    fn connected(present: bool) -> SessionEvent {
        let expected = Some(present);
        SessionEvent::Connected { present, expected }
    }

    fn message(index: usize) -> SessionEvent {
        SessionEvent::Message {
            topic: TOPIC,
            number: number(index),
            qos: [1, 2][index % 2],
            is_acknowledged: true,
        }
    }

    /// The faults, and the number of messages of QoS 1 that came again.
    fn checked(events: &[SessionEvent], crash_at: usize) -> (Vec<Fault>, u64) {
        let (mut checker, mut progress) = begun();
        let mut counts = SessionCounts::default();
        for (at, event) in events.iter().enumerate() {
            if at == crash_at {
                progress.crashed();
            }
            progress.check(*event, &mut checker, &mut counts);
        }
        progress.check_all_received(&mut checker);
        let kinds = checker.faults.counts.into_keys().collect();
        (kinds, counts.qos1_repeated)
    }

    const NEVER: usize = usize::MAX;

    #[test]
    fn messages_of_each_qos_come_in_order_and_none_is_left_out() {
        let all: Vec<SessionEvent> = (0..8).map(message).collect();
        assert_eq!(checked(&all, NEVER), (vec![], 0));
        // The order holds for each QoS by itself.
        let by_qos = [0, 2, 1, 4, 3, 6, 5, 7].map(message);
        assert_eq!(checked(&by_qos, NEVER), (vec![], 0));
        let hole = [0, 1, 3, 4, 5, 6, 7].map(message);
        assert_eq!(checked(&hole, NEVER), (vec![Fault::Skipped], 0));
        let hole_of_qos_2 = [0, 1, 2, 4, 5, 6, 7].map(message);
        assert_eq!(checked(&hole_of_qos_2, NEVER), (vec![Fault::Skipped], 0));
        let end = [0, 1, 2, 3, 4, 5].map(message);
        assert_eq!(checked(&end, NEVER), (vec![Fault::Skipped], 0));
    }

    #[test]
    fn messages_of_qos_1_come_again_only_if_the_server_may_lack_their_acknowledgement() {
        let all = |between: &[SessionEvent], again: &[usize]| {
            let mut events: Vec<SessionEvent> = (0..8).map(message).collect();
            events.extend(between);
            events.extend(again.iter().copied().map(message));
            events
        };
        let cut = [connected(true)];
        let left = [SessionEvent::Left, connected(true)];
        assert_eq!(checked(&all(&cut, &[4, 6]), NEVER), (vec![], 2));
        assert_eq!(
            checked(&all(&left, &[4, 6]), NEVER),
            (vec![Fault::SeenAgain], 0)
        );
        assert_eq!(checked(&all(&left, &[4, 6]), 9), (vec![], 2));
        assert_eq!(checked(&all(&[], &[6]), NEVER), (vec![Fault::SeenAgain], 0));
        assert_eq!(checked(&all(&left, &[7]), 9), (vec![Fault::SeenAgain], 0));
    }

    #[test]
    fn session_that_was_there_must_be_there_again() {
        let all: Vec<SessionEvent> = (0..8).map(message).collect();
        let lost = SessionEvent::Connected {
            present: false,
            expected: Some(true),
        };
        let events = [all.as_slice(), &[lost]].concat();
        assert_eq!(checked(&events, NEVER).0, [Fault::SessionPresent]);
    }

    #[test]
    fn subscription_whose_suback_was_lost_may_begin_behind_messages_in_flight_and_only_once() {
        let again = [
            connected(true),
            SessionEvent::Subscribing,
            message(0),
            SessionEvent::Subscribed,
            message(2),
        ];
        let all = |rest: &[usize]| {
            let rest = rest.iter().copied().map(message);
            again.into_iter().chain(rest).collect::<Vec<_>>()
        };
        assert_eq!(checked(&all(&[6]), NEVER), (vec![], 0));
        let mut events = all(&[6]);
        events.insert(1, connected(false));
        assert_eq!(checked(&events, NEVER), (vec![Fault::Skipped], 0));
        assert_eq!(checked(&all(&[4, 5, 7]), NEVER), (vec![Fault::Skipped], 0));
    }
}
