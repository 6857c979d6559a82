//! Metrics of a cluster and its log.

use super::api::cluster::{NodeStatus, nodes};
use super::peer_nodes::PeerNodes;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::checkpoint::node;

/// The cluster as this node sees it. All values are zero if the server is not a node of a cluster.
#[derive(Default)]
pub struct Cluster {
    pub hears: bool,
    pub lag: u64,
    pub backlog_bytes: usize,
    pub short: usize,
    pub checkpoint_bytes: u64,
    pub late: usize,
    pub full: usize,
    pub appended: u64,
    pub refused: u64,
    pub void: u64,
    pub disconnects: u64,
    pub nodes: Vec<NodeStatus>,
}

impl Cluster {
    pub async fn of(lifecycle: &Lifecycle, peer_nodes: &PeerNodes) -> Cluster {
        let Some(member) = lifecycle.member() else {
            return Cluster::default();
        };
        let status = member.cluster.status();
        let partitions = status.partitions.iter();
        let settings = lifecycle.effective().file.cluster;
        let newest = partitions.clone().filter_map(|it| it.checkpoint.as_ref());
        Cluster {
            hears: !lifecycle.is_cut_off(),
            lag: partitions
                .clone()
                .map(|it| it.last.saturating_sub(it.read))
                .sum(),
            backlog_bytes: member.backlog.bytes(),
            short: partitions
                .filter(|it| it.replicas_current < it.replicas)
                .count(),
            checkpoint_bytes: newest.map(|it| it.bytes).sum(),
            late: node::late(&settings, &status.partitions),
            full: status.partitions.iter().filter(|it| it.is_full).count(),
            appended: status.appended,
            refused: status.append_errors,
            void: member.void.count(),
            disconnects: status.disconnects,
            nodes: match peer_nodes.nodes_in_log().await {
                Some(state) => nodes(&state, &mut peer_nodes.reports()),
                None => Vec::new(),
            },
        }
    }

    /// A value of each node that reports it, labelled with the node's name.
    pub fn by_node(&self, of: fn(&NodeStatus) -> Option<f64>) -> Vec<(Vec<String>, f64)> {
        let nodes = self.nodes.iter();
        nodes
            .filter_map(|node| Some((vec![node.name.clone()], of(node)?)))
            .collect()
    }
}
