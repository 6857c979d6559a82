//! The shards' counters, for anybody to look at: each shard copies its counters into a block of its own, and the control thread copies them
//! from there.
//!
//! Invariants: a shard never waits for a reader, but copies a moment later. While the shard turns, its block is never older than
//! `PUBLISH_MS` and that moment, and the bytes of its account never differ by more than `PUBLISH_BYTES` and the growth of that moment. Large
//! messages are in no shard's account: a reader gets their present bytes. A connection costs nothing here, and a delivery nothing of its
//! own: latencies are added once for each mail, with its number of deliveries.
//!
//! Deliberately not here: rates, names and formats. Readers make them.

mod latency;

use std::sync::{Arc, Mutex, PoisonError};

use crore_broker::account::Part;
use crore_broker::admission::Admission;
use crore_broker::{Accounts, Shard, ShardId, Stats, Tables};
use crore_net::clock;
use crore_net::stream::{self, Streams};

pub use latency::{Buckets, Latency, bucket_end_us};

/// How old the numbers of a block may be while its shard turns.
const PUBLISH_MS: u64 = 100;
/// The change of the account's bytes that is published at once: an attack may take 20 MiB in `PUBLISH_MS`.
const PUBLISH_BYTES: usize = 4 << 20;
/// The time over which a longest turn is looked for.
const WINDOW_MS: u64 = 1_000;

/// A shard thread's turns, and the bytes that it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Turns.
    pub turns: u64,
    /// Nanoseconds in which it did not wait.
    pub busy_ns: u64,
    /// The longest turn of the last one to two seconds in which it turned.
    pub longest_ns: u64,
    /// Bytes that came from sockets.
    pub received_bytes: u64,
    /// Bytes that sockets took.
    pub sent_bytes: u64,
    /// Connections that were turned away before they had a row.
    pub shed: u64,
    /// Connections that it has room for.
    pub room: u64,
}

/// The counters and sizes of a shard at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Counts of its events.
    pub stats: Stats,
    /// The memory and the objects that it holds.
    pub accounts: Accounts,
    /// The memory that its tables occupy.
    pub tables: Tables,
    /// Counts of its turns.
    pub turns: Turns,
    /// Counts of its TLS; all zero where TLS is off, as below.
    pub tls: stream::Stats,
    /// The memory that its TLS holds.
    pub tls_usage: stream::Usage,
    /// From the turn that read a message to the write.
    pub latency: Latency,
}

/// All shards' counters.
pub struct Counters {
    blocks: Box<[Mutex<Snapshot>]>,
    admission: Admission,
}

impl Counters {
    /// For so many shards with these counts.
    pub fn new(shards: usize, admission: Admission) -> Arc<Counters> {
        let blocks = (0..shards).map(|_| Mutex::default()).collect();
        Arc::new(Counters { blocks, admission })
    }

    /// The numbers that all shards wrote last. The first one has the large messages of all.
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

/// A shard's end of the counters.
pub struct Meter {
    counters: Arc<Counters>,
    shard: ShardId,
    /// The loop's counts.
    pub turns: Turns,
    latency: Latency,
    /// The longest turns of this second and of the one before.
    longest_ns: [u64; 2],
    window_ms: u64,
    began_ns: u64,
    due_ms: u64,
    /// The bytes of the shard's account that were published last.
    charged_bytes: usize,
    changed: bool,
}

impl Meter {
    /// The one of this shard.
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

    /// A turn begins; returns the moment, which is never 0.
    pub fn begin(&mut self) -> u64 {
        self.began_ns = clock::monotonic_ns().max(1);
        self.began_ns
    }

    /// So many deliveries of messages that were read then are written.
    pub fn written(&mut self, stamp_ns: u64, deliveries: u64) {
        let took_ns = clock::monotonic_ns().saturating_sub(stamp_ns);
        self.latency.count_value(took_ns / 1_000, deliveries);
    }

    /// A turn ends: publishes the counters that are due.
    pub fn end(&mut self, shard: &Shard, tls: Option<&Streams>, now_ms: u64) {
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

    /// Whether the numbers of a turn are to be published at once, where clients make the shard hold so many bytes.
    fn is_due(&self, now_ms: u64, charged_bytes: usize) -> bool {
        now_ms >= self.due_ms || charged_bytes.abs_diff(self.charged_bytes) >= PUBLISH_BYTES
    }

    /// How long the shard may sleep before the numbers of its last turns are to be published; none: for ever.
    pub fn sleep_ms(&self, now_ms: u64) -> Option<u32> {
        let left_ms = self.due_ms.saturating_sub(now_ms).max(1) as u32;
        self.changed.then_some(left_ms)
    }

    /// Copies the numbers for readers; returns false where a reader is at them just now.
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
    fn large_messages_are_read_as_they_are_though_no_shard_writes() {
        let counters = counters();
        counters.admission.account.hold_message(1 << 20);
        let messages = |all: Vec<Snapshot>| all[0].accounts.parts[Part::Messages as usize];
        assert_eq!(messages(counters.read_all()), 1 << 20);
        counters.admission.account.let_message_go(1 << 20);
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
