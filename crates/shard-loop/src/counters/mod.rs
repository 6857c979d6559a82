//! The shards' counters: each shard publishes a copy in a block of its own, which other threads read.
//!
//! Invariants: a shard never waits for a reader; if one holds the block, the shard publishes in its next turn. Therefore, while a shard turns, its block is at
//! most `PUBLISH_MS` and a turn old, and differs from the shard's account by at most `PUBLISH_BYTES` and the growth of a turn. Large
//! messages are in no shard's account, so a reader gets their present bytes. The cost does not grow with connections and deliveries: latencies
//! are added once for each mail, with its number of deliveries.
//!
//! Deliberately not here: rates, names and formats, which are the readers'.

mod latency;

use std::sync::{Arc, Mutex, PoisonError};

use crore_broker::account::Part;
use crore_broker::admission::Admission;
use crore_broker::{Accounts, Shard, ShardId, Stats, Tables};
use crore_net::clock;
use crore_net::stream::{self, Streams};

pub use latency::{Buckets, Latency, bucket_end_us};

/// The time between two copies of a shard that turns.
const PUBLISH_MS: u64 = 100;
/// A change of the account by this number of bytes is published at once: an attack may take 20 MiB in `PUBLISH_MS`.
const PUBLISH_BYTES: usize = 4 << 20;
/// The window of the longest turn.
const WINDOW_MS: u64 = 1_000;

/// Counters of a shard's loop: turns, bytes, connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Number of turns.
    pub turns: u64,
    /// Nanoseconds of all turns, without the waits between them.
    pub busy_ns: u64,
    /// The longest turn of the last one to two seconds in which it turned.
    pub longest_ns: u64,
    /// Bytes read from sockets.
    pub received_bytes: u64,
    /// Bytes written to sockets.
    pub sent_bytes: u64,
    /// Connections that were closed at once, before they had a row.
    pub shed: u64,
    /// Limit of connections.
    pub room: u64,
}

/// The counters and sizes of a shard at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Counts of the broker's events.
    pub stats: Stats,
    /// The memory and the objects that clients make it hold.
    pub accounts: Accounts,
    /// The memory of its tables.
    pub tables: Tables,
    /// Counters of its loop.
    pub turns: Turns,
    /// Counts of TLS; zero without TLS.
    pub tls: stream::Stats,
    /// The memory of TLS; zero without TLS.
    pub tls_usage: stream::Usage,
    /// Time from the turn that read a message to its write.
    pub latency: Latency,
}

/// The published counters of all shards.
pub struct Counters {
    blocks: Box<[Mutex<Snapshot>]>,
    admission: Admission,
}

impl Counters {
    /// For `shards` shards.
    pub fn new(shards: usize, admission: Admission) -> Arc<Counters> {
        let blocks = (0..shards).map(|_| Mutex::default()).collect();
        Arc::new(Counters { blocks, admission })
    }

    /// The last copy of each shard. The first shard's has the large messages of all.
    pub fn read_all(&self) -> Vec<Snapshot> {
        let read = |block: &Mutex<Snapshot>| {
            let block = block.lock();
            block.unwrap_or_else(PoisonError::into_inner).clone()
        };
        let mut all: Vec<Snapshot> = self.blocks.iter().map(read).collect();
        if let Some(first) = all.first_mut() {
            let messages = &mut first.accounts.parts[Part::Messages as usize];
            *messages = self.admission.account.messages_bytes();
        }
        all
    }
}

/// A shard's own counters of its loop, which publishes them with those of the broker.
pub struct Meter {
    counters: Arc<Counters>,
    shard: ShardId,
    /// Its turns.
    pub turns: Turns,
    latency: Latency,
    /// The longest turns of this window and of the one before.
    longest_ns: [u64; 2],
    window_ms: u64,
    began_ns: u64,
    due_ms: u64,
    /// The bytes of the shard's account when it published last.
    charged_bytes: usize,
    /// Turns have ended since it published last.
    changed: bool,
}

impl Meter {
    /// Of this shard.
    pub fn new(counters: Arc<Counters>, shard: ShardId) -> Self {
        Meter {
            counters,
            shard,
            turns: Turns::default(),
            latency: Latency::default(),
            longest_ns: [0; 2],
            window_ms: 0,
            began_ns: 0,
            due_ms: 0,
            charged_bytes: 0,
            changed: true,
        }
    }

    /// The shard.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Begins a turn; returns the monotonic time, which is never 0.
    pub fn begin_turn(&mut self) -> u64 {
        self.began_ns = clock::monotonic_ns().max(1);
        self.began_ns
    }

    /// Counts deliveries that were written now, of messages that were read at `stamp_ns`.
    pub fn count_deliveries(&mut self, stamp_ns: u64, deliveries: u64) {
        let took_ns = clock::monotonic_ns().saturating_sub(stamp_ns);
        self.latency.count_value(took_ns / 1_000, deliveries);
    }

    /// Ends a turn, and publishes if that is due.
    pub fn end_turn(&mut self, shard: &Shard, tls: Option<&Streams>, now_ms: u64) {
        let took_ns = clock::monotonic_ns().saturating_sub(self.began_ns);
        self.turns.turns += 1;
        self.turns.busy_ns += took_ns;
        self.longest_ns[0] = self.longest_ns[0].max(took_ns);
        self.changed = true;
        let charged_bytes = shard.charged_bytes();
        if !self.is_due(now_ms, charged_bytes) {
            return;
        }
        self.turns.longest_ns = self.longest_ns[0].max(self.longest_ns[1]);
        if now_ms >= self.window_ms {
            self.window_ms = now_ms + WINDOW_MS;
            self.longest_ns = [0, self.longest_ns[0]];
        }
        if self.publish(shard, tls) {
            (self.changed, self.charged_bytes) = (false, charged_bytes);
            self.due_ms = now_ms + PUBLISH_MS;
        }
    }

    /// Whether to publish now, if the shard's account has `charged_bytes`.
    fn is_due(&self, now_ms: u64, charged_bytes: usize) -> bool {
        now_ms >= self.due_ms || charged_bytes.abs_diff(self.charged_bytes) >= PUBLISH_BYTES
    }

    /// How long the shard may sleep before it must publish; none: without end.
    pub fn sleep_ms(&self, now_ms: u64) -> Option<u32> {
        let left_ms = self.due_ms.saturating_sub(now_ms).max(1) as u32;
        self.changed.then_some(left_ms)
    }

    /// Copies the counters into the block; false if a reader holds it.
    fn publish(&self, shard: &Shard, tls: Option<&Streams>) -> bool {
        let Ok(mut block) = self.counters.blocks[self.shard as usize].try_lock() else {
            return false;
        };
        block.stats = shard.stats();
        block.accounts = shard.accounts();
        block.tables = shard.tables();
        block.turns = self.turns;
        block.tls = tls.map(Streams::stats).unwrap_or_default();
        block.tls_usage = tls.map(Streams::usage).unwrap_or_default();
        block.latency.clone_from(&self.latency);
        true
    }
}

#[cfg(test)]
mod tests {
    use crore_broker::settings::Settings;

    use super::*;

    fn counters() -> Arc<Counters> {
        Counters::new(1, Admission::new(&Settings::default(), 7))
    }

    #[test]
    fn large_messages_are_read_as_they_are_though_no_shard_publishes() {
        let counters = counters();
        counters.admission.account.charge_message(1 << 20);
        let messages = |all: Vec<Snapshot>| all[0].accounts.parts[Part::Messages as usize];
        assert_eq!(messages(counters.read_all()), 1 << 20);
        counters.admission.account.release_message(1 << 20);
        assert_eq!(messages(counters.read_all()), 0);
    }

    #[test]
    fn numbers_are_published_in_time_and_at_once_when_the_account_has_changed_much() {
        let meter = Meter {
            due_ms: 1_000,
            charged_bytes: 10 << 20,
            ..Meter::new(counters(), 0)
        };
        assert!(meter.is_due(1_000, 10 << 20));
        for (mib, is_due) in [(10, false), (13, false), (14, true), (7, false), (6, true)] {
            assert_eq!(meter.is_due(999, mib << 20), is_due, "{mib} MiB");
        }
    }
}
