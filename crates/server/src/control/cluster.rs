//! Figures of the log of a cluster for `/metrics`.

use crore_broker::orders::NodeState;

use super::neighbours::{self, Neighbours};
use crate::life::Life;
use crate::life::checkpoint::node;

/// Figures of the log, as this node hears it; all zero where the server is no node of a cluster.
#[derive(Default)]
pub struct Cluster {
    pub hears: bool,
    pub lag: u64,
    pub backlog_bytes: usize,
    pub short: usize,
    pub checkpoint_bytes: u64,
    pub late: usize,
    pub appended: u64,
    pub refused: u64,
    pub disconnects: u64,
    pub nodes: Vec<Node>,
}

/// A node, by its last sign of life in the log and by its own answer.
pub struct Node {
    pub name: String,
    pub age_s: u32,
    pub clients: u64,
    pub lag: Option<u64>,
    pub ready: Option<bool>,
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

    /// A value of each node that has it, by the node's name.
    pub fn by_node(&self, of: fn(&Node) -> Option<f64>) -> Vec<(Vec<String>, f64)> {
        let nodes = self.nodes.iter();
        nodes
            .filter_map(|node| Some((vec![node.name.clone()], of(node)?)))
            .collect()
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
