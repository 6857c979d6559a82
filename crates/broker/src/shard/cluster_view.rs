//! A home's view of the other nodes of the cluster. The home is the component of a shard that stores partitions. `cluster.rs` updates the
//! view. A *writer* is a process that writes to the log, and has a number. A *note* is a record by which nodes know of one another. A *mark*
//! is a note without content. A *page* is a run of past messages that a subscriber waits for.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::record_kind::KINDS;
use crate::commit::record::Note;
use crate::mail::orders::NodeState;

/// The seconds for which dead nodes are remembered, and the maximum number of remembered nodes.
const REMEMBERED_S: u32 = 3600;
const DEAD_NODES_MAX: usize = 64;

#[derive(Default)]
pub(super) struct ClusterView {
    /// Living nodes that have written a heartbeat; only at the home of partition 0.
    pub nodes: Vec<NodeState>,
    /// Nodes that died within the last hour, in the order of their deaths; for operators.
    pub dead_nodes: Vec<NodeState>,
    /// When this node read the first and the latest of its own heartbeats since the last interruption. 0 before the first heartbeat.
    pub own_beats_since_s: u32,
    pub own_beat_s: u32,
    /// Writers whose death must be written to all partitions of this home.
    pub deaths_to_write: Vec<u64>,
    /// Writers whose death is logged in partition 0 and known to all homes of this node; only at the home of partition 0.
    pub announced_deaths: Vec<u64>,
    pub partitions: Vec<Partition>,
    /// Whether the log was read to its end at the start. From then on, homes are told of each change of the messages that sessions need.
    pub counts_needs: bool,
    /// The second of this home's last check for interruptions, and the newest interruption that the home knows (`catch_up.rs`).
    pub looked_s: u32,
    pub interruption: u64,
    /// Whether all messages are kept, since some home of the node has not read to the end of the log.
    pub keeps_everything: bool,
    /// After that: the next topic whose messages are removed if nobody needs them, until all topics were visited.
    pub unneeded_from: Option<u32>,
}

/// A partition of the home.
#[derive(Clone, Copy, Default)]
pub(super) struct Partition {
    /// The kinds of notes in flight, a bit each.
    pub notes_in_flight: u32,
    /// When a record was last applied.
    pub applied_s: u32,
    /// The number of the newest page that waited for the log when the mark in flight was written; 0 if none waited.
    pub waiting_page: u64,
    pub read_to: ReadTo,
}

/// How far a home has read a partition since the last interruption.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ReadTo {
    /// The home has read the mark that was written after the interruption.
    #[default]
    End,
    /// That mark is in flight.
    MarkInFlight,
    /// That mark is not written yet.
    Unknown,
}

/// The bit of this kind of note in `Partition::notes_in_flight`.
pub(super) fn kind_bit(note: &Note<'_>) -> u32 {
    const { assert!(KINDS <= u32::BITS as usize) };
    1 << note.kind().row()
}

impl ClusterView {
    pub fn new(partitions: usize) -> Box<ClusterView> {
        Box::new(ClusterView {
            partitions: alloc::vec![Partition::default(); partitions],
            ..ClusterView::default()
        })
    }

    pub fn record_applied(&mut self, partition_index: usize, now_s: u32) {
        self.partitions[partition_index].applied_s = now_s;
    }

    /// Remembers another node that has died.
    pub fn remember(&mut self, node: NodeState) {
        if self.dead_nodes.len() == DEAD_NODES_MAX {
            self.dead_nodes.remove(0);
        }
        self.dead_nodes.push(node);
    }

    /// Forgets dead nodes whose name is used by a living node again, and nodes that died long ago.
    pub fn forget_dead(&mut self, unix_s: u32) {
        let living = &self.nodes;
        self.dead_nodes.retain(|dead| {
            let is_back = living.iter().any(|it| it.name == dead.name);
            !is_back && unix_s.saturating_sub(dead.beat_unix_s) < REMEMBERED_S
        });
    }

    /// Remembers that a writer's death must be written to the partitions of this home.
    pub fn add_death(&mut self, writer: u64) {
        if !self.deaths_to_write.contains(&writer) {
            self.deaths_to_write.push(writer);
        }
    }
}
