//! Keeps the logs of a home, the part of a shard that keeps topics, within the byte budget that its partitions share: removes messages when
//! the logs exceed it.
//!
//! One large message may need the room of very many small messages. Therefore a publish takes only a bounded number of steps to remove messages. The
//! end of each turn (a pass of the shard's loop) removes more, and the next publish waits until there is room. Until then the logs exceed their budget,
//! or a topic exceeds its limits, by one message at most.
//!
//! The partition with the most bytes loses messages first. In this way a topic that fills its partition makes room for itself, and equal
//! partitions are trimmed equally.
//!
//! While one client holds far more bytes than others ([`Holdings`](crate::budget::admission::holdings::Holdings)), the messages of the others are
//! spared. Messages that are not spared are removed oldest first, whatever their topic, and retained messages last. So a client with many small
//! topics or retained messages cannot push out the messages of others. If only one client publishes, such as a backend, it may use the whole budget.
//!
//! Removed messages leave free slots in chunks (the units in which a log allocates memory), and a chunk is freed only with its last message.
//! Therefore the bytes of the chunks have a limit of their own: one and a half times the budget, plus the chunks that even an empty log keeps. If the
//! chunks exceed this limit, the oldest messages are removed, since the oldest chunks are the emptiest.
//!
//! Invariant: `counted_max` is at least the sum of all logs' bytes. When a log grows, the growth is counted at once. When a log shrinks, the bytes are
//! subtracted only when the log grows again, or when the budget is enforced.

use alloc::vec::Vec;

use super::Home;
use super::logs::Logs;
use super::partition::Partition;
use super::topics::TopicTable;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::base::turn_limits::TurnLimits;
use crate::log::Log;
use crate::log::removal::SearchOutcome;

impl Home {
    /// Removes some messages if the logs or a topic exceed their limits. Returns whether more must be removed before the next publish.
    #[inline]
    pub(crate) fn make_some_room(&mut self, rules: &Rules, now: Now) -> bool {
        self.logs.is_past_budget() && {
            let steps_max = steps_for_making_room(&self.turn_limits);
            self.enforce_budget(rules, now, steps_max)
        }
    }

    /// Removes messages until there is room, without a limit of steps.
    pub(crate) fn make_room(&mut self, rules: &Rules, now: Now) {
        if self.logs.is_past_budget() {
            self.enforce_budget(rules, now, usize::MAX);
        }
    }

    /// Counts the growth of the log of this partition. Enforces the budget if it may be exceeded, in about `steps_max` steps.
    pub(super) fn count_growth(
        &mut self,
        partition_index: usize,
        rules: &Rules,
        now: Now,
        steps_max: usize,
    ) {
        self.logs.count_log(partition_index);
        let held_max = self.logs.budget.counted_max;
        if held_max.messages > self.logs.budget.bytes_max
            || held_max.chunks > self.logs.chunk_bytes_max()
            || self.logs.partitions[partition_index].log.is_full()
        {
            self.enforce_budget(rules, now, steps_max);
        }
    }

    /// Removes messages until the logs are within their budget, or about `steps_max` steps are done. Returns whether more must be removed.
    pub(super) fn enforce_budget(&mut self, rules: &Rules, now: Now, steps_max: usize) -> bool {
        self.remove_for_limits(rules, now, steps_max, steps_max)
    }

    /// Removes messages until the logs are within their byte budget. Frees no chunks, since free slots do not enlarge a snapshot.
    pub(super) fn drop_for_snapshot(&mut self, rules: &Rules, now: Now) {
        self.remove_for_limits(rules, now, usize::MAX, 0);
    }

    /// Trims the topic that exceeds its limits, and then removes messages until the logs are within their byte budget, in about `steps_max` steps in
    /// total. If that succeeds, removes at most `removals_max` messages to free chunks; the next publish frees more. Otherwise returns true: more must be
    /// removed before the next publish.
    fn remove_for_limits(
        &mut self,
        rules: &Rules,
        now: Now,
        steps_max: usize,
        removals_max: usize,
    ) -> bool {
        let last_step = self.steps.count().saturating_add(steps_max as u64);
        let mut emptied = Vec::new();
        // While a topic must make room for its own message, no message of another topic is removed.
        let mut must_go_on = trim_topic(&mut self.logs, &self.topics, rules, last_step);
        if !must_go_on {
            must_go_on = self
                .logs
                .drop_messages(rules.retained(), last_step, now, &mut emptied);
            self.logs
                .empty_chunks(rules.retained(), now, removals_max, &mut emptied);
        }
        for partition_index in 0..self.logs.partitions.len() {
            self.logs.count_log(partition_index);
        }
        for EmptiedTopic { topic, rule, chain } in emptied {
            self.handle_emptied_chain(topic, rule, chain, rules, now);
        }
        must_go_on
    }
}

/// The maximum number of steps that one call takes to make room: with the default limits, a quarter of a turn's steps.
pub(super) fn steps_for_making_room(turn_limits: &TurnLimits) -> usize {
    4 * turn_limits.removals_per_turn
}

/// Passed as `all_bytes` so that no message is spared: no client holds a large part of this many bytes.
const NOBODY_SPARED: usize = usize::MAX;

/// A topic that has lost all messages of its log.
struct EmptiedTopic {
    topic: u32,
    /// The number of the topic's rule.
    rule: u8,
    /// The topic's chain (the list of its messages), which is empty; `NONE` if the topic has no chain any more.
    chain: u32,
}

impl EmptiedTopic {
    fn new(topic: u32, rule: u8, chain: u32) -> EmptiedTopic {
        EmptiedTopic { topic, rule, chain }
    }
}

impl Logs {
    /// Whether the logs may exceed their budget, or a topic exceeds its limits.
    #[inline]
    pub(crate) fn is_past_budget(&self) -> bool {
        self.budget.counted_max.messages > self.budget.bytes_max || self.budget.untrimmed.is_some()
    }

    /// The bytes of all messages, with their rows.
    pub(super) fn log_bytes(&self) -> usize {
        self.iter().map(Log::bytes).sum()
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.iter().map(|log| log.bytes_by_kind().chunks).sum()
    }

    /// The limit of the bytes of all chunks, free slots included.
    pub(super) fn chunk_bytes_max(&self) -> usize {
        let free = self.budget.bytes_max / 2 + self.partitions.len() * Log::SPARE_BYTES;
        self.budget.bytes_max.saturating_add(free)
    }

    /// Replaces the bytes of this partition's log in `counted_max` by the present bytes.
    fn count_log(&mut self, partition_index: usize) {
        let Partition {
            log, counted_bytes, ..
        } = &mut self.partitions[partition_index];
        let bytes_before = core::mem::replace(counted_bytes, log.bytes_by_kind());
        let sum = &mut self.budget.counted_max;
        sum.messages = sum.messages - bytes_before.messages + counted_bytes.messages;
        sum.chunks = sum.chunks - bytes_before.chunks + counted_bytes.chunks;
    }

    /// Removes messages until the logs are within their budget or step `last_step` is reached. Returns whether more must be removed.
    fn drop_messages(
        &mut self,
        retained: u8,
        last_step: u64,
        now: Now,
        emptied: &mut Vec<EmptiedTopic>,
    ) -> bool {
        let mut all_bytes = self.budget.bytes_max;
        loop {
            let bytes = self.log_bytes();
            let excess = bytes.saturating_sub(self.budget.bytes_max);
            let full_partition = self.iter().position(Log::is_full);
            let partition_to_trim = match (full_partition, excess) {
                (Some(partition_index), _) => Some(partition_index),
                (None, 0) => None,
                (None, _) => self.partition_to_trim(retained, |log| log.bytes_by_kind().messages),
            };
            let Some(partition_index) = partition_to_trim else {
                return false;
            };
            if full_partition.is_none() && self.steps.count() >= last_step {
                return true;
            }
            let share = excess.div_ceil(self.partitions.len());
            let log = &mut self.partitions[partition_index].log;
            let bytes_before = log.bytes();
            let has_spared = log.enforce_budget(
                bytes_before.saturating_sub(share),
                last_step,
                all_bytes,
                now.unix_s,
                retained,
                |topic, rule_number, empty_chain| {
                    emptied.push(EmptiedTopic::new(topic, rule_number, empty_chain))
                },
            );
            if has_spared {
                match remove_unspared(self, retained, last_step, now, emptied) {
                    SearchOutcome::Removed => {}
                    SearchOutcome::OutOfSteps => return true,
                    SearchOutcome::NoneLeft => all_bytes = NOBODY_SPARED,
                }
            } else if self.partitions[partition_index].log.bytes() == bytes_before {
                return false;
            }
        }
    }

    /// Removes messages, at most `removals_left`, until the chunks are within their limit.
    fn empty_chunks(
        &mut self,
        retained: u8,
        now: Now,
        mut removals_left: usize,
        emptied: &mut Vec<EmptiedTopic>,
    ) {
        let mut all_bytes = self.budget.bytes_max;
        loop {
            let excess = self.chunk_bytes().saturating_sub(self.chunk_bytes_max());
            if excess == 0 || removals_left == 0 {
                break;
            }
            let free = |log: &Log| {
                log.bytes_by_kind()
                    .chunks
                    .saturating_sub(log.bytes_by_kind().messages)
            };
            let Some(partition_index) = self.partition_to_trim(retained, free) else {
                break;
            };
            let share = excess.div_ceil(self.partitions.len());
            let log = &mut self.partitions[partition_index].log;
            let chunks_max = log.bytes_by_kind().chunks - share.min(log.bytes_by_kind().chunks);
            let (removed, has_spared) = log.empty_chunks(
                chunks_max,
                removals_left,
                all_bytes,
                now.unix_s,
                retained,
                |topic, rule_number, empty_chain| {
                    emptied.push(EmptiedTopic::new(topic, rule_number, empty_chain))
                },
            );
            removals_left -= removed;
            if has_spared {
                let last_step = self.steps.count() + removals_left as u64;
                match remove_unspared(self, retained, last_step, now, emptied) {
                    SearchOutcome::Removed => removals_left -= 1,
                    SearchOutcome::OutOfSteps => break,
                    SearchOutcome::NoneLeft => all_bytes = NOBODY_SPARED,
                }
            } else if removed == 0 {
                break;
            }
        }
    }

    /// The partition from which messages are removed next. A partition with orphaned chains (lists of messages that no reader gets) comes
    /// first. A partition with only retained messages comes last. Among equals it is the one with the most `bytes`. `None` if no log has
    /// messages.
    fn partition_to_trim(&self, retained: u8, bytes: impl Fn(&Log) -> usize) -> Option<usize> {
        let log = |partition_index: usize| &self.partitions[partition_index].log;
        let rank = |partition_index: &usize| {
            let log = log(*partition_index);
            (
                log.has_orphans(),
                log.has_messages_of_other_rules(retained),
                bytes(log),
            )
        };
        (0..self.partitions.len())
            .filter(|partition_index| log(*partition_index).len() > 0)
            .max_by_key(rank)
    }
}

/// Removes a message that is not spared; retained messages come last. The search continues where the last call stopped. At the end of the log it
/// starts over once, since a message that was spared before may not be spared any longer. Stops at step `last_step`.
fn remove_unspared(
    logs: &mut Logs,
    retained: u8,
    last_step: u64,
    now: Now,
    emptied: &mut Vec<EmptiedTopic>,
) -> SearchOutcome {
    let all_bytes = logs.budget.bytes_max;
    loop {
        for rule_number in 0..=retained {
            for Partition { log, .. } in &mut logs.partitions {
                let emptied = |topic, rule_number, empty_chain| {
                    emptied.push(EmptiedTopic::new(topic, rule_number, empty_chain))
                };
                let search =
                    log.remove_unspared(rule_number, all_bytes, last_step, now.unix_s, emptied);
                if matches!(search, SearchOutcome::Removed) {
                    logs.budget.has_restarted_search = false;
                }
                if !matches!(search, SearchOutcome::NoneLeft) {
                    return search;
                }
            }
        }
        logs.budget.has_restarted_search ^= true;
        if !logs.budget.has_restarted_search {
            return SearchOutcome::NoneLeft;
        }
        let all = logs.partitions.iter_mut();
        all.for_each(|partition| partition.log.restart_search());
    }
}

/// Trims the topic that exceeds its limits, if there is one, up to step `last_step`. Returns whether more must be removed.
fn trim_topic(logs: &mut Logs, topics: &TopicTable, rules: &Rules, last_step: u64) -> bool {
    let Some(untrimmed) = logs.budget.untrimmed.take() else {
        return false;
    };
    // The topic may have been forgotten since the publish.
    let Some(row) = topics.rows.try_get(untrimmed.topic) else {
        return false;
    };
    let (partition_index, rule_number, chain) = (logs.partition_index_of(row), row.rule, row.chain);
    let log = &mut logs.partitions[partition_index].log;
    let must_go_on = log.trim(
        chain,
        rules.get(rule_number),
        untrimmed.messages_max,
        untrimmed.frame_bytes,
        untrimmed.time_s,
        last_step,
    );
    if must_go_on {
        logs.budget.untrimmed = Some(untrimmed);
    }
    must_go_on
}
