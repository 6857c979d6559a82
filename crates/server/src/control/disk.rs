//! Computes the statistics of the log on disk, for `/metrics` and `/api/v1/stats`.

use std::sync::atomic::Ordering::Relaxed;

use crore_shard_loop::counters::MetricHistogram;
use serde::Serialize;
use utoipa::ToSchema;

use super::samples::{per_s, round};
use crate::lifecycle::Lifecycle;

/// The histogram of the durations of fsyncs.
pub fn sync_histogram(log: &crore_disk::EngineState) -> MetricHistogram {
    let (longest, classes) = log.sync_counts.split_last().expect("there are classes");
    let bounds = (0..).map(|bits| f64::from(1_u32 << bits) / 1e6);
    let mut buckets: Vec<_> = bounds.zip(classes.iter().copied()).collect();
    buckets.push((f64::INFINITY, *longest));
    MetricHistogram {
        buckets,
        sum: log.sync_time.as_secs_f64(),
        count: log.syncs,
    }
}

/// The log of durable messages on disk. The figures of syncs are those of the last interval.
#[derive(Serialize, ToSchema)]
pub struct DiskStats {
    /// Syncs to disk per second.
    syncs_per_s: f64,
    /// The mean number of batches of messages that one sync writes.
    batches_per_sync: f64,
    /// The mean duration of a sync, in microseconds.
    sync_us_mean: f64,
    /// The 99th percentile of the duration of a sync in microseconds, rounded up to a power of two; null without a sync.
    sync_us_p99: Option<u64>,
    /// The size of the log's files in bytes.
    log_bytes: u64,
    /// The size of the base in bytes. The base is the snapshot that the log continues.
    base_bytes: u64,
    /// Whether publishes are refused because the disk, or `state.bytes_max`, has no room for them.
    full: bool,
    /// The time in which the start restored the state of the last server, in seconds.
    recovery_s: f64,
}

impl DiskStats {
    /// The statistics of the interval between the states `before` and `now`. `passed` is its length in seconds.
    pub fn of(
        lifecycle: &Lifecycle,
        before: Option<crore_disk::EngineState>,
        now: Option<crore_disk::EngineState>,
        passed: f64,
    ) -> Option<DiskStats> {
        let (before, now) = (before?, now?);
        let syncs = now.syncs - before.syncs;
        let each = |sum: f64| round(sum / syncs.max(1) as f64);
        let took = now.sync_time.saturating_sub(before.sync_time);
        let counts = now.sync_counts.iter().zip(before.sync_counts);
        let mut longer = syncs;
        let class = counts.map(|(now, before)| now - before).position(|count| {
            longer -= count;
            count > 0 && longer * 100 <= syncs
        });
        Some(DiskStats {
            syncs_per_s: per_s(syncs, passed),
            batches_per_sync: each((now.batches - before.batches) as f64),
            sync_us_mean: each(took.as_secs_f64() * 1e6),
            sync_us_p99: class.map(|bits| 1 << bits),
            log_bytes: now.usage.bytes,
            base_bytes: lifecycle.checkpoints().base_bytes.load(Relaxed),
            full: now.is_full,
            recovery_s: round(lifecycle.recovery().as_secs_f64()),
        })
    }
}
