//! Takes a sample of all shards' counters once a second, even while nobody reads the samples, so that the first reader gets rates at once.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::lifecycle::Lifecycle;
use crore_shard_loop::counters::{Counters, LatencyHistogram, ShardCounters};

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The counters of all shards, read at one time.
pub struct CounterSample {
    pub taken_at: Instant,
    pub shards: Vec<ShardCounters>,
    /// The log on disk, if the state is durable.
    pub log: Option<crore_disk::EngineState>,
}

/// The last two samples. Rates are computed from their difference.
#[derive(Clone)]
pub struct LastSamples {
    pub previous: Arc<CounterSample>,
    pub newest: Arc<CounterSample>,
}

/// Spawns the task that takes samples. The returned receiver has the last two.
pub fn spawn(counters: Arc<Counters>, lifecycle: Lifecycle) -> watch::Receiver<LastSamples> {
    let read = move || {
        Arc::new(CounterSample {
            taken_at: Instant::now(),
            shards: counters.read_all(),
            log: lifecycle.log_state(),
        })
    };
    let first = read();
    let (sender, receiver) = watch::channel(LastSamples {
        previous: first.clone(),
        newest: first,
    });
    tokio::spawn(async move {
        let mut every = tokio::time::interval(SAMPLE_INTERVAL);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            sender.send_modify(|last| last.previous = std::mem::replace(&mut last.newest, read()));
        }
    });
    receiver
}

/// The sum of a counter over all shards.
pub fn sum(shards: &[ShardCounters], counter: impl Fn(&ShardCounters) -> u64) -> u64 {
    shards.iter().map(counter).sum()
}

/// The latency histograms of all shards, added up.
pub fn latency(shards: &[ShardCounters]) -> LatencyHistogram {
    let mut all = LatencyHistogram::default();
    shards.iter().for_each(|shard| all.add(&shard.latency));
    all
}

/// The time of the wall clock in milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// The rate of `count` events in `passed` seconds. It is 0 if almost no time has passed, because the first two samples are the same one.
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
