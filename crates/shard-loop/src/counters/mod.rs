//! The shards' counters. Each shard has a block, into which it copies its counters from time to time. Other threads read the blocks.
//!
//! Invariants: a shard never waits for a reader. If a reader holds the block, the shard publishes in its next turn (round of its loop). So
//! the copy of a busy shard is at most `PUBLISH_MS` and one turn old, and the memory account in it is wrong by at most `PUBLISH_BYTES` and
//! the growth of one turn. Large messages are in the account of no shard: a reader adds their current size. The cost of counting does not
//! grow with the number of connections or deliveries: a latency is recorded once for all deliveries of a mail, with their number.
//!
//! Deliberately not here: rates, names and formats. The readers compute them.

mod latency;

use std::sync::{Arc, Mutex, PoisonError};

use crore_broker::account::MemoryPart;
use crore_broker::admission::Admission;
use crore_broker::{Accounts, Shard, ShardId, Stats, Tables};
use crore_net::clock;
use crore_net::stream::{self, TlsStreams};
use crore_net::transport::{OwnTcpStats, Transport};

pub use latency::{LatencyHistogram, MetricHistogram, bucket_end_us};

/// The time between two copies of a busy shard's counters.
const PUBLISH_MS: u64 = 100;
/// If the memory account changes by this many bytes, the counters are published at once: an attack may take 20 MiB within `PUBLISH_MS`.
const PUBLISH_BYTES: usize = 4 << 20;
/// The period for which the longest turn is measured.
const LONGEST_TURN_PERIOD_MS: u64 = 1_000;

/// Counters of a shard's loop: turns, bytes, connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopStats {
    /// Number of turns.
    pub turns: u64,
    /// The duration of all turns in nanoseconds, without the waits between them.
    pub busy_ns: u64,
    /// The longest turn of the last one to two seconds.
    pub longest_ns: u64,
    /// Bytes read from sockets.
    pub received_bytes: u64,
    /// Bytes written to sockets.
    pub sent_bytes: u64,
    /// Connections that were closed right after they were accepted, because there was no descriptor or memory for them.
    pub shed: u64,
    /// The most connections that this shard can have.
    pub connections_max: u64,
}

/// The counters and sizes of a shard at one moment.
#[derive(Clone, Debug, Default)]
pub struct ShardCounters {
    /// Counts of the broker's events.
    pub stats: Stats,
    /// Memory and objects that the shard holds for clients.
    pub accounts: Accounts,
    /// The memory of the shard's tables.
    pub tables: Tables,
    /// Counters of the shard's loop.
    pub loop_stats: LoopStats,
    /// Counts of TLS; zero without TLS.
    pub tls: stream::Stats,
    /// The memory of TLS; zero without TLS.
    pub tls_usage: stream::Usage,
    /// Counts of connections over `AF_XDP`; zero without them.
    pub own_tcp: OwnTcpStats,
    /// Time from the turn that read a message to the write of a delivery.
    pub latency: LatencyHistogram,
}

/// The published counters of all shards.
pub struct Counters {
    blocks: Box<[Mutex<ShardCounters>]>,
    admission: Admission,
}

impl Counters {
    /// The counters of `shards` shards, all zero.
    pub fn new(shards: usize, admission: Admission) -> Arc<Counters> {
        let blocks = (0..shards).map(|_| Mutex::default()).collect();
        Arc::new(Counters { blocks, admission })
    }

    /// The last copy of each shard. The copy of the first shard includes the large messages of all shards.
    pub fn read_all(&self) -> Vec<ShardCounters> {
        let read = |block: &Mutex<ShardCounters>| {
            let block = block.lock();
            block.unwrap_or_else(PoisonError::into_inner).clone()
        };
        let mut all: Vec<ShardCounters> = self.blocks.iter().map(read).collect();
        if let Some(first) = all.first_mut() {
            let messages = &mut first.accounts.parts[MemoryPart::Messages as usize];
            *messages = self.admission.account.unowned_bytes();
        }
        all
    }
}

/// Measures the turns of a shard's loop, and publishes these counters together with those of the broker.
pub struct Meter {
    counters: Arc<Counters>,
    shard: ShardId,
    /// Counters of the loop so far.
    pub loop_stats: LoopStats,
    latency: LatencyHistogram,
    /// The longest turn of this period and of the previous one.
    longest_ns: [u64; 2],
    period_end_ms: u64,
    turn_start_ns: u64,
    publish_at_ms: u64,
    /// The bytes of the shard's account in the last published copy.
    published_bytes: usize,
    /// Whether a turn has ended since the last copy.
    has_changed: bool,
}

impl Meter {
    /// A meter for this shard.
    pub fn new(counters: Arc<Counters>, shard: ShardId) -> Self {
        Meter {
            counters,
            shard,
            loop_stats: LoopStats::default(),
            latency: LatencyHistogram::default(),
            longest_ns: [0; 2],
            period_end_ms: 0,
            turn_start_ns: 0,
            publish_at_ms: 0,
            published_bytes: 0,
            has_changed: true,
        }
    }

    /// The shard.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Begins a turn; returns the monotonic time, which is never 0.
    pub fn begin_turn(&mut self) -> u64 {
        self.turn_start_ns = clock::monotonic_ns().max(1);
        self.turn_start_ns
    }

    /// Records the latency of `deliveries` writes that happen now, of messages that were read at `stamp_ns`.
    pub fn count_deliveries(&mut self, stamp_ns: u64, deliveries: u64) {
        let elapsed_ns = clock::monotonic_ns().saturating_sub(stamp_ns);
        self.latency.count_value(elapsed_ns / 1_000, deliveries);
    }

    /// Ends a turn, and publishes the counters if that is due.
    pub fn end_turn(
        &mut self,
        shard: &Shard,
        tls: Option<&TlsStreams>,
        transport: &impl Transport,
        now_ms: u64,
    ) {
        let elapsed_ns = clock::monotonic_ns().saturating_sub(self.turn_start_ns);
        self.loop_stats.turns += 1;
        self.loop_stats.busy_ns += elapsed_ns;
        self.longest_ns[0] = self.longest_ns[0].max(elapsed_ns);
        self.has_changed = true;
        let charged_bytes = shard.charged_bytes();
        if !self.is_publish_due(now_ms, charged_bytes) {
            return;
        }
        self.loop_stats.longest_ns = self.longest_ns[0].max(self.longest_ns[1]);
        if now_ms >= self.period_end_ms {
            self.period_end_ms = now_ms + LONGEST_TURN_PERIOD_MS;
            self.longest_ns = [0, self.longest_ns[0]];
        }
        if self.publish(shard, tls, transport) {
            (self.has_changed, self.published_bytes) = (false, charged_bytes);
            self.publish_at_ms = now_ms + PUBLISH_MS;
        }
    }

    /// Whether to publish now, if the shard's account has `charged_bytes`.
    fn is_publish_due(&self, now_ms: u64, charged_bytes: usize) -> bool {
        now_ms >= self.publish_at_ms
            || charged_bytes.abs_diff(self.published_bytes) >= PUBLISH_BYTES
    }

    /// How long the shard may sleep before it must publish. `None` if nothing has changed since the last copy.
    pub fn sleep_ms(&self, now_ms: u64) -> Option<u32> {
        let left_ms = self.publish_at_ms.saturating_sub(now_ms).max(1) as u32;
        self.has_changed.then_some(left_ms)
    }

    /// Copies the counters into the block. Returns false if a reader holds it.
    fn publish(&self, shard: &Shard, tls: Option<&TlsStreams>, transport: &impl Transport) -> bool {
        let Ok(mut block) = self.counters.blocks[self.shard as usize].try_lock() else {
            return false;
        };
        block.stats = shard.stats();
        block.accounts = shard.accounts();
        block.tables = shard.tables();
        block.loop_stats = self.loop_stats;
        block.tls = tls.map(TlsStreams::stats).unwrap_or_default();
        block.tls_usage = tls.map(TlsStreams::usage).unwrap_or_default();
        block.own_tcp = transport.own_tcp_stats();
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
        counters.admission.account.charge_unowned(1 << 20);
        let messages =
            |all: Vec<ShardCounters>| all[0].accounts.parts[MemoryPart::Messages as usize];
        assert_eq!(messages(counters.read_all()), 1 << 20);
        counters.admission.account.release_unowned(1 << 20);
        assert_eq!(messages(counters.read_all()), 0);
    }

    #[test]
    fn numbers_are_published_in_time_and_at_once_when_the_account_has_changed_much() {
        let meter = Meter {
            publish_at_ms: 1_000,
            published_bytes: 10 << 20,
            ..Meter::new(counters(), 0)
        };
        assert!(meter.is_publish_due(1_000, 10 << 20));
        for (mib, is_due) in [(10, false), (13, false), (14, true), (7, false), (6, true)] {
            assert_eq!(meter.is_publish_due(999, mib << 20), is_due, "{mib} MiB");
        }
    }
}
