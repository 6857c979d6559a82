//! Pages that the home owes: those that a turn has no time for wait here, in the order in which they were asked for.
//!
//! Each reading is a unit of its own: it looks at [`Pace::page_visits`](crate::base::pace::Pace::page_visits) entries
//! at most and ends with a page, or goes behind the others again with what it has found so far. So a subscriber that
//! reads far back holds up others for no longer than a unit at a time, even if there are a thousand of them: publishes
//! do not wait for readings.
//!
//! Invariants: a subscriber that waits for the first page of a topic is counted already, and a filter is registered
//! already, so that the asks behind it in the lane find both; the page that is marked `at_head` is told as it is read,
//! so that no message falls between.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::attach::Place;
use super::filters::{Reader, split};
use super::{DELETED, Home};
use crate::base::ids::ShardId;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::mail::lanes::Lanes;
use crate::mail::{Attach, AttachFilters, ReplyTo};

/// A page that is owed.
enum Reading {
    /// Of a topic.
    Topic {
        from: ShardId,
        ask: Attach,
        name: Box<[u8]>,
        /// How far the search for its beginning has come.
        place: Place,
        /// Whether the subscriber is counted already.
        counted: bool,
    },
    /// To a subscriber by filter.
    Filters {
        from: ShardId,
        ask: AttachFilters,
        names: Box<[u8]>,
        reader: Reader,
    },
    /// Messages for a group's members.
    Group(u64),
    /// Of a follower's snapshot of the topics that have subscribers.
    Interest(ShardId, ReplyTo),
}

impl Reading {
    /// Bytes of its names.
    fn names_bytes(&self) -> usize {
        match self {
            Reading::Topic { name, .. } => name.len(),
            Reading::Filters { names, .. } => names.len(),
            Reading::Group(_) | Reading::Interest(..) => 0,
        }
    }
}

/// Room that a home always has for them.
const KEPT: usize = 64;

/// All pages that are owed.
#[derive(Default)]
pub(super) struct Readings {
    queue: VecDeque<Reading>,
    /// Bytes of their names.
    names_bytes: usize,
    /// Steps at the end of the last turn.
    began: u64,
}

impl Readings {
    fn push(&mut self, reading: Reading) {
        self.names_bytes += reading.names_bytes();
        self.queue.push_back(reading);
    }

    fn pop(&mut self) -> Option<Reading> {
        let reading = self.queue.pop_front()?;
        self.names_bytes -= reading.names_bytes();
        Some(reading)
    }

    fn make_smaller(&mut self) {
        if self.queue.capacity() > KEPT.max(4 * self.queue.len()) {
            self.queue.shrink_to(2 * self.queue.len());
        }
    }

    /// Bytes of heap that they occupy, without the room that a home always has.
    fn bytes(&self) -> usize {
        let more = self.queue.capacity().saturating_sub(KEPT);
        more * size_of::<Reading>() + self.names_bytes
    }
}

impl Home {
    /// The work that it has done since it began, in steps.
    pub fn steps(&self) -> u64 {
        self.log.steps.count()
    }

    /// Pages that are owed.
    pub fn readings(&self) -> usize {
        self.readings.queue.len()
    }

    /// Bytes that those pages occupy.
    pub fn readings_bytes(&self) -> usize {
        self.readings.bytes()
    }

    /// The turn is over: the next one may read as much again.
    pub fn end_turn(&mut self) {
        self.readings.began = self.steps();
        self.readings.make_smaller();
    }

    /// Whether a page has to wait: for others, or for the next turn, since half of this one's budget is spent here.
    pub(super) fn must_queue(&self) -> bool {
        let spent = self.steps() - self.readings.began;
        !self.readings.queue.is_empty() || spent >= u64::from(self.pace.steps_per_turn) / 2
    }

    pub(super) fn owe_topic(
        &mut self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        place: Place,
        counted: bool,
    ) {
        self.stats.pages_waited += 1;
        let (ask, name) = (*ask, name.into());
        self.readings.push(Reading::Topic {
            from,
            ask,
            name,
            place,
            counted,
        });
    }

    pub(super) fn owe_filters(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        names: &[u8],
        reader: Reader,
    ) {
        self.stats.pages_waited += 1;
        let (ask, names) = (*ask, names.into());
        self.readings.push(Reading::Filters {
            from,
            ask,
            names,
            reader,
        });
    }

    pub(super) fn owe_group(&mut self, id: u64) {
        self.readings.push(Reading::Group(id));
    }

    pub(super) fn owe_interest(&mut self, shard: ShardId, to: ReplyTo) {
        self.readings.push(Reading::Interest(shard, to));
    }

    /// Reads the page that was asked for first; says whether there was one.
    pub fn read_next(&mut self, rules: &Rules, now: Now, lanes: &mut Lanes) -> bool {
        let Some(reading) = self.readings.pop() else {
            return false;
        };
        self.log.steps.add(1);
        match reading {
            Reading::Topic {
                from,
                ask,
                name,
                place,
                counted: false,
            } => self.attach_from(from, &ask, &name, Some(place), rules, now, lanes),
            Reading::Topic {
                from,
                ask,
                name,
                place,
                counted: true,
            } => {
                let found = self.find(ask.hash, &name);
                match found.filter(|id| !self.rows.get(*id).has(DELETED)) {
                    Some(id) => {
                        self.read_topic(id, from, &ask, &name, place, rules, now, lanes);
                    }
                    // Deleted since: the subscriber goes as if it had got its page before the deletion.
                    None => self.end_owed(from, &ask, &name, now, lanes),
                }
            }
            Reading::Filters {
                from,
                ask,
                names,
                reader,
            } => {
                let filters = split(&names);
                self.tell_match_page(from, &ask, &filters, reader, rules, now, lanes);
            }
            Reading::Group(id) => self.pump(id, rules, now, lanes),
            Reading::Interest(shard, to) => self.next_page(shard, to),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_counted_until_it_is_read() {
        let mut readings = Readings::default();
        for id in 0..1_000 {
            readings.push(Reading::Group(id));
        }
        assert!(readings.bytes() >= (1_000 - KEPT) * size_of::<Reading>());
        while readings.pop().is_some() {}
        readings.make_smaller();
        assert_eq!(readings.bytes(), 0);
    }
}
