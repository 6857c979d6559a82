//! Compares the answers and messages of before a crash with the logs after it. It only takes notes and counts: no sockets.
//!
//! The logs are read after each start while nobody publishes, and they keep everything. So a crash may add messages (those
//! that were on their way), and nothing else may change.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::message::{self, PUBLISHERS, TOPICS};
use super::publisher::Answer;
use super::subscriber::Seen;
use crate::client::place::Place;

/// Faults that are kept in words.
const WORDS_MAX: usize = 50;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Fault {
    /// A publish was answered, and is not there.
    AnsweredIsLost,
    /// An answered message is not at the position that the answer gave.
    Moved,
    /// A message is there twice.
    Doubled,
    /// A message stands before one that its publisher sent earlier, or positions do not rise.
    Disorder,
    /// A message was there after an earlier start, and is gone or changed.
    Changed,
    /// A subscriber saw a message that is not there.
    SeenIsLost,
    /// A subscriber did not get the messages behind the one that it had seen last.
    Skipped,
    /// A subscriber got a message again, or out of order.
    SeenAgain,
    /// A subscriber was told that messages are lost, and none are; or it was not told although they are.
    Gap,
    /// A position names another life of the log than that of its message, or a life comes back that had ended.
    Epoch,
    /// The retained message is not the last one that was to be retained.
    Retained,
    /// An answer or a message that no server may send.
    Protocol,
}

/// All faults: how many of each kind, and the first in words.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Faults {
    /// By kind.
    #[serde(rename = "faults")]
    pub counts: BTreeMap<Fault, u64>,
    /// The first.
    #[serde(rename = "faults_in_words")]
    pub words: Vec<String>,
}

impl Faults {
    /// Notes one.
    pub fn add(&mut self, kind: Fault, what: impl FnOnce() -> String) {
        *self.counts.entry(kind).or_default() += 1;
        if self.words.len() < WORDS_MAX {
            self.words.push(format!("{kind:?}: {}", what()));
        }
    }
}

/// The log of one topic, as it was read.
#[derive(Default)]
pub struct Log {
    /// The epochs of its messages, in the order in which they began.
    epochs: Vec<u32>,
    /// Position and number of each message.
    entries: Vec<(Place, u32)>,
    /// Where each number stands in `entries`.
    indices: HashMap<u32, usize>,
    /// The newest number of each publisher.
    newest: [u32; PUBLISHERS as usize],
    /// The newest message that was to be retained.
    retained: Option<u32>,
}

/// How far a subscriber has come in one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The first message that comes may be any.
    Any,
    /// The message at this place of the log must come.
    At(usize),
}

/// How far a subscriber has come in each topic.
pub struct Track {
    next: Vec<Next>,
    /// The log has lost its end since it came so far: the next that it hears must be a gap.
    must_hear_gap: bool,
    /// So many gaps may come: one for each of its topics.
    gaps: usize,
}

impl Track {
    /// A subscriber that begins with the oldest message, or with any.
    pub fn new(oldest: bool) -> Track {
        let next = if oldest { Next::At(0) } else { Next::Any };
        Track {
            next: vec![next; TOPICS as usize],
            must_hear_gap: false,
            gaps: 0,
        }
    }

    /// The log has lost its end. A subscriber with positions in so many topics is to be told.
    pub fn lost_end(&mut self, positions: usize) {
        if positions > 0 {
            self.next.fill(Next::Any);
            self.must_hear_gap = true;
            self.gaps = positions;
        }
    }

    /// Whether this note is that of a gap which was due; a fault if a message comes first.
    fn hears_gap(&mut self, who: &str, seen: Seen, faults: &mut Faults) -> bool {
        let was_due = std::mem::take(&mut self.must_hear_gap);
        if seen == Seen::Gap {
            let may_come = self.gaps > 0;
            self.gaps = self.gaps.saturating_sub(1);
            return may_come;
        }
        if was_due && seen != Seen::Anew {
            faults.add(Fault::Gap, || format!("{who} was told none"));
        }
        false
    }
}

/// The logs, and the faults that were found.
pub struct Judge {
    logs: Vec<Log>,
    /// The faults that were found.
    pub faults: Faults,
}

impl Judge {
    /// Before anything is published.
    pub fn new() -> Judge {
        Judge {
            logs: (0..TOPICS).map(|_| Log::default()).collect(),
            faults: Faults::default(),
        }
    }

    /// Forgets the logs, which are read anew, and returns them.
    pub fn begin_anew(&mut self) -> Vec<Log> {
        std::mem::replace(&mut self.logs, Judge::new().logs)
    }

    /// How many messages of these logs are lost with the end: what is left of each is its beginning.
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

    /// Whether the message of this answer is in its log.
    pub fn has(&self, answer: &Answer) -> bool {
        let log = &self.logs[answer.message.topic as usize];
        log.indices.contains_key(&answer.message.number)
    }

    /// Takes a note of a subscriber from before the log lost its end: what it saw may be lost.
    pub fn saw_before_loss(&mut self, who: &str, track: &mut Track, seen: Seen) {
        let was_due = track.hears_gap(who, seen, &mut self.faults);
        if seen == Seen::Gap && !was_due {
            self.faults.add(Fault::Gap, || who.to_string());
        }
    }

    /// Messages of a topic.
    pub fn count(&self, topic: u32) -> usize {
        self.logs[topic as usize].entries.len()
    }

    /// Messages of all topics.
    pub fn total(&self) -> usize {
        self.logs.iter().map(|log| log.entries.len()).sum()
    }

    /// Topics that retain a message.
    pub fn retaining(&self) -> usize {
        let retain = |log: &&Log| log.retained.is_some();
        self.logs.iter().filter(retain).count()
    }

    /// Takes the next message that was read from a topic's log. `begun` are the messages that each publisher has sent.
    pub fn read(&mut self, topic: u32, number: u32, place: Place, begun: &[u32]) {
        let (log, faults) = (&mut self.logs[topic as usize], &mut self.faults);
        let name = || format!("{} {number:#x} at {place:?}", message::name(topic));
        let (publisher, count) = message::origin(number);
        if begun
            .get(publisher as usize)
            .is_none_or(|begun| count > *begun)
        {
            return faults.add(Fault::Protocol, || format!("{} was never sent", name()));
        }
        // Each start begins a life of the log with an epoch of its own; an earlier one never comes back.
        if log.epochs.last() != Some(&place.epoch) {
            if log.epochs.contains(&place.epoch) {
                faults.add(Fault::Epoch, || format!("{}, of an ended life", name()));
            }
            log.epochs.push(place.epoch);
        }
        let last = log.entries.last().map_or(0, |(place, _)| place.offset);
        if place.offset <= last {
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
        log.entries.push((place, number));
    }

    /// Takes the number of messages that a topic has now.
    pub fn counted(&mut self, topic: u32, now: usize) {
        let known = self.count(topic);
        if now < known {
            let name = message::name(topic);
            self.faults.add(Fault::Changed, || {
                format!("{name} has {now} messages, had {known}")
            });
        }
    }

    /// Takes the message at `index` of a log that was read again from its beginning.
    pub fn read_again(&mut self, topic: u32, index: usize, number: u32, place: Place) {
        let log = &self.logs[topic as usize];
        let entry = log.entries.get(index);
        if entry != Some(&(place, number)) {
            let name = message::name(topic);
            self.faults.add(Fault::Changed, || {
                format!("{name}, message {index}: {number:#x} at {place:?} instead of {entry:x?}")
            });
        }
    }

    /// Takes the message that the server retains for a topic.
    pub fn retained(&mut self, topic: u32, found: Option<u32>) {
        let right = self.logs[topic as usize].retained;
        if found != right {
            let name = message::name(topic);
            self.faults.add(Fault::Retained, || {
                format!("{name}: {found:x?} instead of {right:x?}")
            });
        }
    }

    /// Takes an answer of before the last start.
    pub fn answered(&mut self, answer: &Answer) {
        let (topic, number) = (answer.message.topic, answer.message.number);
        let (log, faults) = (&self.logs[topic as usize], &mut self.faults);
        let name = || format!("{} {number:#x}", message::name(topic));
        let Some(index) = log.indices.get(&number) else {
            return faults.add(Fault::AnsweredIsLost, || {
                format!("{}, {:?}", name(), answer.place)
            });
        };
        check_place(log.entries[*index].0, answer.place, faults, name);
    }

    /// Takes a note of a subscriber from before the last start.
    pub fn saw(&mut self, who: &str, track: &mut Track, seen: Seen) {
        if track.hears_gap(who, seen, &mut self.faults) {
            return;
        }
        let (topic, number, place) = match seen {
            Seen::Anew => return track.next.fill(Next::Any),
            Seen::Gap => return self.faults.add(Fault::Gap, || who.to_string()),
            Seen::Message {
                topic,
                number,
                place,
            } => (topic, number, place),
        };
        let (log, faults) = (&self.logs[topic as usize], &mut self.faults);
        let name = || format!("{who}: {} {number:#x}, {place:?}", message::name(topic));
        let Some(index) = log.indices.get(&number).copied() else {
            return faults.add(Fault::SeenIsLost, name);
        };
        let next = std::mem::replace(&mut track.next[topic as usize], Next::At(index + 1));
        check_place(log.entries[index].0, place, faults, name);
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

    /// Messages of this topic that a subscriber has yet to get.
    pub fn left(&self, topic: u32, track: &Track) -> usize {
        match track.next[topic as usize] {
            Next::Any => 0,
            Next::At(at) => self.count(topic).saturating_sub(at),
        }
    }
}

/// Compares the position that a client was told of a message with that in the log.
fn check_place(right: Place, told: Option<Place>, faults: &mut Faults, name: impl Fn() -> String) {
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

    fn place(offset: u64) -> Place {
        Place {
            epoch: EPOCH,
            offset,
        }
    }

    /// A judge that has read messages 1 to 3 of publisher 0 in topic 0, at offsets 10, 20 and 30.
    fn judge() -> Judge {
        let mut judge = Judge::new();
        for count in 1..=3 {
            judge.read(0, number(0, count), place(u64::from(count) * 10), &[5; 32]);
        }
        judge
    }

    fn kinds(judge: &Judge) -> Vec<Fault> {
        judge.faults.counts.keys().copied().collect()
    }

    fn answer(count: u32, offset: u64) -> Answer {
        let mut message = Message::draw(number(0, count), 10, &mut Random::new(1));
        message.topic = 0;
        Answer {
            message,
            place: Some(place(offset)),
        }
    }

    /// A subscriber got this message of the first topic.
    fn saw(judge: &mut Judge, track: &mut Track, number: u32, place: Option<Place>) {
        let topic = 0;
        let seen = Seen::Message {
            topic,
            number,
            place,
        };
        judge.saw("one", track, seen);
    }

    #[test]
    fn a_log_that_holds_everything_in_its_place_is_without_fault() {
        let mut judge = judge();
        (1..=3).for_each(|count| judge.answered(&answer(count, u64::from(count) * 10)));
        let mut track = Track::new(true);
        for count in 1..=3u32 {
            let (number, place) = (number(0, count), Some(place(u64::from(count) * 10)));
            saw(&mut judge, &mut track, number, place);
        }
        assert_eq!(judge.left(0, &track), 0);
        assert_eq!(kinds(&judge), []);
    }

    #[test]
    fn each_fault_of_a_log_is_told_from_the_others() {
        for (count, at, kind) in [
            (3, place(40), Fault::Doubled),
            (4, place(30), Fault::Disorder),
            (6, place(40), Fault::Protocol),
        ] {
            let mut judge = judge();
            judge.read(0, number(0, count), at, &[5; 32]);
            assert_eq!(kinds(&judge), [kind]);
        }
        let of_life = |epoch, offset| Place { epoch, offset };
        let mut lives = judge();
        lives.read(0, number(0, 4), of_life(8, 40), &[5; 32]);
        assert_eq!(kinds(&lives), [], "a start begins a life");
        lives.read(0, number(0, 5), of_life(EPOCH, 50), &[5; 32]);
        assert_eq!(kinds(&lives), [Fault::Epoch]);
        let mut overtaken = Judge::new();
        overtaken.read(0, number(0, 2), place(1), &[5; 32]);
        overtaken.read(0, number(0, 1), place(2), &[5; 32]);
        assert_eq!(kinds(&overtaken), [Fault::Disorder]);
        let mut changed = judge();
        changed.read_again(0, 1, number(0, 3), place(20));
        changed.counted(0, 2);
        assert_eq!(changed.faults.counts[&Fault::Changed], 2);
    }

    #[test]
    fn an_answer_must_be_there_at_its_position() {
        for (answer, kind) in [
            (answer(4, 40), Fault::AnsweredIsLost),
            (answer(3, 31), Fault::Moved),
        ] {
            let mut judge = judge();
            judge.answered(&answer);
            assert_eq!(kinds(&judge), [kind]);
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
            let (mut judge, mut track) = (judge(), Track::new(true));
            for count in counts {
                let number = number(0, count);
                saw(&mut judge, &mut track, number, None);
            }
            assert_eq!(kinds(&judge), [kind]);
        }
        let (mut judge, mut track) = (judge(), Track::new(true));
        judge.saw("one", &mut track, Seen::Anew);
        let number = number(0, 3);
        saw(&mut judge, &mut track, number, None);
        assert_eq!(kinds(&judge), []);
        judge.saw("one", &mut track, Seen::Gap);
        assert_eq!(kinds(&judge), [Fault::Gap]);
    }

    #[test]
    fn a_lost_end_leaves_the_beginning_and_is_told() {
        let mut judge = judge();
        let mut track = Track::new(true);
        let before = judge.begin_anew();
        judge.read(0, number(0, 1), place(10), &[5; 32]);
        assert_eq!(judge.lost_since(&before), 2);
        assert!(judge.has(&answer(1, 10)) && !judge.has(&answer(2, 20)));
        track.lost_end(1);
        judge.saw("one", &mut track, Seen::Gap);
        saw(&mut judge, &mut track, number(0, 1), None);
        assert_eq!(kinds(&judge), []);
        track.lost_end(1);
        saw(&mut judge, &mut track, number(0, 1), None);
        assert_eq!(kinds(&judge), [Fault::Gap], "it was told none");
        let before = judge.begin_anew();
        judge.read(0, number(0, 2), place(20), &[5; 32]);
        judge.lost_since(&before);
        assert_eq!(judge.faults.counts[&Fault::Changed], 1);
    }

    #[test]
    fn the_retained_message_is_the_last_that_was_to_be_retained() {
        let mut judge = Judge::new();
        (1..=6).for_each(|count| {
            judge.read(0, number(0, count), place(count.into()), &[9; 32]);
        });
        judge.retained(0, Some(number(0, 5)));
        assert_eq!(kinds(&judge), []);
        judge.retained(0, None);
        judge.retained(0, Some(number(0, 6)));
        assert_eq!(judge.faults.counts[&Fault::Retained], 2);
    }
}
