//! The shards' counters, for anybody to look at: each shard writes its counters into a block of its own, and
//! the control thread reads them all.
//!
//! Invariants: a block has one writer, so that an addition is a load and a store without a lock; readers take what is
//! there, never older than `PUBLISH_MS` while the shard turns. A connection costs nothing here, and a delivery
//! nothing of its own: latencies are added once for each mail, with its number of deliveries.
//!
//! Deliberately not here: rates, names and formats. Readers make them.

mod cells;
mod latency;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crore_broker::{Accounts, Shard, ShardId, Stats, Tables};
use crore_net::clock;
use crore_net::stream::{self, Streams};

use cells::{Cells, Turns};
pub use latency::{Buckets, Latency, bucket_end_us};

/// How old the numbers of a block may be while its shard turns.
const PUBLISH_MS: u64 = 100;
/// The time over which a longest turn is looked for.
const WINDOW_MS: u64 = 1_000;

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

/// One shard's counters; aligned so that no line of the cache is two shards'.
#[repr(align(128))]
struct Block {
    cells: Box<[AtomicU64]>,
    latency: latency::Cells,
}

/// All shards' counters.
pub struct Board(Box<[Block]>);

impl Board {
    /// For so many shards.
    pub fn new(shards: usize) -> Arc<Board> {
        let block = || Block {
            cells: (0..cells::count()).map(|_| AtomicU64::new(0)).collect(),
            latency: latency::Cells::default(),
        };
        Arc::new(Board((0..shards).map(|_| block()).collect()))
    }

    /// The numbers that a shard wrote last.
    pub fn read(&self, shard: ShardId) -> Snapshot {
        let block = &self.0[shard as usize];
        let mut cells = block.cells.iter().map(|cell| cell.load(Relaxed));
        let mut next = || cells.next().expect("as many as are written");
        Snapshot {
            stats: Stats::take(&mut next),
            accounts: Accounts::take(&mut next),
            tables: Tables::take(&mut next),
            turns: Turns::take(&mut next),
            tls: stream::Stats::take(&mut next),
            tls_usage: stream::Usage::take(&mut next),
            latency: block.latency.read(),
        }
    }

    /// The numbers that all shards wrote last.
    pub fn read_all(&self) -> Vec<Snapshot> {
        (0..self.0.len() as ShardId).map(|n| self.read(n)).collect()
    }
}

/// A shard's end of the board.
pub struct Meter {
    board: Arc<Board>,
    shard: ShardId,
    /// The loop's counts.
    pub turns: Turns,
    /// The longest turns of this second and of the one before.
    longest_ns: [u64; 2],
    window_ms: u64,
    began_ns: u64,
    due_ms: u64,
    changed: bool,
}

impl Meter {
    /// The one of this shard.
    pub fn new(board: Arc<Board>, shard: ShardId) -> Self {
        Meter {
            board,
            shard,
            turns: Turns::default(),
            longest_ns: [0; 2],
            window_ms: 0,
            began_ns: 0,
            due_ms: 0,
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
    pub fn written(&self, stamp_ns: u64, deliveries: u64) {
        let took_ns = clock::monotonic_ns().saturating_sub(stamp_ns);
        let latency = &self.board.0[self.shard as usize].latency;
        latency.add(took_ns / 1_000, deliveries);
    }

    /// A turn ends: publishes what is due.
    pub fn end(&mut self, shard: &Shard, tls: Option<&Streams>, now_ms: u64) {
        let took_ns = clock::monotonic_ns().saturating_sub(self.began_ns);
        self.turns.turns += 1;
        self.turns.busy_ns += took_ns;
        self.longest_ns[0] = self.longest_ns[0].max(took_ns);
        self.changed = true;
        if now_ms < self.due_ms {
            return;
        }
        self.turns.longest_ns = self.longest_ns[0].max(self.longest_ns[1]);
        if now_ms >= self.window_ms {
            self.window_ms = now_ms + WINDOW_MS;
            self.longest_ns = [0, self.longest_ns[0]];
        }
        self.publish(shard, tls);
        self.due_ms = now_ms + PUBLISH_MS;
    }

    /// How long the shard may sleep before the numbers of its last turns are to be published; none: for ever.
    pub fn sleep_ms(&self, now_ms: u64) -> Option<u32> {
        let left_ms = self.due_ms.saturating_sub(now_ms).max(1) as u32;
        self.changed.then_some(left_ms)
    }

    fn publish(&mut self, shard: &Shard, tls: Option<&Streams>) {
        let cells = &self.board.0[self.shard as usize].cells;
        let mut at = cells.iter();
        let mut put = |value: u64| {
            let cell = at.next().expect("as many as are read");
            cell.store(value, Relaxed);
        };
        shard.stats().put(&mut put);
        shard.accounts().put(&mut put);
        shard.tables().put(&mut put);
        self.turns.put(&mut put);
        if let Some(tls) = tls {
            tls.stats().put(&mut put);
            tls.usage().put(&mut put);
        }
        self.changed = false;
    }
}
