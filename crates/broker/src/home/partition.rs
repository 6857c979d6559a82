//! A partition at its home: the log of its topics, the count of its offsets, and what it remembers of topics that are forgotten.

use super::forgotten_topics::ForgottenTopics;
use crate::base::ids::OFFSETS_PER_BATCH;
use crate::base::roster::Roster;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::base::work::Steps;
use crate::budget::admission::Admission;
use crate::log::{Held, Log, OfHome};

/// ForgottenTopics topics that a home remembers by name; its partitions share this number.
const NAMED_MAX: usize = 1024;

/// A partition.
pub(super) struct Partition {
    pub log: Log,
    /// The last offset that was given. One count for all topics of the partition: an offset is the order of arrival.
    pub sequence: u64,
    /// Offsets up to this one may have been given to facts that stand in no log.
    pub mark: u64,
    /// The highest offset that a fact which stands in no log may get: where the log gives offsets, those up to the next batch are free.
    pub passes_to: u64,
    /// Writer and number of the last batch that was read from its log, where it has one writer at a time.
    pub batch: (u64, u64),
    /// There is nothing up to this offset that is not applied, where the log gives offsets.
    pub known_to: u64,
    /// Those who write to its log, where it has several writers.
    pub roster: Roster,
    /// The second of its newest record: no message is older than one before it.
    pub time_s: u32,
    pub forgotten: ForgottenTopics,
    /// Bytes of the log when they were counted last (`budget.rs`).
    pub counted: Held,
}

impl Partition {
    /// An empty partition, one of `beside` at its home. `seed` keys the hash of messages' keys; its work counts in `steps`.
    pub fn new(
        rules: &Rules,
        beside: usize,
        seed: u64,
        counts: (Admission, OfHome),
        steps: Steps,
    ) -> Partition {
        Partition {
            log: Log::new(rules, seed, counts, steps),
            sequence: 0,
            mark: 0,
            passes_to: u64::MAX,
            batch: (0, 0),
            known_to: 0,
            roster: Roster::default(),
            time_s: 0,
            forgotten: ForgottenTopics::new(rules.count(), NAMED_MAX / beside),
            counted: Held::default(),
        }
    }

    /// A record of its log has this offset, whether it has changed something or not.
    #[inline]
    pub fn heard(&mut self, offset: u64) {
        self.sequence = offset;
        if self.passes_to < u64::MAX {
            self.passes_to = offset | (OFFSETS_PER_BATCH - 1);
            self.roster.last = offset;
        }
    }

    /// Its log gives offsets.
    pub fn replicate(&mut self) {
        self.passes_to = self.sequence | (OFFSETS_PER_BATCH - 1);
    }

    /// The moment at which what was admitted at `now` takes effect.
    #[inline]
    pub fn moment(&mut self, now: Now) -> Now {
        self.time_s = self.time_s.max(now.unix_s);
        Now {
            unix_s: self.time_s,
            ..now
        }
    }
}

#[cfg(test)]
mod tests;
