//! What `/metrics` says of the log of a cluster.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::life::Life;

/// What a node hears of the log of its cluster; all zero where the server is none.
#[derive(Default)]
pub struct Cluster {
    hears: bool,
    lag: u64,
    backlog_bytes: usize,
    short: usize,
    appended: u64,
    refused: u64,
    disconnects: u64,
}

impl Cluster {
    /// That of this life.
    pub fn of(life: &Life) -> Cluster {
        let Some(member) = life.member() else {
            return Cluster::default();
        };
        let status = member.status();
        let partitions = status.partitions.iter();
        Cluster {
            hears: !life.is_cut_off(),
            lag: partitions
                .clone()
                .map(|it| it.last.saturating_sub(it.read))
                .sum(),
            backlog_bytes: member.backlog_bytes(),
            short: partitions
                .filter(|it| it.replicas_current < it.replicas)
                .count(),
            appended: status.appended,
            refused: status.append_errors,
            disconnects: status.disconnects,
        }
    }

    /// Shows it.
    pub fn encode(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, unit, help, value) in [
            (
                "cluster_hears",
                None,
                "1 while a node of a cluster hears of its log",
                u64::from(self.hears),
            ),
            (
                "cluster_lag",
                None,
                "Batches of the cluster's log that are not read yet",
                self.lag,
            ),
            (
                "cluster_backlog",
                Some(&Unit::Bytes),
                "Batches of the cluster's log that are read and not applied yet",
                self.backlog_bytes as u64,
            ),
            (
                "cluster_short_partitions",
                None,
                "Partitions with a server of NATS that is away or behind",
                self.short as u64,
            ),
        ] {
            let mut metric = out.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            metric.encode_gauge(&(value as f64))?;
        }
        for (name, help, value) in [
            (
                "cluster_batches",
                "Batches that this node has published to the cluster's log",
                self.appended,
            ),
            (
                "cluster_refused_batches",
                "Batches that NATS refused or did not answer; they are published again",
                self.refused,
            ),
            (
                "cluster_disconnects",
                "Connections to NATS that were lost",
                self.disconnects,
            ),
        ] {
            let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }
}
