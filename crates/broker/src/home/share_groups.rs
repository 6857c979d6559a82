//! Shared subscriptions (MQTT 5.0 section 4.8.2): each message goes to one member of the group.
//!
//! A group has a cursor in each partition, and needs no more messages up to the cursor. A member's credit is the number of messages that the group
//! may still give to the member before the member acknowledges any. Members with credit get messages one after another. While no member has credit,
//! the cursor does not move, and messages wait in the log. A member that leaves may give unacknowledged messages back: they go to another member before
//! any newer message. QoS 2 messages, and messages to a session that outlives its connection, stay with the session [MQTT-4.8.2-4, -5].
//!
//! Invariants: a group exists while a session subscribes to it, with or without a connection. Each message that matches the group's filter is kept
//! for the group, within the limits of the log.

use crore_wire::topic;

use super::Home;
use super::context::HomeContext;
use super::filter_pages::ROWS_PER_MESSAGE;
use super::group_positions::{DuePosition, GroupKey};
use super::groups::{Group, GroupCursor, GroupJoin, Groups};
use super::partition::Partition;
use super::subscriptions::Subscriptions;
use alloc::vec::Vec;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::snapshot::{Block, Damaged, FieldReader, Origin};
use crate::base::time::Now;
use crate::base::work::STEPS_PER_VISIT;
use crate::budget::world::World;

use crate::log::arrival::Arrival;
use crate::mail::lanes::Lanes;
use crate::mail::{LeaveGroup, Record, ReplyTo, Tell, UnackedMessage};

impl Subscriptions {
    /// The filter and the name of a group.
    pub(crate) fn group_filter_and_name(&self, group: u64) -> Option<(&[u8], &[u8])> {
        self.groups.filter_and_name_of(group)
    }

    /// Removes a session without a connection that has unsubscribed or ended.
    pub(crate) fn remove_group_session(&mut self, filter: &[u8], name: &[u8]) {
        self.groups.remove_session(filter, name);
    }

    /// Writes groups from number `from` on; returns the number to continue with, if any are left.
    pub(crate) fn save_groups(&self, from: u64, block: &mut Block<'_>) -> Option<u64> {
        self.groups.save(from, block)
    }
}

impl Home {
    /// Adds a member to a group, and tells the member the group's number. Refuses the member if the disk has no room for the records of the group.
    pub(crate) fn join_group(&mut self, join: &GroupJoin<'_>, lanes: &mut Lanes, now: Now) {
        let (from, to) = join.member;
        let groups = &mut self.subscriptions.groups;
        let has_room = match join.recorded_for {
            Some(client) if groups.begins_records(join.filter, join.name) => {
                self.admission.check_disk_share(client, now.unix_s)
            }
            _ => Ok(()),
        };
        let last_offsets = self.logs.partitions.iter();
        let last_offsets = last_offsets.map(|partition| partition.sequence);
        let (id, is_new_subscriber) = match has_room {
            Ok(()) => groups.add_member(join, last_offsets),
            Err(reason) => (Err(reason), false),
        };
        lanes.frames().visits_by_group.add(join.party, 1);
        lanes.tell(
            from,
            Tell::GroupJoined {
                to,
                group: id,
                is_new_subscriber,
            },
        );
        if let Ok(id) = id {
            self.queue_group_if_ready(id);
        }
    }

    /// Adds 1 to a member's credit, since the delivery of the message with this offset of the partition is complete.
    pub(crate) fn return_group_credit(
        &mut self,
        from: ShardId,
        id: u64,
        to: ReplyTo,
        (partition, offset): (PartitionId, u64),
    ) {
        let Some(partition_index) = self.logs.partition_index_here(partition) else {
            return;
        };
        if self
            .subscriptions
            .groups
            .return_credit(id, (from, to), (partition_index, offset))
        {
            self.queue_group_if_ready(id);
        }
    }

    /// Removes a member, and takes back its unacknowledged messages.
    pub(crate) fn leave_group(&mut self, from: ShardId, leave: &LeaveGroup) {
        if self.subscriptions.groups.remove_member(from, leave) {
            self.queue_group_if_ready(leave.group);
        }
    }

    /// Gives a message to each group that [`Groups::find_due`](super::groups::Groups::find_due) has found: at once, or later when the group reads the log.
    pub(super) fn give_to_groups(
        &mut self,
        partition_index: usize,
        name: &[u8],
        record: Record,
        lanes: &mut Lanes,
    ) {
        let may_give = lanes.may_tell_group_members();
        let give = |group, member| lanes.tell_group_member(member, group, name, record);
        let is_late =
            self.subscriptions
                .groups
                .give_to_due(partition_index, record.offset, may_give, give);
        let due = if may_give {
            0
        } else {
            self.subscriptions.groups.due.len()
        };
        for n in 0..due {
            self.queue_group_if_ready(self.subscriptions.groups.due[n]);
        }
        if is_late {
            self.page_queue.queue_late_groups();
        }
    }

    /// Queues some of the late groups (groups that get a message in a later turn). If more late groups are left, their turn comes after all pages that wait
    /// now.
    pub(super) fn wake_late_groups(&mut self) {
        for id in self.subscriptions.groups.mark_late_behind() {
            self.queue_group_if_ready(id);
        }
        if self.subscriptions.groups.must_requeue_late() {
            self.page_queue.queue_late_groups();
        }
    }

    /// Queues a group if it may have messages to give.
    fn queue_group_if_ready(&mut self, id: u64) {
        if let Some(party) = self.subscriptions.groups.try_queue(id) {
            self.page_queue.queue_group(id, party);
        }
    }

    /// Restores a group from the snapshot of a home. Takes the cursors and the returned messages only of partitions that belong to this home now.
    pub(crate) fn restore_group(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
    ) -> Result<(), Damaged> {
        let old_partitions = origin.placement.of_home(origin.home);
        let count = origin.placement.count_at(origin.home);
        let mut saved = Groups::read(from, count)?;
        let (placement, me) = (self.logs.placement, self.logs.me);
        let is_here =
            topic::has_wildcard(saved.filter) || placement.home_of_name(saved.filter) == me;
        if !is_here || !origin.restores_local {
            return Ok(());
        }
        (saved.returned).retain(|unacked| placement.home_of_name(&unacked.topic) == me);
        let offsets = saved.offsets.clone();
        let cursors = old_partitions
            .zip(offsets)
            .filter_map(|(partition, offset)| {
                let is_here = placement.home_of(partition) == me;
                is_here.then(|| (placement.index_at_home(partition), offset))
            });
        self.subscriptions.groups.restore(saved, cursors);
        Ok(())
    }

    /// Adds a session that was restored from the log to its group. The group continues after its recorded positions.
    pub(crate) fn restore_group_member(&mut self, filter: &[u8], name: &[u8]) {
        let partitions = self.logs.partitions.iter();
        let last_offsets: Vec<u64> = partitions.map(|partition| partition.sequence).collect();
        self.subscriptions
            .groups
            .add_session(filter, name, &last_offsets);
    }

    /// Gives waiting messages of a group to members, as long as a member has credit, and as many as a page (a bounded run of messages) may have. Then
    /// queues the group again, if messages and credit are left.
    pub(super) fn deliver_to_group(&mut self, id: u64, context: &mut HomeContext<'_>) {
        let Some(mut group) = self.subscriptions.groups.take(id) else {
            return;
        };
        let mut messages_left = self.turn_limits.page_messages;
        // Looking up a returned message takes steps, even if the message is no longer in the log.
        let last_step = self.steps.count() + self.turn_limits.page_entries as u64;
        while group.has_credit()
            && context.lanes.may_tell_group_members()
            && messages_left > 0
            && self.steps.count() < last_step
        {
            let Some(UnackedMessage { topic, offset }) =
                self.subscriptions.groups.next_returned(&mut group)
            else {
                break;
            };
            messages_left -= 1;
            self.steps.add(STEPS_PER_VISIT);
            let lanes = &mut *context.lanes;
            let partition = self.logs.placement.partition_of(&topic);
            if let Some(record) = self.message_at(&topic, offset, lanes)
                && let Some(partition_index) = self.logs.partition_index_here(partition)
            {
                let has_records = self.subscriptions.groups.has_records();
                give_to_next_member(
                    &mut group,
                    id,
                    partition_index,
                    has_records,
                    &topic,
                    record,
                    lanes,
                );
            }
        }
        let mut visits = self.turn_limits.page_entries;
        if !group.has_returned() {
            for partition_index in group.next_behind_partitions() {
                self.give_from_log(
                    id,
                    &mut group,
                    partition_index,
                    &mut messages_left,
                    &mut visits,
                    context,
                );
            }
        }
        self.subscriptions.groups.put(id, group);
        self.queue_group_if_ready(id);
    }

    /// Gives messages of this partition to members. Subtracts them from `messages_left`, and the entries of the log that it examines from `visits`; stops
    /// when either is 0.
    fn give_from_log(
        &mut self,
        id: u64,
        group: &mut Group,
        partition_index: usize,
        messages_left: &mut usize,
        visits: &mut usize,
        context: &mut HomeContext<'_>,
    ) {
        let (rules, now) = (context.rules, context.now);
        let Partition { log, sequence, .. } = &self.logs.partitions[partition_index];
        let start = group.cursors[partition_index].offset;
        let lists = (0..rules.retained()).map(|number| (number, start));
        let mut arrivals = log.arrivals(lists, start);
        while *visits > 0 {
            *visits -= 1;
            self.steps.add(1 + ROWS_PER_MESSAGE);
            if !group.has_credit() || *messages_left == 0 || !context.lanes.may_tell_group_members()
            {
                return;
            }
            let offset = match log.next_arrival(&mut arrivals) {
                None => {
                    group.cursors[partition_index] = GroupCursor {
                        offset: *sequence,
                        is_behind: false,
                    };
                    return;
                }
                Some(Arrival::Orphaned { offset }) => offset,
                Some(Arrival::Lost { offset, topic, .. }) => {
                    let name = self.topics.names.get(self.topics.rows.get(topic).name);
                    self.reports.stats.gaps += u64::from(topic::matches(&group.filter, name));
                    offset
                }
                Some(Arrival::Kept {
                    id: entry,
                    offset,
                    topic,
                    rule,
                    time_s,
                }) => {
                    let name = self.topics.names.get(self.topics.rows.get(topic).name);
                    let matches = topic::matches(&group.filter, name);
                    if now.unix_s.saturating_sub(time_s) >= rules.get(rule).log_age_s {
                        // A message that is too old counts as lost, even if it is still in the log.
                        self.reports.stats.gaps += u64::from(matches);
                    } else if matches && !log.is_expired(entry, now.unix_s) {
                        let record = log.copy(entry, context.lanes.frames());
                        self.steps.add(STEPS_PER_VISIT);
                        *messages_left -= 1;
                        let has_records = self.subscriptions.groups.has_records();
                        give_to_next_member(
                            group,
                            id,
                            partition_index,
                            has_records,
                            name,
                            record,
                            context.lanes,
                        );
                    }
                    offset
                }
            };
            group.cursors[partition_index].offset = offset;
        }
    }

    /// A topic's message with this offset, if it is still in the log.
    fn message_at(&self, name: &[u8], offset: u64, lanes: &mut Lanes) -> Option<Record> {
        let hash = self.topics.hash_of(name);
        let id = self.topics.find(hash, name)?;
        let log = &self.logs.partitions[self.topic_partition_index(id)].log;
        let entry = log.entry_at_offset(self.topics.rows.get(id).chain, offset)?;
        Some(log.copy(entry, lanes.frames()))
    }
}

impl Home {
    /// Applies the record of a group's position from the log of this partition.
    pub(crate) fn apply_group_position(
        &mut self,
        group: GroupKey,
        partition_index: usize,
        offset: Option<u64>,
    ) {
        let partitions = self.logs.partitions.len();
        let positions = &mut self.subscriptions.groups.recorded_positions;
        positions.set(group, partition_index, partitions, offset);
    }

    /// Writes the positions of the groups that come after `after`; of all groups if it is `None`. Returns `None` if all are written, otherwise the `after`
    /// of the next call.
    pub(crate) fn save_group_positions(
        &self,
        after: Option<GroupKey>,
        block: &mut Block<'_>,
    ) -> Option<Option<GroupKey>> {
        let partitions = || self.logs.placement.of_home(self.logs.me);
        let positions = &self.subscriptions.groups.recorded_positions;
        positions.save(partitions, after, block)
    }

    /// Restores a position from a snapshot, if sessions are still recorded.
    ///
    /// # Errors
    /// The partition does not belong to the home that wrote the snapshot.
    pub(crate) fn restore_group_position(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
        world: &World,
    ) -> Result<(), Damaged> {
        let partition = from.number16()?;
        let group = GroupKey {
            filter: from.field()?.into(),
            name: from.field()?.into(),
        };
        let offset = from.number()?;
        let is_of_origin =
            partition < world.partitions && origin.placement.home_of(partition) == origin.home;
        if !is_of_origin {
            return Err(Damaged("a group's position belongs elsewhere"));
        }
        if let Some(partition_index) = self.logs.partition_index_here(partition)
            && world.recovers_sessions()
        {
            self.apply_group_position(group, partition_index, Some(offset));
        }
        Ok(())
    }

    /// The positions to record now: those of groups that have begun or ended since the last call. With `examines_all` also positions that have changed, of
    /// some of the other groups.
    pub(crate) fn take_due_positions(&mut self, examines_all: bool) -> Vec<DuePosition> {
        let logs = &self.logs;
        let partition_index_of = |topic: &[u8]| {
            let partition = logs.placement.partition_of(topic);
            logs.placement.index_at_home(partition)
        };
        let groups = &mut self.subscriptions.groups;
        let due = groups.take_due_positions(examines_all, partition_index_of);
        self.steps.add(due.len());
        due
    }
}

impl Subscriptions {
    /// Drops the recorded positions of groups that do not exist.
    pub(crate) fn drop_positions_of_ended_groups(&mut self) {
        let mut positions = core::mem::take(&mut self.groups.recorded_positions);
        positions.retain(|group| self.groups.has(&group.filter, &group.name));
        self.groups.recorded_positions = positions;
    }
}

/// Gives a message of this partition to the next member of the group with the number `id`. `has_records`: the positions of groups are recorded.
fn give_to_next_member(
    group: &mut Group,
    id: u64,
    partition_index: usize,
    has_records: bool,
    name: &[u8],
    record: Record,
    lanes: &mut Lanes,
) {
    let member = group.take_credit().expect("a member has credit");
    if has_records {
        group.add_in_flight(partition_index, record.offset, member);
    }
    lanes.tell_group_member(member, id, name, record);
}
