//! The account of the memory that clients make the server hold: one sum for the process, with a limit. A shard takes memory from it in larger portions,
//! called lots, not for each allocation (`shard_account.rs`).
//! When the sum nears the limit, `client/relief` frees memory.
//!
//! The sum may exceed the limit by one input of each shard: an input is charged after its bytes have arrived, and the shard frees memory before the next
//! input.
//!
//! Rows (table entries), names and logs are not part of the sum, since they have their own limits.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub use crate::budget::part::MemoryPart;

/// How near the sum is to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryLevel {
    /// The sum is at most 3/4 of the limit.
    Calm,
    /// Above 3/4: nothing is added to outboxes. Slow consumers continue from their positions in the log.
    Near,
    /// Above 7/8: addresses and users that hold much get no new memory.
    Full,
    /// Above 15/16: the server ends sessions whose client is away, and connections. In both cases only those of the address or user that holds most.
    Tight,
    /// Above the limit: if nobody holds much, sessions and connections of others are ended too.
    Over,
}

/// The account of the process. All methods may be called from any shard.
#[derive(Debug)]
pub struct MemoryAccount {
    limit_bytes: AtomicUsize,
    /// Bytes that all shards together have drawn.
    drawn_bytes: AtomicUsize,
    /// Bytes of mail in flight, and of large messages that no log keeps. They belong to no shard.
    unowned_bytes: AtomicUsize,
}

impl MemoryAccount {
    /// An account with this limit.
    pub fn new(limit_bytes: usize) -> MemoryAccount {
        MemoryAccount {
            limit_bytes: AtomicUsize::new(limit_bytes),
            drawn_bytes: AtomicUsize::new(0),
            unowned_bytes: AtomicUsize::new(0),
        }
    }

    /// Changes the limit.
    pub fn set_limit(&self, limit_bytes: usize) {
        self.limit_bytes.store(limit_bytes, Relaxed);
    }

    /// The limit.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Relaxed)
    }

    /// Bytes of [`MemoryPart::Messages`].
    pub fn unowned_bytes(&self) -> usize {
        self.unowned_bytes.load(Relaxed)
    }

    /// Charges bytes that belong to no shard: a large message that is in no log, or mail in flight.
    pub fn charge_unowned(&self, bytes: usize) {
        self.unowned_bytes.fetch_add(bytes, Relaxed);
    }

    /// Releases bytes that `charge_unowned` charged.
    pub fn release_unowned(&self, bytes: usize) {
        self.unowned_bytes.fetch_sub(bytes, Relaxed);
    }

    /// The bytes that the shards have drawn, and those that belong to no shard.
    pub(super) fn used_bytes(&self) -> usize {
        self.drawn_bytes.load(Relaxed) + self.unowned_bytes()
    }

    /// Adds bytes that a shard draws.
    pub(super) fn draw(&self, bytes: usize) {
        self.drawn_bytes.fetch_add(bytes, Relaxed);
    }

    /// Subtracts bytes that a shard gives back.
    pub(super) fn give_back(&self, bytes: usize) {
        self.drawn_bytes.fetch_sub(bytes, Relaxed);
    }

    /// How near the sum is to its limit.
    pub fn level(&self) -> MemoryLevel {
        self.level_without(0)
    }

    /// The level that the sum would have without `bytes` of it.
    pub(super) fn level_without(&self, bytes: usize) -> MemoryLevel {
        let limit = self.limit_bytes();
        match self.used_bytes().saturating_sub(bytes) {
            used if used > limit => MemoryLevel::Over,
            used if used > limit - limit / 16 => MemoryLevel::Tight,
            used if used > limit - limit / 8 => MemoryLevel::Full,
            used if used > limit - limit / 4 => MemoryLevel::Near,
            _ => MemoryLevel::Calm,
        }
    }
}
