//! The measure of a shard's work in a turn. A shard counts all work in steps, and ends the turn when its budget of steps is spent.
//!
//! A step is the time to examine one row (entry of a table) or log entry, which is probably in cold memory: some hundred
//! nanoseconds. Copied bytes count as one step for each [`STEP_BYTES`]. Steps count the work, not the bytes of the request:
//! compressed blocks and their inflated bytes, frames, chunks, nodes of a trie. Code that walks a list counts as it walks
//! ([`Steps`]). Between two units of work the shard checks whether the budget is spent
//! ([`Shard::is_spent`](crate::Shard::is_spent)).
//!
//! Invariants: [`TurnLimits`](crate::base::turn_limits::TurnLimits) bounds each unit of work (a request, a packet, a page, a
//! visit). So the inputs of a turn take at most the budget and one unit, and its end at most the budget and one unit of each kind.
//! Remaining work waits for the next turn. Received bytes wait at their connection. Requests to a home (a part of a shard that
//! keeps topics) wait in the lane (the ordered queue of mail) to the home. Pages (bounded runs of past messages) wait in the home's
//! queue.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are copied in the time of one step.
pub const STEP_BYTES: usize = 256;

/// The steps that take as long as a visit, which is a write to a socket.
pub(crate) const STEPS_PER_VISIT: usize = 16;

/// The number of messages of a page whose delivery takes as long as a visit.
const MESSAGES_PER_VISIT: u32 = 8;

/// The time to deliver a page of `count` messages, in visits.
pub(crate) fn page_visits(count: u32) -> u32 {
    1 + count / MESSAGES_PER_VISIT
}

/// Filters that are compared in the time of a step. They are adjacent in memory, as in a client's grants or in the rules.
pub(crate) const FILTERS_PER_STEP: usize = 4;

/// A counter of steps, which only rises. All clones refer to the same counter. Only one thread counts at a time.
#[derive(Clone, Debug, Default)]
pub struct Steps(Arc<AtomicU64>);

impl Steps {
    /// Counts more steps.
    #[inline]
    pub fn add(&self, steps: usize) {
        self.0.store(self.count() + steps as u64, Ordering::Relaxed);
    }

    /// Counts the steps of copying this many bytes.
    #[inline]
    pub fn add_bytes(&self, bytes: usize) {
        self.add(bytes / STEP_BYTES);
    }

    /// The number of steps so far.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
