//! Compares the answers and messages that clients received before a crash with the logs after it. This module uses no sockets.
//!
//! The logs keep everything. After each start they are read while nobody publishes. Compared with the last reading, they may contain further
//! messages, and nothing else may have changed.
//!
//! An *epoch* is a number in each position. It changes with each start of the server.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::message::{self, PUBLISHERS, TOPICS};
use super::publisher::Answer;
use super::subscriber::Observation;
use crate::client::position::Position;

/// The maximum number of described faults.
const DESCRIPTIONS_MAX: usize = 50;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Fault {
    /// The message of an answered publish is not in the log.
    AnsweredIsLost,
    /// An answered message is not at the position that the answer gave.
    Moved,
    /// A message is in the log twice.
    Doubled,
    /// A message comes before one that the same publisher sent earlier, or positions do not increase.
    Disorder,
    /// A message that was in the log after an earlier start is gone or changed.
    Changed,
    /// A subscriber received a message that is not in the log.
    SeenIsLost,
    /// A subscriber or session missed messages: it received a message that does not directly follow the last one that it had received.
    Skipped,
    /// A subscriber received a message again, or out of order.
    SeenAgain,
    /// A subscriber received a gap although no message is lost, or received no gap although messages are lost.
    Gap,
    /// The position that a client got has another epoch than the message's position in the log, or an epoch occurs again after a later one.
    Epoch,
    /// The retained message is not the last message that was published as retained.
    Retained,
    /// Session Present is 0 although the client has a session, or 1 although it ended the session.
    SessionPresent,
    /// A will that was due was not published.
    WillLost,
    /// A will was published although the client disconnected or came back in time.
    WillNotDue,
    /// An answer or a message that violates the protocol.
    Protocol,
}

/// The count of each kind of fault, and descriptions of the first faults.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Faults {
    /// The count of each kind.
    #[serde(rename = "faults")]
    pub counts: BTreeMap<Fault, u64>,
    /// Descriptions of the first faults.
    #[serde(rename = "faults_in_words")]
    pub descriptions: Vec<String>,
}

impl Faults {
    /// Counts a fault. Describes it, unless [`DESCRIPTIONS_MAX`] faults are described.
    pub fn add(&mut self, kind: Fault, describe: impl FnOnce() -> String) {
        *self.counts.entry(kind).or_default() += 1;
        if self.descriptions.len() < DESCRIPTIONS_MAX {
            self.descriptions.push(format!("{kind:?}: {}", describe()));
        }
    }
}

/// The log of one topic, as it was last read.
#[derive(Default)]
pub struct Log {
    /// The epochs of the topic's messages, in the order in which they began.
    epochs: Vec<u32>,
    /// Position and number of each message.
    entries: Vec<(Position, u32)>,
    /// Index in `entries` of each number.
    indices: HashMap<u32, usize>,
    /// The newest number of each publisher.
    newest_by_publisher: [u32; PUBLISHERS as usize],
    /// The number of the newest message that was published as retained.
    retained_number: Option<u32>,
}

/// The next message of one topic that a subscriber may receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextMessage {
    /// Any message.
    Any,
    /// The message with this index in the log.
    At(usize),
}

/// How far a subscriber has received each topic. A *gap* is the notice that messages are lost.
pub struct Progress {
    next_by_topic: Vec<NextMessage>,
    /// Whether the next observation (except a restart) must be a gap, because the log has lost its newest segment.
    is_gap_due: bool,
    /// The number of gaps that the subscriber may still receive: at most one for each of its topics.
    gaps_left: usize,
}

impl Progress {
    /// The progress of a new subscriber. Its first message must be the oldest one if `from_oldest`, otherwise it may be any message.
    pub fn new(from_oldest: bool) -> Progress {
        let next = if from_oldest {
            NextMessage::At(0)
        } else {
            NextMessage::Any
        };
        Progress {
            next_by_topic: vec![next; TOPICS as usize],
            is_gap_due: false,
            gaps_left: 0,
        }
    }

    /// Records that the log has lost its newest segment. A subscriber with positions in `topic_count` topics may receive a gap in each, and must
    /// receive one if the segment had messages.
    pub fn expect_gaps(&mut self, topic_count: usize, had_messages: bool) {
        if topic_count > 0 {
            self.next_by_topic.fill(NextMessage::Any);
            self.is_gap_due = had_messages;
            self.gaps_left = topic_count;
        }
    }

    /// Returns whether the observation is a gap that may come, and counts that gap as received. A message is a fault if a gap must come first.
    fn take_expected_gap(
        &mut self,
        subscriber_name: &str,
        observation: Observation,
        faults: &mut Faults,
    ) -> bool {
        let was_gap_due = std::mem::take(&mut self.is_gap_due);
        if observation == Observation::Gap {
            let is_expected = self.gaps_left > 0;
            self.gaps_left = self.gaps_left.saturating_sub(1);
            return is_expected;
        }
        if was_gap_due && observation != Observation::Restart {
            faults.add(Fault::Gap, || format!("{subscriber_name} was told none"));
        }
        false
    }
}

/// The logs as last read, and the faults.
pub struct Checker {
    logs: Vec<Log>,
    /// The faults.
    pub faults: Faults,
}

impl Checker {
    /// A checker with empty logs.
    pub fn new() -> Checker {
        Checker {
            logs: (0..TOPICS).map(|_| Log::default()).collect(),
            faults: Faults::default(),
        }
    }

    /// Counts violations of the protocol.
    pub fn add_violations(&mut self, violations: impl Iterator<Item = String>) {
        violations.for_each(|violation| self.faults.add(Fault::Protocol, || violation));
    }

    /// Returns the logs, and replaces them by empty ones, since the logs will be read again from the beginning.
    pub fn take_logs(&mut self) -> Vec<Log> {
        std::mem::replace(&mut self.logs, Checker::new().logs)
    }

    /// Counts the messages of `earlier_logs` that the present logs do not have. A log must have kept the first messages of its earlier state.
    pub fn count_lost(&mut self, earlier_logs: &[Log]) -> u64 {
        let mut lost = 0;
        for ((topic, log), earlier_log) in (0..).zip(&self.logs).zip(earlier_logs) {
            let numbers = |log: &Log| log.entries.iter().map(|(_, number)| *number).collect();
            let (numbers, earlier): (Vec<u32>, Vec<u32>) = (numbers(log), numbers(earlier_log));
            let kept_count = numbers.len().min(earlier.len());
            if numbers[..kept_count] != earlier[..kept_count] {
                let name = message::topic_name(topic);
                self.faults.add(Fault::Changed, || {
                    format!("{name}: its first {kept_count} messages are others than before")
                });
            }
            lost += (earlier.len() - kept_count) as u64;
        }
        lost
    }

    /// Whether the log of the topic contains the message of this answer.
    pub fn contains(&self, answer: &Answer) -> bool {
        let log = &self.logs[answer.message.topic as usize];
        log.indices.contains_key(&answer.message.number)
    }

    /// Checks an observation that was recorded before the log lost its newest segment. The log may have lost the observed message, so this
    /// function does not search for it.
    pub fn check_before_loss(
        &mut self,
        subscriber_name: &str,
        progress: &mut Progress,
        observation: Observation,
    ) {
        let was_gap_due =
            progress.take_expected_gap(subscriber_name, observation, &mut self.faults);
        if observation == Observation::Gap && !was_gap_due {
            self.faults.add(Fault::Gap, || subscriber_name.to_string());
        }
    }

    /// The number of messages of a topic.
    pub fn message_count(&self, topic: u32) -> usize {
        self.logs[topic as usize].entries.len()
    }

    /// The index of this message in the log of the topic.
    pub fn index_of(&self, topic: u32, number: u32) -> Option<usize> {
        self.logs[topic as usize].indices.get(&number).copied()
    }

    /// The number of the message at this index of the log of the topic.
    pub fn number_at(&self, topic: u32, index: usize) -> u32 {
        self.logs[topic as usize].entries[index].1
    }

    /// The number of messages of all topics.
    pub fn total_message_count(&self) -> usize {
        self.logs.iter().map(|log| log.entries.len()).sum()
    }

    /// The number of topics with a retained message.
    pub fn retained_topic_count(&self) -> usize {
        let retain = |log: &&Log| log.retained_number.is_some();
        self.logs.iter().filter(retain).count()
    }

    /// Checks the next message of a topic's log, and appends it unless it is in the log already or was never sent. `sent_counts` has the
    /// number of messages that each publisher has sent.
    pub fn check_and_append(
        &mut self,
        topic: u32,
        number: u32,
        position: Position,
        sent_counts: &[u32],
    ) {
        let (log, faults) = (&mut self.logs[topic as usize], &mut self.faults);
        let name = || format!("{} {number:#x} at {position:?}", message::topic_name(topic));
        let (publisher, count) = message::origin(number);
        if sent_counts
            .get(publisher as usize)
            .is_none_or(|sent_count| count > *sent_count)
        {
            return faults.add(Fault::Protocol, || format!("{} was never sent", name()));
        }
        // Each start begins a new epoch. An earlier epoch never returns.
        if log.epochs.last() != Some(&position.epoch) {
            if log.epochs.contains(&position.epoch) {
                faults.add(Fault::Epoch, || format!("{}, of an earlier epoch", name()));
            }
            log.epochs.push(position.epoch);
        }
        let last = log
            .entries
            .last()
            .map_or(0, |(position, _)| position.offset);
        if position.offset <= last {
            faults.add(Fault::Disorder, || {
                format!("{} behind offset {last}", name())
            });
        }
        if let Some(first) = log.indices.get(&number) {
            let first = log.entries[*first].0;
            return faults.add(Fault::Doubled, || format!("{} and at {first:?}", name()));
        }
        let newest = &mut log.newest_by_publisher[publisher as usize];
        if *newest > number {
            faults.add(Fault::Disorder, || format!("{} behind {newest:#x}", name()));
        }
        *newest = number.max(*newest);
        if message::is_retained(topic, number) {
            log.retained_number = Some(number);
        }
        log.indices.insert(number, log.entries.len());
        log.entries.push((position, number));
    }

    /// Checks the number of messages that the server reports for a topic.
    pub fn check_count(&mut self, topic: u32, reported: usize) {
        let stored = self.message_count(topic);
        if reported < stored {
            let name = message::topic_name(topic);
            self.faults.add(Fault::Changed, || {
                format!("{name} has {reported} messages, had {stored}")
            });
        }
    }

    /// Checks the message at `index` of a log that was read again from its beginning.
    pub fn check_unchanged(&mut self, topic: u32, index: usize, number: u32, position: Position) {
        let log = &self.logs[topic as usize];
        let entry = log.entries.get(index);
        if entry != Some(&(position, number)) {
            let name = message::topic_name(topic);
            self.faults.add(Fault::Changed, || {
                format!(
                    "{name}, message {index}: {number:#x} at {position:?} instead of {entry:x?}"
                )
            });
        }
    }

    /// Checks the retained message of a topic.
    pub fn check_retained(&mut self, topic: u32, found: Option<u32>) {
        let expected = self.logs[topic as usize].retained_number;
        if found != expected {
            let name = message::topic_name(topic);
            self.faults.add(Fault::Retained, || {
                format!("{name}: {found:x?} instead of {expected:x?}")
            });
        }
    }

    /// Checks an answer that a publisher received before the last start.
    pub fn check_answer(&mut self, answer: &Answer) {
        let (topic, number) = (answer.message.topic, answer.message.number);
        let (log, faults) = (&self.logs[topic as usize], &mut self.faults);
        let name = || format!("{} {number:#x}", message::topic_name(topic));
        let Some(index) = log.indices.get(&number) else {
            return faults.add(Fault::AnsweredIsLost, || {
                format!("{}, {:?}", name(), answer.position)
            });
        };
        check_position(log.entries[*index].0, answer.position, faults, name);
    }

    /// Checks an observation that a subscriber recorded before the last start.
    pub fn check_observation(
        &mut self,
        subscriber_name: &str,
        progress: &mut Progress,
        observation: Observation,
    ) {
        if progress.take_expected_gap(subscriber_name, observation, &mut self.faults) {
            return;
        }
        let (topic, number, position) = match observation {
            Observation::Restart => return progress.next_by_topic.fill(NextMessage::Any),
            Observation::Gap => return self.faults.add(Fault::Gap, || subscriber_name.to_string()),
            Observation::Message {
                topic,
                number,
                position,
            } => (topic, number, position),
        };
        let (log, faults) = (&self.logs[topic as usize], &mut self.faults);
        let name = || {
            format!(
                "{subscriber_name}: {} {number:#x}, {position:?}",
                message::topic_name(topic)
            )
        };
        let Some(index) = log.indices.get(&number).copied() else {
            return faults.add(Fault::SeenIsLost, name);
        };
        let next = std::mem::replace(
            &mut progress.next_by_topic[topic as usize],
            NextMessage::At(index + 1),
        );
        check_position(log.entries[index].0, position, faults, name);
        match next {
            NextMessage::At(at) if index > at => {
                faults.add(Fault::Skipped, || {
                    format!("{}: {} messages", name(), index - at)
                });
            }
            NextMessage::At(at) if index < at => {
                faults.add(Fault::SeenAgain, || {
                    format!("{}: {} messages back", name(), at - index)
                });
            }
            _ => {}
        }
    }

    /// The number of messages of this topic that a subscriber has not received yet.
    pub fn unreceived(&self, topic: u32, progress: &Progress) -> usize {
        match progress.next_by_topic[topic as usize] {
            NextMessage::Any => 0,
            NextMessage::At(at) => self.message_count(topic).saturating_sub(at),
        }
    }
}

/// Compares the position that a client received for a message with the position in the log.
fn check_position(
    logged: Position,
    received: Option<Position>,
    faults: &mut Faults,
    name: impl Fn() -> String,
) {
    let Some(received) = received else {
        return;
    };
    if received.offset != logged.offset {
        faults.add(Fault::Moved, || {
            format!("{} at {logged:?}, client received {received:?}", name())
        });
    }
    if received.epoch != logged.epoch {
        faults.add(Fault::Epoch, || {
            format!("{} at {logged:?}, client received {received:?}", name())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::payload::Random;
    use crate::scenario::crash::message::{Message, number};

    const EPOCH: u32 = 7;

    fn position(offset: u64) -> Position {
        Position {
            epoch: EPOCH,
            offset,
        }
    }

    /// A checker that has read messages 1 to 3 of publisher 0 in topic 0, at offsets 10, 20 and 30.
    fn checker() -> Checker {
        let mut checker = Checker::new();
        for count in 1..=3 {
            checker.check_and_append(
                0,
                number(0, count),
                position(u64::from(count) * 10),
                &[5; 32],
            );
        }
        checker
    }

    fn fault_kinds(checker: &Checker) -> Vec<Fault> {
        checker.faults.counts.keys().copied().collect()
    }

    fn answer(count: u32, offset: u64) -> Answer {
        let mut message = Message::random(number(0, count), 10, &mut Random::new(1));
        message.topic = 0;
        Answer {
            message,
            position: Some(position(offset)),
        }
    }

    /// Checks the observation that a subscriber received this message of the first topic.
    fn check_message(
        checker: &mut Checker,
        progress: &mut Progress,
        number: u32,
        position: Option<Position>,
    ) {
        let topic = 0;
        let observation = Observation::Message {
            topic,
            number,
            position,
        };
        checker.check_observation("one", progress, observation);
    }

    #[test]
    fn complete_log_has_no_fault() {
        let mut checker = checker();
        (1..=3).for_each(|count| checker.check_answer(&answer(count, u64::from(count) * 10)));
        let mut progress = Progress::new(true);
        for count in 1..=3u32 {
            let (number, position) = (number(0, count), Some(position(u64::from(count) * 10)));
            check_message(&mut checker, &mut progress, number, position);
        }
        assert_eq!(checker.unreceived(0, &progress), 0);
        assert_eq!(fault_kinds(&checker), []);
    }

    #[test]
    fn faults_of_a_log_are_distinguished() {
        for (count, at, kind) in [
            (3, position(40), Fault::Doubled),
            (4, position(30), Fault::Disorder),
            (6, position(40), Fault::Protocol),
        ] {
            let mut checker = checker();
            checker.check_and_append(0, number(0, count), at, &[5; 32]);
            assert_eq!(fault_kinds(&checker), [kind]);
        }
        let in_epoch = |epoch, offset| Position { epoch, offset };
        let mut restarted = checker();
        restarted.check_and_append(0, number(0, 4), in_epoch(8, 40), &[5; 32]);
        assert_eq!(fault_kinds(&restarted), [], "a start begins an epoch");
        restarted.check_and_append(0, number(0, 5), in_epoch(EPOCH, 50), &[5; 32]);
        assert_eq!(fault_kinds(&restarted), [Fault::Epoch]);
        let mut overtaken = Checker::new();
        overtaken.check_and_append(0, number(0, 2), position(1), &[5; 32]);
        overtaken.check_and_append(0, number(0, 1), position(2), &[5; 32]);
        assert_eq!(fault_kinds(&overtaken), [Fault::Disorder]);
        let mut changed = checker();
        changed.check_unchanged(0, 1, number(0, 3), position(20));
        changed.check_count(0, 2);
        assert_eq!(changed.faults.counts[&Fault::Changed], 2);
    }

    #[test]
    fn answered_message_must_be_in_the_log_at_its_position() {
        for (answer, kind) in [
            (answer(4, 40), Fault::AnsweredIsLost),
            (answer(3, 31), Fault::Moved),
        ] {
            let mut checker = checker();
            checker.check_answer(&answer);
            assert_eq!(fault_kinds(&checker), [kind]);
        }
    }

    #[test]
    fn a_subscriber_must_get_the_log_message_by_message() {
        for (counts, kind) in [
            (vec![1, 3], Fault::Skipped),
            (vec![2], Fault::Skipped),
            (vec![1, 2, 2], Fault::SeenAgain),
            (vec![1, 2, 3, 4], Fault::SeenIsLost),
        ] {
            let (mut checker, mut progress) = (checker(), Progress::new(true));
            for count in counts {
                let number = number(0, count);
                check_message(&mut checker, &mut progress, number, None);
            }
            assert_eq!(fault_kinds(&checker), [kind]);
        }
        let (mut checker, mut progress) = (checker(), Progress::new(true));
        checker.check_observation("one", &mut progress, Observation::Restart);
        let number = number(0, 3);
        check_message(&mut checker, &mut progress, number, None);
        assert_eq!(fault_kinds(&checker), []);
        checker.check_observation("one", &mut progress, Observation::Gap);
        assert_eq!(fault_kinds(&checker), [Fault::Gap]);
    }

    #[test]
    fn log_that_loses_its_end_keeps_its_beginning_and_announces_a_gap() {
        let mut checker = checker();
        let mut progress = Progress::new(true);
        let earlier_logs = checker.take_logs();
        checker.check_and_append(0, number(0, 1), position(10), &[5; 32]);
        assert_eq!(checker.count_lost(&earlier_logs), 2);
        assert!(checker.contains(&answer(1, 10)) && !checker.contains(&answer(2, 20)));
        progress.expect_gaps(1, true);
        checker.check_observation("one", &mut progress, Observation::Gap);
        check_message(&mut checker, &mut progress, number(0, 1), None);
        assert_eq!(fault_kinds(&checker), []);
        progress.expect_gaps(1, false);
        check_message(&mut checker, &mut progress, number(0, 1), None);
        assert_eq!(fault_kinds(&checker), [], "the segment was empty");
        progress.expect_gaps(1, true);
        check_message(&mut checker, &mut progress, number(0, 1), None);
        assert_eq!(fault_kinds(&checker), [Fault::Gap], "it was told none");
        let earlier_logs = checker.take_logs();
        checker.check_and_append(0, number(0, 2), position(20), &[5; 32]);
        checker.count_lost(&earlier_logs);
        assert_eq!(checker.faults.counts[&Fault::Changed], 1);
    }

    #[test]
    fn retained_message_is_the_newest_that_was_published_as_retained() {
        let mut checker = Checker::new();
        (1..=6).for_each(|count| {
            checker.check_and_append(0, number(0, count), position(count.into()), &[9; 32]);
        });
        checker.check_retained(0, Some(number(0, 5)));
        assert_eq!(fault_kinds(&checker), []);
        checker.check_retained(0, None);
        checker.check_retained(0, Some(number(0, 6)));
        assert_eq!(checker.faults.counts[&Fault::Retained], 2);
    }
}
