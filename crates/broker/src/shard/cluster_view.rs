//! The view that a home of a node has of the other nodes of its cluster. `cluster` writes it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::commit::record::Note;
use crate::mail::orders::NodeState;

/// Dead nodes are remembered for so long, and so many at most.
const REMEMBERED_S: u32 = 3600;
const DEAD_NODES_MAX: usize = 64;

/// A home's view of the cluster.
#[derive(Default)]
pub(super) struct ClusterView {
    /// Nodes that have given a sign of life, and are not dead; at the home of partition 0.
    pub nodes: Vec<NodeState>,
    /// Nodes that have died lately, for operators; those that died last come last.
    pub dead_nodes: Vec<NodeState>,
    /// An unbroken run of signs of life of this node that came back: when it began, and the last of it. 0 before the first.
    pub since_s: u32,
    pub last_s: u32,
    /// Writers whose death is to be told in all partitions of this home.
    pub dead: Vec<u64>,
    /// Writers whose death stands in partition 0 and was told to all homes of this node; at the home of partition 0.
    pub buried: Vec<u64>,
    /// The partitions, by their places.
    pub partitions: Vec<Partition>,
}

/// A partition of the home.
#[derive(Clone, Copy, Default)]
pub(super) struct Partition {
    /// The kinds of notes that are under way, a bit each.
    pub noted: u8,
    /// When a record was applied last.
    pub heard_s: u32,
    /// The number of the last page that waited for the log when the mark under way was written.
    pub waits: u64,
}

/// The bit of a kind of note.
pub(super) fn bit(note: &Note<'_>) -> u8 {
    match note {
        Note::Mark(_) => 1,
        Note::Beat(_) => 2,
        Note::Dead(_) => 4,
        Note::Steward(_) => 8,
    }
}

impl ClusterView {
    /// Of a home with so many partitions.
    pub fn new(partitions: usize) -> Box<ClusterView> {
        Box::new(ClusterView {
            partitions: alloc::vec![Partition::default(); partitions],
            ..ClusterView::default()
        })
    }

    /// A record of partition `at` was applied.
    pub fn was_heard(&mut self, at: usize, now_s: u32) {
        self.partitions[at].heard_s = now_s;
    }

    /// A node has died that is another one than this.
    pub fn remember(&mut self, node: NodeState) {
        if self.dead_nodes.len() == DEAD_NODES_MAX {
            self.dead_nodes.remove(0);
        }
        self.dead_nodes.push(node);
    }

    /// Forgets dead nodes whose names others have now, and those that were heard of long ago.
    pub fn forget_dead(&mut self, unix_s: u32) {
        let living = &self.nodes;
        self.dead_nodes.retain(|dead| {
            let is_back = living.iter().any(|it| it.name == dead.name);
            !is_back && unix_s.saturating_sub(dead.beat_unix_s) < REMEMBERED_S
        });
    }

    /// The death of a writer is to be told in the partitions of this home.
    pub fn is_to_tell_death(&mut self, writer: u64) {
        if !self.dead.contains(&writer) {
            self.dead.push(writer);
        }
    }
}
