//! The account of the memory that clients make the server hold: one sum for the process. Shards draw from it in lots (`shard_account.rs`).
//!
//! The sum may exceed its limit by one input of each shard: an input is charged after its bytes have arrived, and the shard reacts before the next
//! input.
//!
//! Rows, names and logs are not part of the sum, since they have their own limits. `client/relief` acts when the sum nears its limit.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub use crate::budget::part::Part;

/// How near the sum is to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is room.
    Calm,
    /// Past 3/4: slow consumers give up their outboxes and continue from positions.
    Near,
    /// Past 7/8: clients that hold much get no new memory.
    Full,
    /// Past 15/16: connections of clients that hold much are closed.
    Tight,
    /// Past the limit: connections are closed, those that hold most first.
    Over,
}

/// The sum of the process. All methods may be called from any shard.
#[derive(Debug)]
pub struct Account {
    limit_bytes: AtomicUsize,
    /// Drawn by all shards.
    drawn_bytes: AtomicUsize,
    /// Bytes of large messages, which belong to no shard.
    messages_bytes: AtomicUsize,
}

impl Account {
    /// An account with this limit.
    pub fn new(limit_bytes: usize) -> Account {
        Account {
            limit_bytes: AtomicUsize::new(limit_bytes),
            drawn_bytes: AtomicUsize::new(0),
            messages_bytes: AtomicUsize::new(0),
        }
    }

    /// Changes the limit.
    pub fn change(&self, limit_bytes: usize) {
        self.limit_bytes.store(limit_bytes, Relaxed);
    }

    /// The limit.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Relaxed)
    }

    /// Bytes of [`Part::Messages`].
    pub fn messages_bytes(&self) -> usize {
        self.messages_bytes.load(Relaxed)
    }

    /// Charges a large message that is in no log.
    pub fn charge_message(&self, bytes: usize) {
        self.messages_bytes.fetch_add(bytes, Relaxed);
    }

    /// Releases a large message that is in no log.
    pub fn release_message(&self, bytes: usize) {
        self.messages_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Bytes that shards have drawn, and large messages.
    pub(super) fn used_bytes(&self) -> usize {
        self.drawn_bytes.load(Relaxed) + self.messages_bytes()
    }

    /// A shard draws bytes.
    pub(super) fn draw(&self, bytes: usize) {
        self.drawn_bytes.fetch_add(bytes, Relaxed);
    }

    /// A shard gives back drawn bytes.
    pub(super) fn give_back(&self, bytes: usize) {
        self.drawn_bytes.fetch_sub(bytes, Relaxed);
    }

    /// How near the sum is to its limit.
    pub fn level(&self) -> Level {
        self.level_without(0)
    }

    /// The level if `bytes` fewer were used.
    pub(super) fn level_without(&self, bytes: usize) -> Level {
        let limit = self.limit_bytes();
        match self.used_bytes().saturating_sub(bytes) {
            used if used > limit => Level::Over,
            used if used > limit - limit / 16 => Level::Tight,
            used if used > limit - limit / 8 => Level::Full,
            used if used > limit - limit / 4 => Level::Near,
            _ => Level::Calm,
        }
    }
}
