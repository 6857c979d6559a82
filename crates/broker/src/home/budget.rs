//! The budget of bytes that the logs of a home's partitions share.
//!
//! A large message may need the room of very many small ones, in all logs or in its topic's. A publish removes messages in a bounded number
//! of steps, and the end of each turn goes on. No other publish is carried out before there is room: so the logs are past their budget, and
//! one topic past its limits, by what the last one has added at most.
//!
//! Where they are past it, the partition with the most bytes gives some: so a topic that fills its partition makes room first, and
//! partitions that are alike are trimmed alike.
//!
//! Messages of a client that holds little are spared while another client holds far more ([`Holdings`](crate::budget::admission::holdings::Holdings)): then the oldest of that one go, whatever
//! their topics, and its retained ones last. So nobody pushes out what all others keep, with many small topics, retained messages or anything
//! else; and one client alone, such as a backend, has all of the budget.
//!
//! Messages that have gone leave free places, and a chunk of places goes when the last of its messages does. So the chunks have a bound of
//! their own: half as much again as the budget of the messages, and what an empty log keeps. Past that bound the oldest messages go, since
//! the topics furthest over their share may have none in the chunks with few messages.
//!
//! Invariant: `held_most` is at least the sum of all logs' bytes. A log that grew is counted at once, one that shrank when all are.

use alloc::vec::Vec;

use super::Home;
use super::logs::Logs;
use super::partition::Partition;
use super::topics::TopicTable;
use crate::base::pace::Pace;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::log::removal::Search;
use crate::log::{Log, removal};

impl Home {
    /// Removes some messages, if the logs are past their budget or a topic is past its limits; says whether more must go before there is room.
    #[inline]
    pub(crate) fn lacks_room(&mut self, rules: &Rules, now: Now) -> bool {
        self.logs.is_past_budget() && {
            let steps_max = room_steps(&self.pace);
            (self.logs).enforce_budget(&mut self.topics, rules, now, steps_max)
        }
    }

    /// Removes as many messages as it takes.
    pub(crate) fn make_room(&mut self, rules: &Rules, now: Now) {
        if self.logs.is_past_budget() {
            (self.logs).enforce_budget(&mut self.topics, rules, now, usize::MAX);
        }
    }
}

/// The steps in which messages make room at once: a quarter of a turn's.
pub(super) fn room_steps(pace: &Pace) -> usize {
    4 * pace.forgets_per_turn
}

/// Among so many bytes nobody's holding is large.
const NOBODY_SPARED: usize = usize::MAX;

/// Topic, rule and remaining chain of those that have lost all messages.
type Emptied = Vec<(u32, u8, u32)>;

impl Logs {
    /// Whether the logs may be past their budget, or a topic is past its limits.
    #[inline]
    pub(crate) fn is_past_budget(&self) -> bool {
        self.budget.held_most.messages > self.budget.bytes_max || self.budget.untrimmed.is_some()
    }

    /// Bytes that the messages of all partitions occupy, their rows included.
    pub(super) fn log_bytes(&self) -> usize {
        self.iter().map(Log::bytes).sum()
    }

    /// Bytes of the chunks of all partitions.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.iter().map(|log| log.held().chunks).sum()
    }

    /// The most bytes of chunks, used or not.
    pub(super) fn chunk_bytes_max(&self) -> usize {
        let free = self.budget.bytes_max / 2 + self.partitions.len() * Log::SPARE_BYTES;
        self.budget.bytes_max.saturating_add(free)
    }

    /// The log at this place has grown: the budget is enforced in about so many steps, if the logs may be past it.
    pub(super) fn log_grew(
        &mut self,
        topics: &mut TopicTable,
        at: usize,
        (rules, now): (&Rules, Now),
        steps_max: usize,
    ) {
        self.count_log(at);
        let most = self.budget.held_most;
        if most.messages > self.budget.bytes_max
            || most.chunks > self.chunk_bytes_max()
            || self.partitions[at].log.is_full()
        {
            self.enforce_budget(topics, rules, now, steps_max);
        }
    }

    /// Counts the present bytes of a log.
    fn count_log(&mut self, at: usize) {
        let Partition { log, counted, .. } = &mut self.partitions[at];
        let before = core::mem::replace(counted, log.held());
        let most = &mut self.budget.held_most;
        most.messages = most.messages - before.messages + counted.messages;
        most.chunks = most.chunks - before.chunks + counted.chunks;
    }

    /// Drops messages until the logs are within their budget of bytes, or about so many steps are done; says whether more must go.
    pub(super) fn enforce_budget(
        &mut self,
        topics: &mut TopicTable,
        rules: &Rules,
        now: Now,
        steps_max: usize,
    ) -> bool {
        self.enforce(topics, rules, now, (steps_max, steps_max))
    }

    /// The same, however long it takes and however many chunks they have: a snapshot has no free places.
    pub(super) fn drop_for_snapshot(&mut self, topics: &mut TopicTable, rules: &Rules, now: Now) {
        self.enforce(topics, rules, now, (usize::MAX, 0));
    }

    /// The same; for the sake of chunks `drops` messages at most. The next publish goes on with chunks.
    fn enforce(
        &mut self,
        topics: &mut TopicTable,
        rules: &Rules,
        now: Now,
        (steps_max, drops): (usize, usize),
    ) -> bool {
        let until = self.steps.count().saturating_add(steps_max as u64);
        let mut emptied = Vec::new();
        // While a topic makes room for a message of its own, no message of another goes for it.
        let mut must_go_on = trim(self, topics, rules, until);
        if !must_go_on {
            must_go_on = self.drop_messages(rules.retained(), until, now, &mut emptied);
            self.empty_chunks(rules.retained(), now, drops, &mut emptied);
        }
        for at in 0..self.partitions.len() {
            self.count_log(at);
        }
        for (topic, number, left) in emptied {
            self.chain_emptied(topics, topic, number, left, rules, now);
        }
        must_go_on
    }

    /// Drops messages until those that are left are within their budget, or the step `until` is done; says whether more must go.
    fn drop_messages(&mut self, retained: u8, until: u64, now: Now, emptied: &mut Emptied) -> bool {
        let mut all_bytes = self.budget.bytes_max;
        loop {
            let bytes = self.log_bytes();
            let excess = bytes.saturating_sub(self.budget.bytes_max);
            let full = self.iter().position(Log::is_full);
            let giver = match (full, excess) {
                (Some(at), _) => Some(at),
                (None, 0) => None,
                (None, _) => self.giver(retained, |log| log.held().messages),
            };
            let Some(at) = giver else { return false };
            if full.is_none() && self.steps.count() >= until {
                return true;
            }
            let share = excess.div_ceil(self.partitions.len());
            let log = &mut self.partitions[at].log;
            let before = log.bytes();
            let spares = log.enforce_budget(
                (before.saturating_sub(share), until, all_bytes),
                now.unix_s,
                retained,
                |topic, number, left| emptied.push((topic, number, left)),
            );
            if spares {
                match remove_of_large(self, retained, until, now, emptied) {
                    Search::Removed => {}
                    Search::Spent => return true,
                    Search::Ended => all_bytes = NOBODY_SPARED,
                }
            } else if self.partitions[at].log.bytes() == before {
                return false;
            }
        }
    }

    /// Drops messages until the chunks are within their bound, `drops` at most.
    fn empty_chunks(&mut self, retained: u8, now: Now, mut drops: usize, emptied: &mut Emptied) {
        let mut all_bytes = self.budget.bytes_max;
        loop {
            let excess = self.chunk_bytes().saturating_sub(self.chunk_bytes_max());
            if excess == 0 || drops == 0 {
                break;
            }
            let free = |log: &Log| log.held().chunks.saturating_sub(log.held().messages);
            let Some(at) = self.giver(retained, free) else {
                break;
            };
            let share = excess.div_ceil(self.partitions.len());
            let log = &mut self.partitions[at].log;
            let chunks_max = log.held().chunks - share.min(log.held().chunks);
            let (gone, spares) = log.empty_chunks(
                (chunks_max, drops, all_bytes),
                now.unix_s,
                retained,
                |topic, number, left| emptied.push((topic, number, left)),
            );
            drops -= gone;
            if spares {
                let until = self.steps.count() + drops as u64;
                match remove_of_large(self, retained, until, now, emptied) {
                    Search::Removed => drops -= 1,
                    Search::Spent => break,
                    Search::Ended => all_bytes = NOBODY_SPARED,
                }
            } else if gone == 0 {
                break;
            }
        }
    }

    /// The partition that makes room next: first those with messages that no reader gets any more, last those that have only retained
    /// ones; among these the one with the most of `bytes`. None where no log has messages.
    fn giver(&self, retained: u8, bytes: impl Fn(&Log) -> usize) -> Option<usize> {
        let log = |at: usize| &self.partitions[at].log;
        let rank = |at: &usize| {
            let log = log(*at);
            (log.has_doomed(), log.has_besides(retained), bytes(log))
        };
        (0..self.partitions.len())
            .filter(|at| log(*at).len() > 0)
            .max_by_key(rank)
    }
}

/// Removes a message of a client that is not spared: one of a rule before a retained one. Goes through all messages once, and again only for
/// those that were spared before, no further than the step `until`.
fn remove_of_large(
    logs: &mut Logs,
    retained: u8,
    until: u64,
    now: Now,
    emptied: &mut Emptied,
) -> Search {
    let limits = (logs.budget.bytes_max, until);
    loop {
        for number in 0..=retained {
            for Partition { log, .. } in &mut logs.partitions {
                let emptied = |topic, number, left| emptied.push((topic, number, left));
                let search = removal::remove_of_large(log, number, limits, now.unix_s, emptied);
                if matches!(search, Search::Removed) {
                    logs.budget.searches_again = false;
                }
                if !matches!(search, Search::Ended) {
                    return search;
                }
            }
        }
        logs.budget.searches_again ^= true;
        if !logs.budget.searches_again {
            return Search::Ended;
        }
        let all = logs.partitions.iter_mut();
        all.for_each(|partition| removal::search_again(&mut partition.log));
    }
}

/// Trims the topic that is past its limits, if there is one, until the step `until` is done; says whether it must go on.
fn trim(logs: &mut Logs, topics: &TopicTable, rules: &Rules, until: u64) -> bool {
    let Some(untrimmed) = logs.budget.untrimmed.take() else {
        return false;
    };
    let (topic, limits, time_s) = (untrimmed.topic, untrimmed.limits, untrimmed.time_s);
    // It may have gone meanwhile.
    let Some(row) = topics.rows.try_get(topic) else {
        return false;
    };
    let (at, number, chain) = (logs.place_of(row), row.rule, row.log);
    let log = &mut logs.partitions[at].log;
    // At least its newest message stays.
    let must_go_on = removal::trim(log, chain, rules.get(number), limits, time_s, until);
    if must_go_on {
        logs.budget.untrimmed = Some(untrimmed);
    }
    must_go_on
}
