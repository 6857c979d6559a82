//! What a home (the part of a shard that keeps topics) knows of the other nodes of the cluster. `cluster.rs` updates it.
//!
//! Words: a *writer* is a process that writes to the log, and has a number. A *control record* is a record that changes no topic. A *mark* is a control record that only
//! uses an offset. A *page* is a run of past messages that a subscriber waits for.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::record_kind::KINDS;
use crate::commit::record::ControlRecord;
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
    /// The second in which this node read the first of its own heartbeats since the last interruption; 0 before the first heartbeat.
    pub own_beats_since_s: u32,
    /// The second in which this node read the latest of its own heartbeats; 0 before the first heartbeat.
    pub own_beat_s: u32,
    /// Writers whose death must be written to all partitions of this home.
    pub deaths_to_write: Vec<u64>,
    /// Writers whose death is logged in partition 0 and known to all homes of this node; only at the home of partition 0.
    pub announced_deaths: Vec<u64>,
    pub partitions: Vec<Partition>,
    /// Whether this start has read the log to its end. From then on, homes are told of each change of the messages that sessions need.
    pub counts_needs: bool,
    /// The second of this home's last check for interruptions (`catch_up.rs`).
    pub looked_s: u32,
    /// The newest interruption that the home knows.
    pub interruption: u64,
    /// Whether all messages are kept, since some home of the node has not read to the end of the log.
    pub keeps_everything: bool,
    /// Once all homes have read to the end: the row of the next topic whose unneeded messages are removed. `None` when all topics were visited.
    pub unneeded_from: Option<u32>,
}

/// A partition of the home.
#[derive(Clone, Copy, Default)]
pub(super) struct Partition {
    /// The kinds of control records in flight, one bit for each.
    pub control_kinds_in_flight: u32,
    /// When a record was last applied.
    pub applied_s: u32,
    /// The number of the newest page that waited for the log when the mark in flight was written; 0 if none waited.
    pub newest_waiting_page: u64,
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

/// The bit of this kind of control record in `Partition::control_kinds_in_flight`.
pub(super) fn kind_bit(control: &ControlRecord<'_>) -> u32 {
    const { assert!(KINDS <= u32::BITS as usize) };
    1 << control.kind().row()
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
