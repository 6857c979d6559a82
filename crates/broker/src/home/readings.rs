//! Pages that the home owes: what a turn has no time for waits here, in the order in which it was asked for.
//!
//! Each reading is a unit of its own: it looks at [`Pace::page_visits`](crate::Pace::page_visits) entries at most and ends with a
//! page, or goes behind the others again with what it has found so far. So who reads far holds nobody for longer than a unit, and
//! neither does a thousand of such: publishes do not wait for readings.
//!
//! Invariants: who waits for the first page of a topic is counted already, and a filter is registered already, so that the
//! asks behind it in the lane find both; the page that is marked `at_head` is told as it is read, so nothing lies between.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::attach::Place;
use super::filters::{Reader, split};
use super::{DELETED, Home};
use crate::lanes::Lanes;
use crate::mail::{Attach, AttachFilters, ReplyTo, ShardId};
use crate::rules::Rules;
use crate::time::Now;

/// A page that is owed.
enum Reading {
    /// Of a topic.
    Topic {
        from: ShardId,
        ask: Attach,
        name: Box<[u8]>,
        /// What the home has found of where it begins.
        place: Place,
        /// It is counted.
        counted: bool,
    },
    /// To a subscriber by filter.
    Filters {
        from: ShardId,
        ask: AttachFilters,
        names: Box<[u8]>,
        reader: Reader,
    },
    /// What a group's members may have.
    Group(u64),
    /// Of the topics that have subscribers.
    Interest(ShardId, ReplyTo),
}

/// All of them.
#[derive(Default)]
pub(super) struct Readings {
    queue: VecDeque<Reading>,
    /// Steps at the end of the last turn.
    began: u64,
}

impl Home {
    /// What it has done since it began, in steps.
    pub fn steps(&self) -> u64 {
        self.log.steps.count()
    }

    /// Pages that are owed.
    pub fn readings(&self) -> usize {
        self.readings.queue.len()
    }

    /// The turn is over: the next one may read as much again.
    pub fn end_turn(&mut self) {
        self.readings.began = self.steps();
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
        self.readings.queue.push_back(Reading::Topic {
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
        self.readings.queue.push_back(Reading::Filters {
            from,
            ask,
            names,
            reader,
        });
    }

    pub(super) fn owe_group(&mut self, id: u64) {
        self.readings.queue.push_back(Reading::Group(id));
    }

    pub(super) fn owe_interest(&mut self, shard: ShardId, to: ReplyTo) {
        self.readings.queue.push_back(Reading::Interest(shard, to));
    }

    /// Reads the page that was asked for first; says whether there was one.
    pub fn read_next(&mut self, rules: &Rules, now: Now, lanes: &mut Lanes) -> bool {
        let Some(reading) = self.readings.queue.pop_front() else {
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
                    // Deleted since: it goes as if it had had its page before.
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
