//! The state of one partition at its home, the part of a shard that keeps topics: the log, the last offset, and the losses of topics that the
//! home has forgotten.
//!
//! Words: a *writer* is a process that writes to the log, under a number of its own. A *fact* is a publish or a change of a
//! topic. A fact of a topic that is not durable is *unlogged*: it gets an offset, but no record in the log.

use super::forgotten_topics::ForgottenTopics;
use crate::base::ids::OFFSETS_PER_BATCH;
use crate::base::loss_detector::LastBatch;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::base::work::Steps;
use crate::base::writer_set::WriterSet;
use crate::budget::admission::Admission;
use crate::log::{HomeCounts, Log, LogBytes};

/// A home remembers at most this many names of forgotten topics that have lost messages, an equal number for each partition.
const NAMED_FORGOTTEN_TOPICS_MAX: usize = 1024;

pub(super) struct Partition {
    pub log: Log,
    /// The last offset given. All topics of the partition share this counter, so the order of offsets is the order of arrival.
    pub sequence: u64,
    /// Unlogged facts have at most this offset. After a crash, new offsets begin above it.
    pub mark: u64,
    /// The last offset that an unlogged fact may get before the next batch: a replicated log leaves a range of offsets free after each batch.
    /// `u64::MAX` if the log is not replicated.
    pub unlogged_max: u64,
    /// The last batch that was read from the log, if the log has one writer at a time.
    pub last_batch: LastBatch,
    /// All records up to this offset are applied. Used only if the log is replicated.
    pub applied_to: u64,
    /// The processes that write the log, if it is replicated.
    pub writer_set: WriterSet,
    /// The time of the newest record or admitted fact. Times never decrease.
    pub newest_time_s: u32,
    pub forgotten: ForgottenTopics,
    /// The bytes of the log when they were last counted (`budget.rs`).
    pub counted_bytes: LogBytes,
}

impl Partition {
    /// An empty partition of a home with `partitions_at_home` partitions. `seed` is the seed of the hashes of message keys.
    pub fn new(
        rules: &Rules,
        partitions_at_home: usize,
        seed: u64,
        admission: Admission,
        counts: HomeCounts,
        steps: Steps,
    ) -> Partition {
        Partition {
            log: Log::new(rules, seed, admission, counts, steps),
            sequence: 0,
            mark: 0,
            unlogged_max: u64::MAX,
            last_batch: LastBatch::default(),
            applied_to: 0,
            writer_set: WriterSet::default(),
            newest_time_s: 0,
            forgotten: ForgottenTopics::new(
                rules.count(),
                NAMED_FORGOTTEN_TOPICS_MAX / partitions_at_home,
            ),
            counted_bytes: LogBytes::default(),
        }
    }

    /// Advances the partition to the offset of a record that was read from the log, whether or not the record has changed anything.
    #[inline]
    pub fn advance_to(&mut self, offset: u64) {
        self.sequence = offset;
        if self.unlogged_max < u64::MAX {
            self.unlogged_max = offset | (OFFSETS_PER_BATCH - 1);
            self.writer_set.last_offset = offset;
        }
    }

    /// From now on the log is replicated: the log gives the offsets, not this home.
    pub fn set_replicated(&mut self) {
        self.unlogged_max = self.sequence | (OFFSETS_PER_BATCH - 1);
    }

    /// The time at which a fact that is admitted at `now` takes effect: `now`, or the time of the newest record if that is later.
    #[inline]
    pub fn effective_time(&mut self, now: Now) -> Now {
        self.newest_time_s = self.newest_time_s.max(now.unix_s);
        Now {
            unix_s: self.newest_time_s,
            ..now
        }
    }
}

#[cfg(test)]
mod tests;
