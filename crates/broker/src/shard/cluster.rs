//! Writes and applies the records by which the nodes of a cluster know of one another: heartbeats, deaths of nodes, and the steward of each partition
//! (the node that makes its checkpoints). These are [control records](ControlRecord), records that change no topic.
//!
//! Words: a *home* is the part of a shard that keeps the topics of some partitions. A *writer* is a process that writes to the log, and has a number; a
//! process that was declared dead continues under the next number. A *mark* is a control record that only uses an offset. A *page* is a run of past
//! messages that a subscriber waits for. A *fact* is a publish or a change of a topic.
//!
//! Each second every node writes a heartbeat into partition 0. If a node reads its own heartbeats, but none of another node for some
//! seconds, it declares the other node dead: it writes a death record into partition 0, and later into all other partitions. A control record takes
//! effect at all nodes at the same position of the log. The clock of a node only decides whether and when the node writes a control record.
//!
//! Invariants: at most one control record of each kind is in flight in a partition, so a node that is cut off does not accumulate control records. A node that
//! reads that its own writer is dead continues as a new writer, and appends all records in flight again. The first copies are void, since they come
//! after the death in the log, so each record takes effect once.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::OFFSETS_PER_BATCH;
use crate::budget::admission::HEARTBEAT_GAP_S;
use crate::commit::batch::StoredHeader;
use crate::commit::queue::CommitQueues;
use crate::commit::record::{ControlRecord, Heartbeat};
use crate::home::{GroupKey, Home, ONLY_HOMES_ARE_ASKED};
use crate::mail::Ask;
use crate::mail::orders::{ClusterState, NodeState, PartitionState};
use crate::protocol::front::{Context, Lanes};
use crate::shard::Shard;
use crate::shard::cluster_view::{ClusterView, kind_bit};
use crate::shard::pending_request::PendingRequest;

/// The partition of the heartbeats.
const HEARTBEAT_PARTITION: u16 = 0;
/// A node is declared dead after this many seconds without a heartbeat.
const SILENT_S: u32 = 5;
/// The steward writes a mark into a partition that has had no record for this many seconds. Idempotency keys expire by the log's clock, and only records
/// advance this clock.
const IDLE_S: u32 = 60;
/// The maximum number of dead writers that are announced to the homes in one second.
const DEATHS_PER_TICK: usize = 16;
/// The maximum number of nodes that are remembered.
const NODES_MAX: usize = 256;

/// The parts of a shard that are needed to write and apply control records.
pub(super) struct NodeContext<'a> {
    pub cluster: &'a mut ClusterView,
    commits: &'a mut CommitQueues<PendingRequest>,
    pub home: &'a mut Home,
    pub ctx: &'a Context,
    lanes: &'a mut Lanes,
}

impl Shard {
    /// The context for control records; `None` without a cluster.
    pub(super) fn node_context(&mut self) -> Option<NodeContext<'_>> {
        Some(NodeContext {
            cluster: self.cluster.as_deref_mut()?,
            commits: &mut self.commits,
            home: self.home.as_mut()?,
            ctx: &self.front.clients.ctx,
            lanes: &mut self.front.subs.lanes,
        })
    }

    /// Applies the control record at this offset of this partition. Returns false if the control record is void.
    pub(super) fn apply_control_record(
        &mut self,
        partition_index: usize,
        stored: &StoredHeader,
        control: &ControlRecord<'_>,
        offset: u64,
    ) -> bool {
        let home = self.home.as_mut().expect(ONLY_HOMES_ARE_ASKED);
        let mark = match control {
            ControlRecord::Mark(until) => *until,
            _ => 0,
        };
        home.logs
            .skip_record(partition_index, offset, stored.header.unix_s, mark);
        match control {
            ControlRecord::Mark(_) => {}
            ControlRecord::Release(release) => {
                return home.apply_release(*release, partition_index);
            }
            ControlRecord::Group(group) => {
                let key = GroupKey {
                    filter: group.filter.into(),
                    name: group.name.into(),
                };
                home.apply_group_position(key, partition_index, group.offset);
            }
            ControlRecord::Start => {
                self.release_sessions_at_start(partition_index, stored.header.unix_s)
            }
            ControlRecord::Steward(writer) => {
                home.logs
                    .writer_set(partition_index)
                    .claim_stewardship(*writer);
                self.update_steward(partition_index);
            }
            ControlRecord::Heartbeat(beat) => {
                if let Some(mut node) = self.node_context() {
                    node.apply_heartbeat(partition_index, stored, beat, offset);
                }
            }
            ControlRecord::Dead(writer) => {
                let is_new = home.logs.writer_set(partition_index).declare_dead(*writer);
                if self.commits.writer(partition_index) == *writer {
                    self.commits.restart_as_next_writer(partition_index);
                }
                self.release_sessions_of(partition_index, *writer);
                self.update_steward(partition_index);
                if is_new && let Some(mut node) = self.node_context() {
                    node.apply_death(partition_index, *writer);
                }
            }
        }
        true
    }
}

impl NodeContext<'_> {
    fn is_cut_off(&self) -> bool {
        let now_s = self.ctx.now.unix_s;
        self.ctx.world.admission.is_cut_off(now_s)
    }

    /// Writes the control records that are due. Called once a second.
    pub(super) fn tick(&mut self) {
        let placement = self.ctx.world.placement();
        let own_shard = self.ctx.own_shard;
        self.write_marks_of_interruption();
        for (partition_index, _) in placement.of_home(own_shard).enumerate() {
            self.write_missing_death(partition_index);
            self.offer_steward(partition_index);
            self.write_mark_for_pages(partition_index);
        }
        self.forget_written_deaths();
        if placement.home_of(HEARTBEAT_PARTITION) == own_shard {
            let partition_index = placement.index_at_home(HEARTBEAT_PARTITION);
            self.announce_deaths(partition_index);
            self.write_heartbeat(partition_index);
        }
    }

    /// Tells this node's homes which writers are dead, so that they write the deaths into their partitions. The dead writers are taken from the state of
    /// partition 0 and not from each death record as it is read: a node that starts from a later checkpoint does not read the record, and the nodes that
    /// have read it may have stopped before they wrote the death into the other partitions.
    fn announce_deaths(&mut self, partition_index: usize) {
        let (writer_set, announced) = (
            self.home.logs.writer_set(partition_index),
            &mut self.cluster.announced_deaths,
        );
        announced.retain(|writer| writer_set.is_dead(*writer));
        let new = writer_set
            .dead()
            .filter(|writer| !announced.contains(writer));
        let new: Vec<u64> = new.take(DEATHS_PER_TICK).collect();
        for writer in new {
            self.cluster.announced_deaths.push(writer);
            for home in 0..self.ctx.world.homes {
                match home == self.ctx.own_shard {
                    true => self.cluster.add_death(writer),
                    false => self.lanes.ask(home, |_| Ask::DeclareWriterDead(writer)),
                }
            }
        }
    }

    fn write_heartbeat(&mut self, partition_index: usize) {
        let world = self.ctx.world.clone();
        let node = &world.settings.node;
        let beat = Heartbeat {
            name: node.name.as_bytes(),
            admin_address: node.admin_address.as_bytes(),
            connections: world.admission.connections().into(),
        };
        self.write_control_record(partition_index, &ControlRecord::Heartbeat(beat));
        let (own, now_s) = (self.commits.writer(partition_index), self.ctx.now.s);
        let cluster = &self.cluster;
        let reads_own_beats =
            cluster.own_beat_s > 0 && now_s - cluster.own_beat_s <= HEARTBEAT_GAP_S;
        let is_silent = |node: &&NodeState| {
            node.writer != own && now_s - node.beat_s.max(cluster.own_beats_since_s) >= SILENT_S
        };
        let silent = cluster.nodes.iter().find(is_silent).map(|node| node.writer);
        let silent = silent
            .or_else(|| self.silent_since_start(partition_index))
            .filter(|_| reads_own_beats);
        if let Some(writer) = silent {
            self.write_control_record(partition_index, &ControlRecord::Dead(writer));
        }
    }

    /// A writer that counts as living although this node has read none of its heartbeats since the start. So the writer's node died before the
    /// checkpoint from which this node started, and its death was not recorded.
    fn silent_since_start(&mut self, partition_index: usize) -> Option<u64> {
        let (cluster, home) = (&self.cluster, &mut self.home);
        let waited = self.ctx.now.s - cluster.own_beats_since_s >= SILENT_S;
        let is_heard = |writer: &u64| cluster.nodes.iter().any(|it| it.writer == *writer);
        let living = home.logs.writer_set(partition_index).living();
        let own = self.commits.writer(partition_index);
        let mut silent_since_start = living.filter(|writer| *writer != own && !is_heard(writer));
        silent_since_start.next().filter(|_| waited)
    }

    /// Writes the death of the next dead writer that still counts as living in this partition.
    fn write_missing_death(&mut self, partition_index: usize) {
        if self.is_cut_off() {
            // This node may be behind in the log, which may already have death records of other nodes for the same writers.
            return;
        }
        let writer_set = self.home.logs.writer_set(partition_index);
        let missing = self
            .cluster
            .deaths_to_write
            .iter()
            .find(|it| !writer_set.is_dead(**it));
        if let Some(writer) = missing.copied() {
            self.write_control_record(partition_index, &ControlRecord::Dead(writer));
        }
    }

    fn forget_written_deaths(&mut self) {
        let (partition_count, home) = (self.cluster.partitions.len(), &mut self.home);
        let mut is_written =
            |writer| (0..partition_count).all(|at| home.logs.writer_set(at).is_dead(writer));
        self.cluster
            .deaths_to_write
            .retain(|writer| !is_written(*writer));
    }

    /// Offers this node as steward of a partition that has no steward. As steward, writes a mark if the partition has been idle.
    fn offer_steward(&mut self, partition_index: usize) {
        let own = self.commits.writer(partition_index);
        let (steward, now_s) = (
            self.home.logs.writer_set(partition_index).steward,
            self.ctx.now.s,
        );
        let applied_s = self.cluster.partitions[partition_index].applied_s;
        match steward {
            // Only while the node reaches the log: if a steward has never sent a heartbeat, other nodes do not notice its death.
            None if !self.is_cut_off() => {
                self.write_control_record(partition_index, &ControlRecord::Steward(own))
            }
            None => {}
            Some(steward) if steward == own && now_s - applied_s >= IDLE_S => {
                self.write_control_record(partition_index, &ControlRecord::Mark(0));
            }
            Some(_) => {}
        }
    }

    /// Writes a mark if subscriptions wait for positions that this node has not reached. All records that other nodes have read come before
    /// the mark. So when this node reads the mark, it has reached every position that exists, and subscriptions that still wait get a gap.
    fn write_mark_for_pages(&mut self, partition_index: usize) {
        let Some(newest_page) = self.home.newest_future_page(partition_index) else {
            return;
        };
        let partition = &mut self.cluster.partitions[partition_index];
        if partition.control_kinds_in_flight & kind_bit(&ControlRecord::Mark(0)) == 0 {
            partition.newest_waiting_page = newest_page;
            self.write_control_record(partition_index, &ControlRecord::Mark(0));
        }
    }

    /// Writes a control record, unless a control record of the same kind is in flight.
    pub(super) fn write_control_record(
        &mut self,
        partition_index: usize,
        control: &ControlRecord<'_>,
    ) {
        let partition = &mut self.cluster.partitions[partition_index];
        if partition.control_kinds_in_flight & kind_bit(control) != 0 {
            return;
        }
        partition.control_kinds_in_flight |= kind_bit(control);
        let sequence = self.home.logs.sequence(partition_index);
        self.commits
            .push_control_record(partition_index, self.ctx.now, sequence, control);
    }

    /// Writes a mark when facts without a record have used half of the offsets that are free after the last batch. The batch of the mark has new free
    /// offsets after it.
    pub(super) fn renew_offsets(&mut self, partition_index: usize) {
        if self.home.logs.sequence(partition_index) % OFFSETS_PER_BATCH >= OFFSETS_PER_BATCH / 2 {
            self.write_control_record(partition_index, &ControlRecord::Mark(0));
        }
    }

    /// Called after a control record of this process was applied: the control record is no longer in flight. After a mark, subscriptions that still wait get a gap.
    pub(super) fn after_own_control_record(
        &mut self,
        partition_index: usize,
        control: &ControlRecord<'_>,
    ) {
        let partition = &mut self.cluster.partitions[partition_index];
        let was_in_flight = partition.control_kinds_in_flight & kind_bit(control) != 0;
        partition.control_kinds_in_flight &= !kind_bit(control);
        if !was_in_flight || !matches!(control, ControlRecord::Mark(_)) {
            return;
        }
        let newest_page = core::mem::take(&mut partition.newest_waiting_page);
        if newest_page > 0 {
            self.home.give_up_positions(partition_index, newest_page);
        }
        self.mark_of_interruption_applied(partition_index);
    }

    fn apply_heartbeat(
        &mut self,
        partition_index: usize,
        stored: &StoredHeader,
        beat: &Heartbeat<'_>,
        offset: u64,
    ) {
        let header = &stored.header;
        let (now, own) = (self.ctx.now, self.commits.writer(partition_index));
        let cluster = &mut self.cluster;
        let node = NodeState {
            writer: header.writer,
            is_self: header.writer == own,
            name: beat.name.into(),
            admin_address: beat.admin_address.into(),
            connections: beat.connections,
            offset,
            beat_s: now.s,
            beat_unix_s: header.unix_s,
            ahead_s: i64::from(stored.admitted_unix_s) - i64::from(header.unix_s),
        };
        cluster.nodes.retain(|it| it.writer != header.writer);
        if cluster.nodes.len() == NODES_MAX {
            cluster.nodes.remove(0);
        }
        cluster.nodes.push(node);
        if header.writer == own {
            if cluster.own_beat_s == 0 || now.s - cluster.own_beat_s > HEARTBEAT_GAP_S {
                cluster.own_beats_since_s = now.s;
            }
            cluster.own_beat_s = now.s;
            self.ctx.world.admission.note_heartbeat(now.unix_s);
        }
    }

    /// Moves the node of a dead writer from the living to the dead nodes, if this is the partition of the heartbeats.
    fn apply_death(&mut self, partition_index: usize, writer: u64) {
        let cluster = &mut self.cluster;
        let placement = self.ctx.world.placement();
        let has_heartbeats = placement.home_of(HEARTBEAT_PARTITION) == self.ctx.own_shard
            && placement.index_at_home(HEARTBEAT_PARTITION) == partition_index;
        if !has_heartbeats {
            return;
        }
        let dead = cluster.nodes.iter().position(|it| it.writer == writer);
        match dead.map(|at| cluster.nodes.remove(at)) {
            Some(node) if node.is_self => {
                (cluster.own_beats_since_s, cluster.own_beat_s) = (0, 0);
            }
            Some(node) => cluster.remember(node),
            None => {}
        }
    }

    /// This home's view of the cluster, for operators.
    pub(super) fn state(&mut self) -> Box<ClusterState> {
        self.cluster.forget_dead(self.ctx.now.unix_s);
        let home = &mut self.home;
        let all = self.ctx.world.placement().of_home(self.ctx.own_shard);
        let partitions = all.enumerate().map(|(at, partition)| PartitionState {
            partition,
            offset: home.logs.writer_set(at).last_offset,
            writer: self.commits.writer(at),
            steward: home.logs.writer_set(at).steward,
        });
        Box::new(ClusterState {
            partitions: partitions.collect(),
            nodes: self.cluster.nodes.clone(),
            dead_nodes: self.cluster.dead_nodes.clone(),
            unix_s: self.ctx.now.unix_s,
            is_cut_off: self.is_cut_off(),
        })
    }
}
