//! The one bound on work: a shard counts its work in steps, and a turn ends when its budget is spent, whatever it does.
//!
//! A step is one row looked at or one entry of a log passed: memory that is probably cold, some hundred nanoseconds.
//! Copied bytes count by [`STEP_BYTES`]. Work is counted by what is done, not by the bytes that ask for it: by the blocks of compressed data and
//! what it inflates to, by frames, chunks and nodes of a trie. Code that walks a list counts as it walks ([`Steps`]); the shard asks between
//! two units of its work whether the budget is spent ([`Shard::is_spent`](crate::Shard::is_spent)).
//!
//! Invariants: [`Pace`](crate::base::pace::Pace) bounds each unit (a request, a packet, a page, a visit); so no input
//! does more than the budget and one unit, and no end of a turn more than the budget and a unit of each kind. The rest waits in its owner's queue for the next turn:
//! a connection's bytes in its spill, the asks of a lane in the lane, the pages that a home owes in its queue.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are copied in the time of one step.
pub const STEP_BYTES: usize = 256;

/// Steps in the time of a visit, which is a write to a socket.
pub(crate) const STEPS_PER_VISIT: usize = 16;

/// Messages of a page that are written in the time of a visit.
const TOLD_PER_VISIT: u32 = 8;

/// The time of a page of so many messages, in visits.
pub(crate) fn page_visits(count: u32) -> u32 {
    1 + count / TOLD_PER_VISIT
}

/// Filters that lie side by side, as those of a grant and of the rules, which are compared in the time of one step.
pub(crate) const FILTERS_PER_STEP: usize = 4;

/// Steps so far. The count only rises; copies share it. Only one thread counts at a time.
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

    /// Steps so far.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
