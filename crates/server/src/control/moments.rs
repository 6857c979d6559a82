//! All shards' counters, read once a second, whether anybody watches or not, so that the first watcher gets rates at once.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::counters::{Counters, Latency, Snapshot};
use crate::life::Life;

/// How often the counters are read.
const EVERY: Duration = Duration::from_secs(1);

/// All shards at one moment.
pub struct Moment {
    pub at: Instant,
    pub shards: Vec<Snapshot>,
    /// The log of durable messages, where there is one.
    pub log: Option<crore_disk::State>,
}

/// The newest two moments.
pub type Moments = (Arc<Moment>, Arc<Moment>);

/// Begins to read the counters, for ever.
pub fn watch(counters: Arc<Counters>, life: Life) -> watch::Receiver<Moments> {
    let read = move || {
        Arc::new(Moment {
            at: Instant::now(),
            shards: counters.read_all(),
            log: life.log_state(),
        })
    };
    let first = read();
    let (sender, receiver) = watch::channel((first.clone(), first));
    tokio::spawn(async move {
        let mut every = tokio::time::interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            sender.send_modify(|(before, now)| *before = std::mem::replace(now, read()));
        }
    });
    receiver
}

/// The sum of something over all shards.
pub fn sum(shards: &[Snapshot], of: impl Fn(&Snapshot) -> u64) -> u64 {
    shards.iter().map(of).sum()
}

/// The latencies of all shards together.
pub fn latency(shards: &[Snapshot]) -> Latency {
    let mut all = Latency::default();
    shards.iter().for_each(|shard| all.add(&shard.latency));
    all
}

/// Now, by the wall clock.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Nothing has a rate before there were two moments.
pub fn per_s(count: u64, passed: f64) -> f64 {
    if passed < 0.001 {
        return 0.0;
    }
    round(count as f64 / passed)
}

/// Three digits are enough to be drawn.
pub fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
