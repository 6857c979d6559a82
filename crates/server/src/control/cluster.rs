//! What `/metrics` says of the log of a cluster.

use std::fmt;

use crore_broker::orders::NodeState;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::neighbours::{self, Neighbours};
use crate::life::Life;
use crate::life::checkpoint::node;

/// What a node hears of the log of its cluster; all zero where the server is none.
#[derive(Default)]
pub struct Cluster {
    hears: bool,
    lag: u64,
    backlog_bytes: usize,
    short: usize,
    checkpoint_bytes: u64,
    late: usize,
    appended: u64,
    refused: u64,
    disconnects: u64,
    nodes: Vec<Node>,
}

/// A node, by its last sign of life in the log and by what it tells of itself.
struct Node {
    name: String,
    age_s: u32,
    clients: u64,
    lag: Option<u64>,
    ready: Option<bool>,
}

impl Cluster {
    /// That of this life.
    pub async fn of(life: &Life, neighbours: &Neighbours) -> Cluster {
        let Some(member) = life.member() else {
            return Cluster::default();
        };
        let status = member.status();
        let partitions = status.partitions.iter();
        let settings = life.effective().file.cluster;
        let newest = partitions.clone().filter_map(|it| it.checkpoint.as_ref());
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
            checkpoint_bytes: newest.map(|it| it.bytes).sum(),
            late: node::late(&settings, &status.partitions),
            appended: status.appended,
            refused: status.append_errors,
            disconnects: status.disconnects,
            nodes: nodes(neighbours).await,
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
                "cluster_nodes",
                None,
                "Nodes of the cluster that live, by the last signs of life in its log",
                self.nodes.len() as u64,
            ),
            (
                "cluster_short_partitions",
                None,
                "Partitions with a server of NATS that is away or behind",
                self.short as u64,
            ),
            (
                "cluster_checkpoints",
                Some(&Unit::Bytes),
                "The newest checkpoints of all partitions of the cluster's log",
                self.checkpoint_bytes,
            ),
            (
                "cluster_late_checkpoints",
                None,
                "Partitions whose newest checkpoint is older than it should be",
                self.late as u64,
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
        self.encode_nodes(out)
    }

    /// Each node by its name.
    fn encode_nodes(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Of = fn(&Node) -> Option<f64>;
        let seconds = Some(&Unit::Seconds);
        let all: [(&str, Option<&Unit>, &str, Of); 4] = [
            (
                "cluster_node_age",
                seconds,
                "Time since the node's last sign of life in the log",
                |node| Some(node.age_s.into()),
            ),
            (
                "cluster_node_clients",
                None,
                "Connections of the node",
                |node| Some(node.clients as f64),
            ),
            (
                "cluster_node_lag",
                None,
                "Batches of the log that the node has not read yet",
                |node| Some(node.lag? as f64),
            ),
            (
                "cluster_node_ready",
                None,
                "1 while the node is ready for clients",
                |node| Some(f64::from(u8::from(node.ready?))),
            ),
        ];
        for (name, unit, help, of) in all {
            let mut metric = out.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            for node in &self.nodes {
                if let Some(value) = of(node) {
                    let labels = [("node", node.name.as_str())];
                    metric.encode_family(&labels)?.encode_gauge(&value)?;
                }
            }
        }
        Ok(())
    }
}

/// All nodes, this one included.
async fn nodes(neighbours: &Neighbours) -> Vec<Node> {
    let Some(state) = neighbours.roster().await else {
        return Vec::new();
    };
    let heard = neighbours.heard();
    let node = |node: &NodeState| {
        let word = heard.get(&neighbours::writer(node.writer));
        let word = word.map(|(word, _)| word);
        Node {
            name: String::from_utf8_lossy(&node.name).into(),
            age_s: state.now_s.saturating_sub(node.beat_s),
            clients: word.map_or(node.connections, |word| word.clients),
            lag: word.map(|word| word.lag),
            ready: word.map(|word| word.ready),
        }
    };
    state.nodes.iter().map(node).collect()
}
