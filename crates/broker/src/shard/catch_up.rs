//! Makes a cluster node that has fallen behind the log keep all messages, until it has read to the end.
//!
//! The record of a session and the messages that the session needs are mostly in different partitions. After an *interruption* (the node was paused, or cut
//! off from the log) the node may read the messages first, and remove them because no session seems to need them. Then the client of the session would
//! miss these messages at this node without a notice. So after an interruption all homes of the node keep all messages. Each home writes a mark (a
//! record that only uses an offset) into each of its partitions. When all marks are read, the node is up to date. Then it removes the messages that
//! nothing needs, some topics at a time.
//!
//! A *home* is the part of a shard that keeps the topics of some partitions.
//!
//! Not covered: a node may read its own heartbeats in time, but one partition some seconds later than the others.

use crate::budget::admission::HEARTBEAT_GAP_S;
use crate::commit::record::ControlRecord;
use crate::home::qos_retention::ALL_TOPICS;
use crate::shard::Shard;
use crate::shard::cluster::NodeContext;
use crate::shard::cluster_view::{ReadTo, kind_bit};

impl Shard {
    /// Checks whether the node was interrupted. Called before the node applies the log's new records.
    pub(super) fn look_for_interruption(&mut self) {
        if let Some(mut node) = self.node_context() {
            node.look_for_interruption();
        }
    }

    /// Whether messages are left that only an interruption has kept.
    pub(super) fn has_unneeded_messages(&self) -> bool {
        let cluster = self.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.unneeded_from.is_some())
    }

    /// Removes some of the messages that only an interruption has kept. Returns whether more are left.
    pub(super) fn drop_some_unneeded_messages(&mut self) -> bool {
        let Some(node) = self.node_context() else {
            return false;
        };
        let Some(from) = node.cluster.unneeded_from else {
            return false;
        };
        let rules = &node.ctx.world.rules;
        node.cluster.unneeded_from = node.home.drop_some_unneeded(from, rules, node.ctx.now);
        node.cluster.unneeded_from.is_some()
    }
}

impl NodeContext<'_> {
    fn look_for_interruption(&mut self) {
        let (cluster, ctx) = (&mut *self.cluster, self.ctx);
        if !cluster.counts_needs {
            return;
        }
        let interruptions = &ctx.world.admission.interruptions;
        let looked_s = core::mem::replace(&mut cluster.looked_s, ctx.now.s);
        if ctx.now.s.saturating_sub(looked_s) > HEARTBEAT_GAP_S {
            interruptions.begin(ctx.now.s);
        }
        let newest = interruptions.newest();
        if cluster.interruption != newest {
            cluster.interruption = newest;
            for partition in &mut cluster.partitions {
                partition.read_to = ReadTo::Unknown;
            }
            if !cluster.keeps_everything {
                (cluster.keeps_everything, cluster.unneeded_from) = (true, None);
                self.home
                    .count_qos_subscription(0, ALL_TOPICS, true, ctx.now);
            }
        } else if cluster.keeps_everything && interruptions.is_over(newest, ctx.world.homes) {
            (cluster.keeps_everything, cluster.unneeded_from) = (false, Some(0));
            self.home
                .count_qos_subscription(0, ALL_TOPICS, false, ctx.now);
        }
    }

    /// Writes the marks up to which this home must read. Called once a second.
    pub(super) fn write_marks_of_interruption(&mut self) {
        let (admission, now) = (&self.ctx.world.admission, self.ctx.now);
        if self.cluster.counts_needs && admission.misses_heartbeats(now.unix_s) {
            admission.interruptions.begin(now.s);
        }
        self.look_for_interruption();
        for partition_index in 0..self.cluster.partitions.len() {
            let partition = self.cluster.partitions[partition_index];
            let in_flight =
                partition.control_kinds_in_flight & kind_bit(&ControlRecord::Mark(0)) != 0;
            if partition.read_to == ReadTo::Unknown && !in_flight {
                self.cluster.partitions[partition_index].read_to = ReadTo::MarkInFlight;
                self.write_control_record(partition_index, &ControlRecord::Mark(0));
            }
        }
    }

    /// Called when this home has read its mark in this partition.
    pub(super) fn mark_of_interruption_applied(&mut self, partition_index: usize) {
        let cluster = &mut *self.cluster;
        if cluster.partitions[partition_index].read_to != ReadTo::MarkInFlight {
            return;
        }
        cluster.partitions[partition_index].read_to = ReadTo::End;
        if cluster
            .partitions
            .iter()
            .all(|it| it.read_to == ReadTo::End)
        {
            let interruptions = &self.ctx.world.admission.interruptions;
            interruptions.count_read_to_end(cluster.interruption);
        }
    }
}
