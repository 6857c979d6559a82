//! The budget of bytes that the logs of a home's partitions share.
//!
//! A large message may need the room of very many small ones. A publish removes messages in a bounded number of steps, and the end of each
//! turn goes on. No other publish is carried out before there is room: so the logs are past their budget by what the last one has added
//! at most.
//!
//! Where they are past it, the partition with the most bytes gives some: so a topic that fills its partition makes room first, and
//! partitions that are alike are trimmed alike.
//!
//! Invariant: `logs_bytes_most` is at least the sum of all logs' bytes. A log that grew is counted at once, one that shrank when all are.

use alloc::vec::Vec;

use super::Home;
use super::logs::Logs;
use super::partition::Partition;
use super::topics::TopicTable;
use crate::base::pace::Pace;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::log::Log;

impl Home {
    /// Removes some messages, if the logs are past their budget; says whether more must go before there is room.
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

impl Logs {
    /// Whether the logs may be past their budget.
    #[inline]
    pub(crate) fn is_past_budget(&self) -> bool {
        self.logs_bytes_most > self.log_bytes_max
    }

    /// Bytes that the messages of all partitions occupy, their rows included.
    pub(super) fn log_bytes(&self) -> usize {
        self.iter().map(Log::bytes).sum()
    }

    /// The log at this place has grown: the budget is enforced in about so many steps, if the logs may be past it.
    pub(super) fn log_grew(
        &mut self,
        topics: &mut TopicTable,
        at: usize,
        (rules, now): (&Rules, Now),
        steps_max: usize,
    ) {
        let most = self.count_log(at);
        if most > self.log_bytes_max || self.partitions[at].log.is_full() {
            self.enforce_budget(topics, rules, now, steps_max);
        }
    }

    /// Counts the present bytes of a log; returns the most that all may have together.
    fn count_log(&mut self, at: usize) -> usize {
        let Partition { log, counted, .. } = &mut self.partitions[at];
        let before = core::mem::replace(counted, log.bytes());
        self.logs_bytes_most = self.logs_bytes_most - before + *counted;
        self.logs_bytes_most
    }

    /// Drops messages until the logs are within their budget of bytes, or about so many steps are done; says whether more must go.
    pub(super) fn enforce_budget(
        &mut self,
        topics: &mut TopicTable,
        rules: &Rules,
        now: Now,
        steps_max: usize,
    ) -> bool {
        let until = self.steps.count().saturating_add(steps_max as u64);
        let mut must_go_on = false;
        let mut emptied = Vec::new();
        let retained = rules.retained();
        loop {
            let bytes = self.log_bytes();
            let excess = bytes.saturating_sub(self.log_bytes_max);
            let full = self.iter().position(Log::is_full);
            let giver = match (full, excess) {
                (Some(at), _) => Some(at),
                (None, 0) => None,
                (None, _) => self.giver(retained),
            };
            let Some(at) = giver else { break };
            must_go_on = full.is_none() && self.steps.count() >= until;
            if must_go_on {
                break;
            }
            let share = excess.div_ceil(self.partitions.len());
            let log = &mut self.partitions[at].log;
            let before = log.bytes();
            log.enforce_budget(
                (before.saturating_sub(share), until),
                now.unix_s,
                retained,
                |topic, number, left| emptied.push((topic, number, left)),
            );
            if log.bytes() == before {
                break;
            }
        }
        for at in 0..self.partitions.len() {
            self.count_log(at);
        }
        for (topic, number, left) in emptied {
            self.chain_emptied(topics, topic, number, left, rules, now);
        }
        must_go_on
    }

    /// The partition that makes room next: first those with messages that no reader gets any more, last those that have only retained
    /// ones; among these the one with the most bytes.
    fn giver(&self, retained: u8) -> Option<usize> {
        let rank = |at: &usize| {
            let log = &self.partitions[*at].log;
            (log.has_doomed(), log.has_besides(retained), log.bytes())
        };
        (0..self.partitions.len()).max_by_key(rank)
    }
}
