//! What `/metrics` says of durable messages.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::life::Life;

/// What durable messages do with the disk; all zero without them.
#[derive(Default)]
pub struct Disk {
    log: crore_disk::State,
    base_bytes: u64,
    made: u64,
    failed: u64,
    made_unix_s: u64,
    took_s: f64,
    recovery_s: f64,
}

impl Disk {
    /// Those of this life.
    pub fn of(life: &Life) -> Disk {
        let Some(log) = life.log_state() else {
            return Disk::default();
        };
        let checkpoints = life.checkpoints();
        Disk {
            log,
            base_bytes: checkpoints.base_bytes.load(Relaxed),
            made: checkpoints.made.load(Relaxed),
            failed: checkpoints.failed.load(Relaxed),
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
