//! The partitions of a home (the part of a shard that keeps topics): their logs and retained messages, and the highest offsets of forgotten
//! topics.
//!
//! In all files of the home, a parameter `partition_index` is the index of a partition in `Logs::partitions`.
//!
//! Each start of a server on a log begins a *life* of the log, with a new epoch (`base/lives.rs`).
//!
//! Invariant: a topic's partition never changes, since it is determined by the hash of the topic's name (its slot). Not here: the rows of topics
//! (`topics.rs`).
//!
//! A *chain* is the list of a topic's messages.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::future_pages::FuturePages;
use super::partition::Partition;
use super::topic_row::TopicRow;
use crate::base::ids::{PartitionId, ShardId};
use crate::base::lives::Lives;
use crate::base::placement::{Placement, SLOTS};
use crate::base::planted::{self, Fault};
use crate::base::position::{Position, Since};
use crate::base::rules::Rules;
use crate::base::work::Steps;
use crate::budget::admission::Admission;
use crate::log::{HomeCounts, Log, LogBytes};

use crore_wire::topic;

/// The byte budget of the logs (`budget.rs`).
pub(super) struct LogBudget {
    /// The maximum number of bytes that the messages of all partitions may take.
    pub bytes_max: usize,
    /// An upper bound of the bytes that the logs hold.
    pub counted_max: LogBytes,
    /// The topic of the last publish, if its log still exceeds the topic's limits.
    pub untrimmed: Option<UntrimmedTopic>,
    /// Whether the search for a message that may be removed has started over at the beginning of the log, and has found no message since then.
    pub has_restarted_search: bool,
}

/// A topic whose log exceeds its limits.
pub(super) struct UntrimmedTopic {
    pub topic: u32,
    /// The maximum number of messages that the topic may keep.
    pub messages_max: u32,
    /// Bytes of the newest message's frame.
    pub frame_bytes: usize,
    /// When that message was published. The trim uses this time as the present, so that the result does not depend on how many turns (passes of the
    /// shard's loop) it takes.
    pub time_s: u32,
}

impl LogBudget {
    pub fn new(bytes_max: usize) -> LogBudget {
        LogBudget {
            bytes_max,
            counted_max: LogBytes::default(),
            untrimmed: None,
            has_restarted_search: false,
        }
    }
}

pub(crate) struct Logs {
    pub(super) partitions: Vec<Partition>,
    pub(super) counts: HomeCounts,
    /// By slot: the index in `partitions`.
    pub(super) partition_index_by_slot: [u8; SLOTS],
    /// By slot: the highest last offset of the slot's forgotten topics.
    pub(super) forgotten_max_by_slot: Vec<u64>,
    pub(super) placement: Placement,
    pub(super) me: ShardId,
    pub(super) budget: LogBudget,
    /// By topic row: the chain of the topic's retained message.
    pub(super) retained_chains: BTreeMap<u32, u32>,
    /// The epoch of the present life of the logs.
    pub(super) epoch: u32,
    /// The present life of the logs and the lives before it.
    pub(crate) lives: Arc<Lives>,
    /// Pages (runs of past messages) that wait until this node has applied the log up to their position. Present if the log is replicated.
    pub(super) future_pages: Option<Box<FuturePages>>,
    pub(super) steps: Steps,
    /// The key of the digests' hashes.
    pub(super) seed: u64,
}

impl Logs {
    /// Empty logs of the partitions that `placement` gives to the home `me`, which together may hold `log_bytes_max`.
    pub(super) fn new(
        rules: &Rules,
        placement: Placement,
        me: ShardId,
        log_bytes_max: usize,
        (epoch, seed): (u32, u64),
        admission: &Admission,
        steps: &Steps,
    ) -> Logs {
        let count = placement.count_at(me);
        let of_home = HomeCounts::default();
        let partition = |_| {
            Partition::new(
                rules,
                count,
                seed,
                admission.clone(),
                of_home.clone(),
                steps.clone(),
            )
        };
        let index_of_slot =
            |slot: u8| placement.index_at_home(placement.partition_of_slot(slot)) as u8;
        Logs {
            partitions: (0..count).map(partition).collect(),
            counts: of_home,
            partition_index_by_slot: core::array::from_fn(|slot| index_of_slot(slot as u8)),
            forgotten_max_by_slot: alloc::vec![0; SLOTS],
            placement,
            me,
            budget: LogBudget::new(log_bytes_max),
            retained_chains: BTreeMap::new(),
            epoch,
            lives: Arc::new(Lives::first(epoch)),
            future_pages: None,
            steps: steps.clone(),
            seed,
        }
    }

    /// The highest offset that a topic with this name and rule may have had, if it has no row now.
    pub(super) fn forgotten_max(&self, name: &[u8], rule: u8, rules: &Rules) -> u64 {
        let slot = usize::from(topic::slot(name));
        let partition_index = usize::from(self.partition_index_by_slot[slot]);
        match rules.get(rule).durable {
            true => self.forgotten_max_by_slot[slot],
            // A crash loses messages that are not durable. Such a loss is noted for the topic's rule.
            false => self.forgotten_max_by_slot[slot].max(
                self.partitions[partition_index]
                    .forgotten
                    .last_lost_of_rule(rule),
            ),
        }
    }

    /// The position at which a subscription to this partition begins. If this log knows the life of `since`, the position stays valid, and the result
    /// gets the epoch of the present life.
    pub(super) fn to_current_life(&self, since: Since, partition_index: usize) -> Since {
        let partition = || self.placement.of_home(self.me).nth(partition_index);
        let is_known = |seen| {
            planted::is(Fault::OneLife)
                || partition().is_some_and(|it| self.lives.has_position(it, seen))
        };
        match since {
            Since::At(seen) if seen.epoch != self.epoch && is_known(seen) => {
                Since::At(Position::new(self.epoch, seen.offset))
            }
            since => since,
        }
    }

    /// Sets the lives of the logs. In all partitions new offsets begin at the first offset of the present life.
    pub(crate) fn follow_lives(&mut self, lives: Arc<Lives>) {
        for partition in &mut self.partitions {
            partition.sequence = partition
                .sequence
                .max(lives.first_offset().saturating_sub(1));
        }
        self.lives = lives;
    }

    /// The partitions, each with its last offset.
    pub(crate) fn last_offsets(&self) -> impl Iterator<Item = (PartitionId, u64)> {
        let all = self.partitions.iter().map(|it| it.sequence);
        self.placement.of_home(self.me).zip(all)
    }

    /// The index of a topic's partition.
    #[inline]
    pub(super) fn partition_index_of(&self, row: &TopicRow) -> usize {
        self.partition_index_by_slot[usize::from(row.slot())].into()
    }

    /// Whether other processes also write to the log (in a cluster).
    pub(crate) fn is_replicated(&self) -> bool {
        self.future_pages.is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Log> {
        self.partitions.iter().map(|partition| &partition.log)
    }

    /// The number of messages in a topic's log.
    pub(super) fn message_count(&self, row: &TopicRow) -> u32 {
        self.partitions[self.partition_index_of(row)]
            .log
            .count(row.chain)
    }
}
