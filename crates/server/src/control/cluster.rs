//! Collects the metrics of a cluster and of its log.

use super::api::cluster::{NodeStatus, nodes};
use super::peer_nodes::PeerNodes;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::checkpoint::node;

/// The cluster as this node sees it. All values are zero if the server is not a node of a cluster.
#[derive(Default)]
pub struct ClusterMetrics {
    /// Whether this node is connected to the log.
    pub reads_log: bool,
    pub lag: u64,
    pub backlog_bytes: usize,
    /// The number of partitions that have a replica on a NATS server that is down or has not received all batches.
    pub degraded_partitions: usize,
    pub checkpoint_bytes: u64,
    pub overdue_checkpoints: usize,
    pub full_partitions: usize,
    pub published_batches: u64,
    pub refused_batches: u64,
    pub void_messages: u64,
    pub disconnects: u64,
    pub nodes: Vec<NodeStatus>,
}

impl ClusterMetrics {
    pub async fn collect(lifecycle: &Lifecycle, peer_nodes: &PeerNodes) -> ClusterMetrics {
        let Some(member) = lifecycle.member() else {
            return ClusterMetrics::default();
        };
        let status = member.cluster.status();
        let partitions = status.partitions.iter();
        let settings = lifecycle.effective_settings().file.cluster;
        let checkpoints = partitions.clone().filter_map(|it| it.checkpoint.as_ref());
        ClusterMetrics {
            reads_log: !lifecycle.is_cut_off(),
            lag: partitions
                .clone()
                .map(|it| it.last.saturating_sub(it.read))
                .sum(),
            backlog_bytes: member.backlog.bytes(),
            degraded_partitions: partitions
                .filter(|it| it.replicas_current < it.replicas)
                .count(),
            checkpoint_bytes: checkpoints.map(|it| it.bytes).sum(),
            overdue_checkpoints: node::late(&settings, &status.partitions),
            full_partitions: status.partitions.iter().filter(|it| it.is_full).count(),
            published_batches: status.appended,
            refused_batches: status.append_errors,
            void_messages: member.invalid_messages.count(),
            disconnects: status.disconnects,
            nodes: match peer_nodes.nodes_in_log().await {
                Some(state) => nodes(&state, &mut peer_nodes.reports()),
                None => Vec::new(),
            },
        }
    }

    /// A value of each node that reports it, labelled with the node's name.
    pub fn by_node(&self, value_of: fn(&NodeStatus) -> Option<f64>) -> Vec<(Vec<String>, f64)> {
        let nodes = self.nodes.iter();
        nodes
            .filter_map(|node| Some((vec![node.name.clone()], value_of(node)?)))
            .collect()
    }
}
