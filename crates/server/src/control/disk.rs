//! What `/metrics` and the stats say of durable messages.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use serde::Serialize;
use utoipa::ToSchema;

use super::moments::{per_s, round};
use crate::life::Life;

/// What durable messages do with the disk, all zero without them; and checkpoints, on disk and of a cluster.
#[derive(Default)]
pub struct Disk {
    log: crore_disk::State,
    base_bytes: u64,
    made: u64,
    failed: u64,
    damaged: bool,
    made_unix_s: u64,
    took_s: f64,
    recovery_s: f64,
}

impl Disk {
    /// Those of this life.
    pub fn of(life: &Life) -> Disk {
        let checkpoints = life.checkpoints();
        Disk {
            log: life.log_state().unwrap_or_default(),
            base_bytes: checkpoints.base_bytes.load(Relaxed),
            made: checkpoints.made.load(Relaxed),
            failed: checkpoints.failed.load(Relaxed),
            damaged: checkpoints.damaged.load(Relaxed),
            made_unix_s: checkpoints.made_unix_s.load(Relaxed),
            took_s: checkpoints.took_ms.load(Relaxed) as f64 / 1e3,
            recovery_s: life.recovery().as_secs_f64(),
        }
    }

    /// Shows them.
    pub fn encode(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let seconds = Some(&Unit::Seconds);
        let (log, bytes) = (&self.log, Some(&Unit::Bytes));
        let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
        let number = |number: u64| number as f64;
        for (name, unit, help, value) in [
            (
                "disk_log",
                bytes,
                "Files of the log of durable messages",
                number(log.figures.bytes),
            ),
            (
                "disk_base",
                bytes,
                "Files that the log goes on from",
                number(self.base_bytes),
            ),
            (
                "disk_full",
                None,
                "1 while publishes are refused because the disk has no room",
                f64::from(u8::from(log.is_full)),
            ),
            (
                "disk_damaged",
                None,
                "1 while files that a checkpoint has to read are damaged",
                f64::from(u8::from(self.damaged)),
            ),
            (
                "checkpoint_timestamp",
                seconds,
                "When the last checkpoint was made, in Unix time; 0: none yet",
                number(self.made_unix_s),
            ),
            (
                "checkpoint",
                seconds,
                "How long the last checkpoint took",
                self.took_s,
            ),
            (
                "recovery",
                seconds,
                "How long the start read what the last server had left",
                self.recovery_s,
            ),
        ] {
            let mut metric = out.encode_descriptor(name, help, unit, gauge)?;
            metric.encode_gauge(&value)?;
        }
        let help = "Batches of messages that were synced";
        let mut metric = out.encode_descriptor("disk_batches", help, None, counter)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&log.batches, None)?;
        let help = "Checkpoints, by what came of them";
        let mut metric = out.encode_descriptor("checkpoints", help, None, counter)?;
        for (result, count) in [("made", self.made), ("failed", self.failed)] {
            let labels = [("result", result)];
            let mut metric = metric.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        self.syncs(out)
    }

    fn syncs(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (log, kind) = (&self.log, MetricType::Histogram);
        let help = "From handing a group of batches to the disk to the end of its sync";
        let mut metric = out.encode_descriptor("disk_sync", help, Some(&Unit::Seconds), kind)?;
        let (most, classes) = log.sync_counts.split_last().expect("there are classes");
        let ends = (0..).map(|bits| f64::from(1_u32 << bits) / 1e6);
        let mut buckets: Vec<_> = ends.zip(classes.iter().copied()).collect();
        buckets.push((f64::INFINITY, *most));
        let sum_s = log.sync_time.as_secs_f64();
        metric.encode_histogram::<NoLabelSet>(sum_s, log.syncs, &buckets, None)
    }
}

/// The disk of durable messages. Syncs are those of the last interval.
#[derive(Serialize, ToSchema)]
pub struct DiskStats {
    syncs_per_s: f64,
    /// Batches of messages that share a sync.
    batches_per_sync: f64,
    sync_us_mean: f64,
    /// 99 of 100 syncs took less: a power of two.
    sync_us_p99: Option<u64>,
    /// Files of the log.
    log_bytes: u64,
    /// Files that the log goes on from.
    base_bytes: u64,
    /// Publishes are refused, because there is no room.
    full: bool,
    /// How long the start read what the last server had left.
    recovery_s: f64,
}

impl DiskStats {
    /// Between these two states of the log.
    pub fn of(
        life: &Life,
        (before, now): (Option<crore_disk::State>, Option<crore_disk::State>),
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
            log_bytes: now.figures.bytes,
            base_bytes: life.checkpoints().base_bytes.load(Relaxed),
            full: now.is_full,
            recovery_s: round(life.recovery().as_secs_f64()),
        })
    }
}
