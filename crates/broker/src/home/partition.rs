//! A partition at its home (the part of a shard that keeps it): the log of its topics, its last offset, and the losses of its forgotten
//! topics.
//!
//! A *writer* is a process that writes to the log, under one number.

use super::forgotten_topics::ForgottenTopics;
use crate::base::ids::OFFSETS_PER_BATCH;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::base::work::Steps;
use crate::base::writer_set::WriterSet;
use crate::budget::admission::Admission;
use crate::log::{HomeCounts, Log, LogBytes};

/// How many forgotten topics with losses a home remembers by name. Its partitions share this limit.
const NAMED_MAX: usize = 1024;

pub(super) struct Partition {
    pub log: Log,
    /// The last offset given. All topics of the partition share this counter, so offsets are the order of arrival.
    pub sequence: u64,
    /// Offsets up to this one may have been given to facts (publishes, or changes of topics) that are not logged.
    pub mark: u64,
    /// The highest offset that a fact without a record in the log may get. A replicated log gives offsets to batches, and leaves the
    /// offsets between two batches free for these facts.
    pub unlogged_max: u64,
    /// Writer and number of the last batch read from the log, if the log has one writer at a time.
    pub batch: (u64, u64),
    /// All records up to this offset are applied. Used only if the log is replicated.
    pub applied_to: u64,
    /// The processes that write the log, if it is replicated.
    pub writer_set: WriterSet,
    /// The time of the newest record. Times never decrease.
    pub time_s: u32,
    pub forgotten: ForgottenTopics,
    /// Bytes of the log when it was last counted (`budget.rs`).
    pub counted: LogBytes,
}

impl Partition {
    /// An empty partition of a home with `partitions_at_home` partitions. `seed` keys the hashes of messages' keys.
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
            batch: (0, 0),
            applied_to: 0,
            writer_set: WriterSet::default(),
            time_s: 0,
            forgotten: ForgottenTopics::new(rules.count(), NAMED_MAX / partitions_at_home),
            counted: LogBytes::default(),
        }
    }

    /// Notes the offset of a record read from the log, whether or not the record has changed anything.
    #[inline]
    pub fn note_offset(&mut self, offset: u64) {
        self.sequence = offset;
        if self.unlogged_max < u64::MAX {
            self.unlogged_max = offset | (OFFSETS_PER_BATCH - 1);
            self.writer_set.last = offset;
        }
    }

    /// Notes that the log is replicated from now on, and gives the offsets.
    pub fn replicate(&mut self) {
        self.unlogged_max = self.sequence | (OFFSETS_PER_BATCH - 1);
    }

    /// The time at which a fact admitted at `now` takes effect: never before that of an earlier record.
    #[inline]
    pub fn effective_time(&mut self, now: Now) -> Now {
        self.time_s = self.time_s.max(now.unix_s);
        Now {
            unix_s: self.time_s,
            ..now
        }
    }
}

#[cfg(test)]
mod tests;
