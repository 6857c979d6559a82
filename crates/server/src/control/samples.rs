//! Samples of all shards' counters, taken once a second. They are taken even if nobody watches, so that the first watcher gets rates at once.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::lifecycle::Lifecycle;
use crore_shard_loop::counters::{Counters, LatencyHistogram, ShardCounters};

/// Between two samples.
const EVERY: Duration = Duration::from_secs(1);

/// The counters of all shards, read at one time.
pub struct CounterSample {
    pub at: Instant,
    pub shards: Vec<ShardCounters>,
    /// The log on disk, if the state is durable.
    pub log: Option<crore_disk::State>,
}

/// The newest two samples. Rates are computed from their difference.
#[derive(Clone)]
pub struct Samples {
    pub before: Arc<CounterSample>,
    pub now: Arc<CounterSample>,
}

/// Spawns the task that takes the samples.
pub fn watch(counters: Arc<Counters>, lifecycle: Lifecycle) -> watch::Receiver<Samples> {
    let read = move || {
        Arc::new(CounterSample {
            at: Instant::now(),
            shards: counters.read_all(),
            log: lifecycle.log_state(),
        })
    };
    let first = read();
    let (sender, receiver) = watch::channel(Samples {
        before: first.clone(),
        now: first,
    });
    tokio::spawn(async move {
        let mut every = tokio::time::interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            sender.send_modify(|newest| newest.before = std::mem::replace(&mut newest.now, read()));
        }
    });
    receiver
}

pub fn sum(shards: &[ShardCounters], of: impl Fn(&ShardCounters) -> u64) -> u64 {
    shards.iter().map(of).sum()
}

/// The latency histograms of all shards, added up.
pub fn latency(shards: &[ShardCounters]) -> LatencyHistogram {
    let mut all = LatencyHistogram::default();
    shards.iter().for_each(|shard| all.add(&shard.latency));
    all
}

/// The wall clock.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Events per second. The rate is 0 if next to no time has passed: the first two samples are the same.
pub fn per_s(count: u64, passed: f64) -> f64 {
    if passed < 0.001 {
        return 0.0;
    }
    round(count as f64 / passed)
}

/// Rounds to three decimal places.
pub fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
