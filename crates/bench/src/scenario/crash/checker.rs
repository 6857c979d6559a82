//! Compares the answers and messages from before a crash with the logs after it. This module uses no sockets.
//!
//! The logs keep everything, and are read after each start while nobody publishes. So after a crash the logs may contain further messages,
//! which were in flight at the crash. Nothing else may have changed.
//!
//! An *epoch* is a number in each position, which changes with each start on the log.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::message::{self, PUBLISHERS, TOPICS};
use super::publisher::Answer;
use super::subscriber::Observation;
use crate::client::position::Position;

/// The maximum number of faults that are described in words.
const WORDS_MAX: usize = 50;

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

/// The count of each kind of fault, and the first faults in words.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Faults {
    /// The count of each kind.
    #[serde(rename = "faults")]
    pub counts: BTreeMap<Fault, u64>,
    /// Descriptions of the first faults.
    #[serde(rename = "faults_in_words")]
    pub words: Vec<String>,
}

impl Faults {
    /// Records a fault.
    pub fn add(&mut self, kind: Fault, what: impl FnOnce() -> String) {
        *self.counts.entry(kind).or_default() += 1;
        if self.words.len() < WORDS_MAX {
            self.words.push(format!("{kind:?}: {}", what()));
        }
    }
}

/// The log of one topic, as read.
#[derive(Default)]
pub struct Log {
    /// The epochs of the topic's messages, in the order in which they began.
    epochs: Vec<u32>,
    /// Position and number of each message.
    entries: Vec<(Position, u32)>,
    /// Index in `entries` of each number.
    indices: HashMap<u32, usize>,
    /// The newest number of each publisher.
    newest: [u32; PUBLISHERS as usize],
    /// The newest message that was published as retained.
    retained: Option<u32>,
}

/// The next message of one topic that a subscriber must receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Any message.
    Any,
    /// The message with this index in the log.
    At(usize),
}

/// How far a subscriber has received each topic.
pub struct Progress {
    next: Vec<Next>,
    /// Whether the next observation must be a gap (the notice that messages are lost), because the log has lost its newest segment.
    gap_due: bool,
    /// The number of gaps that the subscriber may still receive. There is one for each of its topics.
    gaps: usize,
}

impl Progress {
    /// The progress of a new subscriber. The subscriber begins with the oldest message if `oldest`, otherwise with any message.
    pub fn new(oldest: bool) -> Progress {
        let next = if oldest { Next::At(0) } else { Next::Any };
        Progress {
            next: vec![next; TOPICS as usize],
            gap_due: false,
            gaps: 0,
        }
    }

    /// Records that the log has lost its newest segment. A subscriber with positions in `positions` topics may receive a gap in each, and must
    /// receive one if the segment had messages.
    pub fn segment_lost(&mut self, positions: usize, had_messages: bool) {
        if positions > 0 {
            self.next.fill(Next::Any);
            self.gap_due = had_messages;
            self.gaps = positions;
        }
    }

    /// Whether the observation is a gap that was due. A message that arrives before the due gap is a fault.
    fn takes_due_gap(&mut self, who: &str, seen: Observation, faults: &mut Faults) -> bool {
        let was_due = std::mem::take(&mut self.gap_due);
        if seen == Observation::Gap {
            let may_come = self.gaps > 0;
            self.gaps = self.gaps.saturating_sub(1);
            return may_come;
        }
        if was_due && seen != Observation::Restart {
            faults.add(Fault::Gap, || format!("{who} was told none"));
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

    /// Returns the logs, and replaces them by empty ones, since the logs will be read again from the beginning.
    pub fn take_logs(&mut self) -> Vec<Log> {
        std::mem::replace(&mut self.logs, Checker::new().logs)
    }

    /// Counts the messages of the logs `before` that are lost. The messages that are left in a log must be the first ones of the same log
    /// in `before`.
    pub fn lost_since(&mut self, before: &[Log]) -> u64 {
        let mut lost = 0;
        for ((topic, now), before) in (0..).zip(&self.logs).zip(before) {
            let numbers = |log: &Log| log.entries.iter().map(|(_, number)| *number).collect();
            let (now, before): (Vec<u32>, Vec<u32>) = (numbers(now), numbers(before));
            let left = now.len().min(before.len());
            if now[..left] != before[..left] {
                let name = message::name(topic);
                self.faults.add(Fault::Changed, || {
                    format!("{name}: its first {left} messages are others than before")
                });
            }
            lost += (before.len() - left) as u64;
        }
        lost
    }

    /// Whether the log of the topic has the message of this answer.
    pub fn has(&self, answer: &Answer) -> bool {
        let log = &self.logs[answer.message.topic as usize];
        log.indices.contains_key(&answer.message.number)
    }

    /// Checks an observation from before the log lost its newest segment. The log may have lost the observed message, so the log is not
    /// searched for it.
    pub fn check_before_loss(&mut self, who: &str, progress: &mut Progress, seen: Observation) {
        let was_due = progress.takes_due_gap(who, seen, &mut self.faults);
        if seen == Observation::Gap && !was_due {
            self.faults.add(Fault::Gap, || who.to_string());
        }
    }

    /// The number of messages of a topic.
    pub fn count(&self, topic: u32) -> usize {
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
    pub fn total(&self) -> usize {
        self.logs.iter().map(|log| log.entries.len()).sum()
    }

    /// The number of topics with a retained message.
    pub fn retaining(&self) -> usize {
        let retain = |log: &&Log| log.retained.is_some();
        self.logs.iter().filter(retain).count()
    }

    /// Checks and adds the next message of a topic's log. `sent` is the number of messages that each publisher has sent.
    pub fn check_logged(&mut self, topic: u32, number: u32, position: Position, sent: &[u32]) {
        let (log, faults) = (&mut self.logs[topic as usize], &mut self.faults);
        let name = || format!("{} {number:#x} at {position:?}", message::name(topic));
        let (publisher, count) = message::origin(number);
        if sent
            .get(publisher as usize)
            .is_none_or(|sent| count > *sent)
        {
            return faults.add(Fault::Protocol, || format!("{} was never sent", name()));
        }
        // Each start begins a new epoch. An earlier epoch never returns.
        if log.epochs.last() != Some(&position.epoch) {
            if log.epochs.contains(&position.epoch) {
                faults.add(Fault::Epoch, || format!("{}, of an ended life", name()));
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
        let newest = &mut log.newest[publisher as usize];
        if *newest > number {
            faults.add(Fault::Disorder, || format!("{} behind {newest:#x}", name()));
        }
        *newest = number.max(*newest);
        if message::is_retained(topic, number) {
            log.retained = Some(number);
        }
        log.indices.insert(number, log.entries.len());
        log.entries.push((position, number));
    }

    /// Checks the number of messages that the server reports for a topic.
    pub fn check_count(&mut self, topic: u32, now: usize) {
        let known = self.count(topic);
        if now < known {
            let name = message::name(topic);
            self.faults.add(Fault::Changed, || {
                format!("{name} has {now} messages, had {known}")
            });
        }
    }

    /// Checks the message at `index` of a log that was read again from its beginning.
    pub fn check_unchanged(&mut self, topic: u32, index: usize, number: u32, position: Position) {
        let log = &self.logs[topic as usize];
        let entry = log.entries.get(index);
        if entry != Some(&(position, number)) {
            let name = message::name(topic);
            self.faults.add(Fault::Changed, || {
                format!(
                    "{name}, message {index}: {number:#x} at {position:?} instead of {entry:x?}"
                )
            });
        }
    }

    /// Checks the retained message of a topic.
    pub fn check_retained(&mut self, topic: u32, found: Option<u32>) {
        let right = self.logs[topic as usize].retained;
        if found != right {
            let name = message::name(topic);
            self.faults.add(Fault::Retained, || {
                format!("{name}: {found:x?} instead of {right:x?}")
            });
        }
    }

    /// Checks an answer from before the last start.
    pub fn check_answer(&mut self, answer: &Answer) {
        let (topic, number) = (answer.message.topic, answer.message.number);
        let (log, faults) = (&self.logs[topic as usize], &mut self.faults);
        let name = || format!("{} {number:#x}", message::name(topic));
        let Some(index) = log.indices.get(&number) else {
            return faults.add(Fault::AnsweredIsLost, || {
                format!("{}, {:?}", name(), answer.position)
            });
        };
        check_position(log.entries[*index].0, answer.position, faults, name);
    }

    /// Checks an observation of a subscriber from before the last start.
    pub fn check_observation(&mut self, who: &str, progress: &mut Progress, seen: Observation) {
        if progress.takes_due_gap(who, seen, &mut self.faults) {
            return;
        }
        let (topic, number, position) = match seen {
            Observation::Restart => return progress.next.fill(Next::Any),
            Observation::Gap => return self.faults.add(Fault::Gap, || who.to_string()),
            Observation::Message {
                topic,
                number,
                position,
            } => (topic, number, position),
        };
        let (log, faults) = (&self.logs[topic as usize], &mut self.faults);
        let name = || format!("{who}: {} {number:#x}, {position:?}", message::name(topic));
        let Some(index) = log.indices.get(&number).copied() else {
            return faults.add(Fault::SeenIsLost, name);
        };
        let next = std::mem::replace(&mut progress.next[topic as usize], Next::At(index + 1));
        check_position(log.entries[index].0, position, faults, name);
        match next {
            Next::At(at) if index > at => {
                faults.add(Fault::Skipped, || {
                    format!("{}: {} messages", name(), index - at)
                });
            }
            Next::At(at) if index < at => {
                faults.add(Fault::SeenAgain, || {
                    format!("{}: {} messages back", name(), at - index)
                });
            }
            _ => {}
        }
    }

    /// The number of messages of this topic that a subscriber has not received yet.
    pub fn unreceived(&self, topic: u32, progress: &Progress) -> usize {
        match progress.next[topic as usize] {
            Next::Any => 0,
            Next::At(at) => self.count(topic).saturating_sub(at),
        }
    }
}

/// Compares the position that a client received for a message with the position in the log.
fn check_position(
    right: Position,
    told: Option<Position>,
    faults: &mut Faults,
    name: impl Fn() -> String,
) {
    let Some(told) = told else {
        return;
    };
    if told.offset != right.offset {
        faults.add(Fault::Moved, || {
            format!("{} at {right:?}, told {told:?}", name())
        });
    }
    if told.epoch != right.epoch {
        faults.add(Fault::Epoch, || {
            format!("{} at {right:?}, told {told:?}", name())
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
            checker.check_logged(
                0,
                number(0, count),
                position(u64::from(count) * 10),
                &[5; 32],
            );
        }
        checker
    }

    fn kinds(checker: &Checker) -> Vec<Fault> {
        checker.faults.counts.keys().copied().collect()
    }

    fn answer(count: u32, offset: u64) -> Answer {
        let mut message = Message::draw(number(0, count), 10, &mut Random::new(1));
        message.topic = 0;
        Answer {
            message,
            position: Some(position(offset)),
        }
    }

    /// Checks the observation that a subscriber got this message of the first topic.
    fn saw(
        checker: &mut Checker,
        progress: &mut Progress,
        number: u32,
        position: Option<Position>,
    ) {
        let topic = 0;
        let seen = Observation::Message {
            topic,
            number,
            position,
        };
        checker.check_observation("one", progress, seen);
    }

    #[test]
    fn a_log_that_holds_everything_in_its_place_is_without_fault() {
        let mut checker = checker();
        (1..=3).for_each(|count| checker.check_answer(&answer(count, u64::from(count) * 10)));
        let mut progress = Progress::new(true);
        for count in 1..=3u32 {
            let (number, position) = (number(0, count), Some(position(u64::from(count) * 10)));
            saw(&mut checker, &mut progress, number, position);
        }
        assert_eq!(checker.unreceived(0, &progress), 0);
        assert_eq!(kinds(&checker), []);
    }

    #[test]
    fn each_fault_of_a_log_is_told_from_the_others() {
        for (count, at, kind) in [
            (3, position(40), Fault::Doubled),
            (4, position(30), Fault::Disorder),
            (6, position(40), Fault::Protocol),
        ] {
            let mut checker = checker();
            checker.check_logged(0, number(0, count), at, &[5; 32]);
            assert_eq!(kinds(&checker), [kind]);
        }
        let of_life = |epoch, offset| Position { epoch, offset };
        let mut lives = checker();
        lives.check_logged(0, number(0, 4), of_life(8, 40), &[5; 32]);
        assert_eq!(kinds(&lives), [], "a start begins a life");
        lives.check_logged(0, number(0, 5), of_life(EPOCH, 50), &[5; 32]);
        assert_eq!(kinds(&lives), [Fault::Epoch]);
        let mut overtaken = Checker::new();
        overtaken.check_logged(0, number(0, 2), position(1), &[5; 32]);
        overtaken.check_logged(0, number(0, 1), position(2), &[5; 32]);
        assert_eq!(kinds(&overtaken), [Fault::Disorder]);
        let mut changed = checker();
        changed.check_unchanged(0, 1, number(0, 3), position(20));
        changed.check_count(0, 2);
        assert_eq!(changed.faults.counts[&Fault::Changed], 2);
    }

    #[test]
    fn an_answer_must_be_there_at_its_position() {
        for (answer, kind) in [
            (answer(4, 40), Fault::AnsweredIsLost),
            (answer(3, 31), Fault::Moved),
        ] {
            let mut checker = checker();
            checker.check_answer(&answer);
            assert_eq!(kinds(&checker), [kind]);
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
                saw(&mut checker, &mut progress, number, None);
            }
            assert_eq!(kinds(&checker), [kind]);
        }
        let (mut checker, mut progress) = (checker(), Progress::new(true));
        checker.check_observation("one", &mut progress, Observation::Restart);
        let number = number(0, 3);
        saw(&mut checker, &mut progress, number, None);
        assert_eq!(kinds(&checker), []);
        checker.check_observation("one", &mut progress, Observation::Gap);
        assert_eq!(kinds(&checker), [Fault::Gap]);
    }

    #[test]
    fn a_lost_end_leaves_the_beginning_and_is_told() {
        let mut checker = checker();
        let mut progress = Progress::new(true);
        let before = checker.take_logs();
        checker.check_logged(0, number(0, 1), position(10), &[5; 32]);
        assert_eq!(checker.lost_since(&before), 2);
        assert!(checker.has(&answer(1, 10)) && !checker.has(&answer(2, 20)));
        progress.segment_lost(1, true);
        checker.check_observation("one", &mut progress, Observation::Gap);
        saw(&mut checker, &mut progress, number(0, 1), None);
        assert_eq!(kinds(&checker), []);
        progress.segment_lost(1, false);
        saw(&mut checker, &mut progress, number(0, 1), None);
        assert_eq!(kinds(&checker), [], "the segment was empty");
        progress.segment_lost(1, true);
        saw(&mut checker, &mut progress, number(0, 1), None);
        assert_eq!(kinds(&checker), [Fault::Gap], "it was told none");
        let before = checker.take_logs();
        checker.check_logged(0, number(0, 2), position(20), &[5; 32]);
        checker.lost_since(&before);
        assert_eq!(checker.faults.counts[&Fault::Changed], 1);
    }

    #[test]
    fn the_retained_message_is_the_last_that_was_to_be_retained() {
        let mut checker = Checker::new();
        (1..=6).for_each(|count| {
            checker.check_logged(0, number(0, count), position(count.into()), &[9; 32]);
        });
        checker.check_retained(0, Some(number(0, 5)));
        assert_eq!(kinds(&checker), []);
        checker.check_retained(0, None);
        checker.check_retained(0, Some(number(0, 6)));
        assert_eq!(checker.faults.counts[&Fault::Retained], 2);
    }
}
