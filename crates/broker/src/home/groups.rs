//! The groups of shared subscriptions at a home (the part of a shard that keeps topics): their members, cursors, and returned messages. `share_groups.rs`
//! gives them messages. A member's *credit* is the number of messages that the member may still get before it acknowledges any. A group is *late* if it
//! gets the message being published in a later turn (a pass of the shard's loop), see `groups/lists.rs`.
//!
//! Invariants: a group exists while a session subscribes to it, with or without a connection. Group numbers are never reused.
//!
//! A *party* is an address or a user, and gets a fair share of the work.

mod lists;
mod members;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crore_wire::topic;

use super::group_positions::{DuePosition, GroupKey, GroupPositions};
use crate::base::ids::ShardId;
use crate::base::reason::Reason;
use crate::base::snapshot::{Block, Damaged, FieldReader, kind};
use crate::base::work::{STEPS_PER_VISIT, Steps};
use crate::budget::admission::{Client, Party};
use crate::filters::{Filters, RESTORED};
use crate::mail::{LeaveGroup, UnackedMessage};
use lists::GroupsByFilter;
pub(super) use members::Member;
use members::Members;

/// A group's read position in a partition.
#[derive(Clone, Copy)]
pub(super) struct GroupCursor {
    /// The group needs no more messages up to this offset: they were given to members, do not match the filter, or are older than the group.
    pub offset: u64,
    /// Whether the log may have later messages for the group.
    pub is_behind: bool,
}

/// A shared subscription.
pub(super) struct Group {
    pub filter: Box<[u8]>,
    name: Arc<[u8]>,
    /// The filter's row in [`Groups::filters`].
    filter_row: u32,
    /// The number of sessions that subscribe, with or without a connection.
    sessions: u32,
    members: Members,
    /// The cursors, by partition of the home.
    pub cursors: Box<[GroupCursor]>,
    /// The partition that is read first next time.
    next_partition: usize,
    /// Whether the group is in the queue of pages (bounded runs of messages to read).
    is_queued: bool,
    /// Messages that members gave back.
    returned: VecDeque<UnackedMessage>,
    /// If positions are recorded: the messages in flight to members, by index of the partition and offset.
    in_flight: BTreeMap<(usize, u64), Member>,
    /// The client that is charged for the records of the group's positions; `None` if no member's session is recorded, so that the group has no records.
    recorded_for: Option<Client>,
}

/// A group whose records have begun, or that has ended.
struct ChangedGroup {
    key: GroupKey,
    /// The client that is charged for the records.
    owner: Client,
}

impl Group {
    fn key(&self) -> GroupKey {
        GroupKey {
            filter: self.filter.clone(),
            name: (&*self.name).into(),
        }
    }

    /// Takes one credit from the next member with credit, and returns that member.
    pub fn take_credit(&mut self) -> Option<Member> {
        self.members.take_credit()
    }

    /// Adds a message of this partition that was given to a member. Called only if positions are recorded.
    pub fn add_in_flight(&mut self, partition_index: usize, offset: u64, member: Member) {
        self.in_flight.insert((partition_index, offset), member);
    }

    /// The offset up to which the group needs no message of this partition any more: none is in flight, and none waits for a member.
    /// `partition_index_of` gives the index of a topic's partition.
    fn delivered_until(
        &self,
        partition_index: usize,
        partition_index_of: impl Fn(&[u8]) -> usize,
    ) -> u64 {
        let given = self
            .in_flight
            .range((partition_index, 0)..=(partition_index, u64::MAX));
        let given = given.map(|((_, offset), _)| *offset).next();
        let returned = self.returned.iter();
        let returned =
            returned.filter(|unacked| partition_index_of(&unacked.topic) == partition_index);
        let first_undelivered = returned.map(|unacked| unacked.offset).chain(given).min();
        let cursor = self.cursors[partition_index].offset;
        first_undelivered.map_or(cursor, |open| cursor.min(open.saturating_sub(1)))
    }

    /// The partitions whose logs may have later messages for the group. Each call begins with another partition, so that all partitions are read
    /// equally.
    pub fn next_behind_partitions(&mut self) -> Vec<usize> {
        let count = self.cursors.len();
        let first = self.next_partition;
        self.next_partition = (first + 1) % count;
        let all = (0..count).map(move |n| (first + n) % count);
        all.filter(|partition_index| self.cursors[*partition_index].is_behind)
            .collect()
    }

    pub fn has_credit(&self) -> bool {
        self.members.has_credit()
    }

    /// Whether returned messages wait for a member.
    pub fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// Heap bytes of the group and of its entry in the filter's list, without the topic names of returned messages.
    fn own_bytes(&self) -> usize {
        ENTRY_BYTES
            + self.filter.len()
            + self.name.len()
            + self.members.bytes()
            + size_of_val(&*self.cursors)
            + self.returned.capacity() * size_of::<UnackedMessage>()
            + self.in_flight.len() * IN_FLIGHT_BYTES
    }

    /// Whether the group has messages to give and a member with credit.
    fn can_give(&self) -> bool {
        (self.is_behind() || self.has_returned()) && self.has_credit()
    }

    /// Whether a log may have messages for the group.
    pub fn is_behind(&self) -> bool {
        self.cursors.iter().any(|cursor| cursor.is_behind)
    }
}

/// Memory of a message that was given: leaves of a `BTreeMap` are two thirds full.
const IN_FLIGHT_BYTES: usize = 3 * size_of::<((usize, u64), Member)>() / 2;
/// The maximum number of groups whose positions one call compares with the recorded positions, and of groups with recorded positions that it examines.
const GROUPS_PER_CALL: usize = 256;

/// Bytes of a group's entries in the tree of groups and in its filter's list. A new group number is always the highest, so the leaves of the tree are
/// half full.
const ENTRY_BYTES: usize = 2 * (size_of::<Group>() + size_of::<u64>()) + lists::NAME_BYTES;

/// The maximum number of sessions of a group in a snapshot: so low that the count cannot overflow when more sessions join.
const SAVED_SESSIONS_MAX: u32 = 1 << 31;

/// Bytes of a group with one member at one home, if no other group has the same filter.
pub(crate) fn bytes_alone(name: &[u8], filter: &[u8]) -> usize {
    let member = size_of::<Member>() + size_of::<GroupCursor>();
    ENTRY_BYTES
        + lists::LIST_BYTES
        + member
        + name.len()
        + filter.len()
        + Filters::bytes_alone(filter)
}

/// Bytes of the topic names of returned messages.
fn topic_name_bytes<'a>(all: impl IntoIterator<Item = &'a UnackedMessage>) -> usize {
    all.into_iter().map(|unacked| unacked.topic.len()).sum()
}

/// A member that joins a group.
pub(crate) struct GroupJoin<'a> {
    pub filter: &'a [u8],
    pub name: &'a [u8],
    pub member: Member,
    pub credit: u32,
    /// The party that is charged for the member's messages.
    pub party: Party,
    /// Whether this is the session's first subscription to the group.
    pub is_new: bool,
    /// The client that is charged for the group's records; `None` if the member's session is not recorded.
    pub recorded_for: Option<Client>,
}

/// A group as read from a snapshot.
pub(super) struct SavedGroup<'a> {
    pub filter: &'a [u8],
    name: &'a [u8],
    sessions: u32,
    /// The group's cursors at the home that wrote the snapshot, by partition.
    pub offsets: Vec<u64>,
    /// Messages that members gave back.
    pub returned: Vec<UnackedMessage>,
}

/// The groups of a home.
pub(super) struct Groups {
    filters: Filters,
    lists: GroupsByFilter,
    groups: BTreeMap<u64, Group>,
    /// The number of the home's partitions.
    partition_count: usize,
    /// The number of the newest group.
    newest_id: u64,
    /// Bytes of all groups, without the filters.
    bytes: usize,
    /// The groups that get the message being published.
    pub due: Vec<u64>,
    /// The lists of the groups for which the message being published is late.
    late_lists: Vec<u32>,
    /// Whether the page queue has an entry for the late groups.
    is_late_queued: bool,
    /// Whether the log has the positions of groups with recorded sessions.
    has_records: bool,
    /// The recorded positions.
    pub recorded_positions: GroupPositions,
    /// Groups with records that have begun or ended since their positions were last recorded.
    changed: Vec<ChangedGroup>,
    /// The group to examine next.
    next_examined: u64,
    /// The last group with recorded positions that was examined, to find groups that have ended.
    last_recorded: Option<GroupKey>,
    steps: Steps,
}

impl Groups {
    /// No groups, at a home with this number of partitions. `has_records`: the log has the positions of groups with recorded sessions.
    pub fn new(seed: u64, partitions: usize, has_records: bool, steps: &Steps) -> Self {
        Groups {
            filters: Filters::new(seed, steps),
            lists: GroupsByFilter::default(),
            groups: BTreeMap::new(),
            partition_count: partitions,
            newest_id: 0,
            bytes: 0,
            due: Vec::new(),
            late_lists: Vec::new(),
            is_late_queued: false,
            has_records,
            recorded_positions: GroupPositions::default(),
            changed: Vec::new(),
            next_examined: 0,
            last_recorded: None,
            steps: steps.clone(),
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub fn len(&self) -> u32 {
        self.groups.len() as u32
    }

    /// Bytes of groups, filters, members and returned messages.
    pub fn bytes(&self) -> usize {
        let lists = self.filters.len() as usize * lists::LIST_BYTES;
        self.bytes + lists + self.filters.bytes() + self.recorded_positions.bytes()
    }

    /// Changes a group by `add`, and counts the bytes by which the group grows. `add` returns the bytes of topic names that it adds.
    fn change_and_count(&mut self, id: u64, add: impl FnOnce(&mut Group) -> usize) {
        if let Some(group) = self.groups.get_mut(&id) {
            let old_bytes = group.own_bytes();
            self.bytes += add(group);
            self.bytes += group.own_bytes() - old_bytes;
        }
    }

    /// See [`Filters::prefetch`].
    pub fn prefetch<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        self.filters.prefetch(topics);
    }

    /// Finds the groups that get a message; returns whether there are any.
    pub fn find_due(&mut self, name: &[u8]) -> bool {
        let (lists, due, late) = (&self.lists, &mut self.due, &mut self.late_lists);
        due.clear();
        late.clear();
        let filters = &self.filters;
        filters.matches(name, |row| lists.push_due(filters.value(row), due, late));
        !(due.is_empty() && late.is_empty())
    }

    /// The filter and the name of a group.
    pub fn filter_and_name_of(&self, id: u64) -> Option<(&[u8], &[u8])> {
        let group = self.groups.get(&id)?;
        Some((&group.filter, &group.name))
    }

    fn id_of(&self, filter: &[u8], name: &[u8]) -> Option<u64> {
        let row = self.filters.find(filter)?;
        self.lists.find(self.filters.value(row), name)
    }

    fn create(
        &mut self,
        filter: &[u8],
        name: &[u8],
        party: u64,
        offsets: impl Iterator<Item = u64>,
    ) -> Result<u64, Reason> {
        let row = self.filters.open(filter, party)?;
        self.newest_id += 1;
        let id = self.newest_id;
        let name: Arc<[u8]> = name.into();
        let list = (self.lists).add(self.filters.value(row), Arc::clone(&name), id);
        self.filters.set_value(row, list);
        let cursor = |offset| GroupCursor {
            offset,
            is_behind: false,
        };
        let group = Group {
            filter: filter.into(),
            name,
            filter_row: row,
            sessions: 0,
            members: Members::default(),
            cursors: offsets.map(cursor).collect(),
            next_partition: 0,
            is_queued: false,
            returned: VecDeque::new(),
            in_flight: BTreeMap::new(),
            recorded_for: None,
        };
        self.bytes += group.own_bytes();
        self.groups.insert(id, group);
        Ok(id)
    }

    /// Like `create`, for a group whose sessions were restored. If sessions are recorded, all these are.
    fn create_restored(
        &mut self,
        filter: &[u8],
        name: &[u8],
        offsets: impl Iterator<Item = u64>,
    ) -> Option<u64> {
        let id = self.create(filter, name, RESTORED, offsets).ok()?;
        if self.has_records {
            self.record_for(id, Client::NOBODY);
        }
        Some(id)
    }

    /// Records the positions of a group from now on, and charges this client for them, unless another client is charged already.
    fn record_for(&mut self, id: u64, client: Client) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        match group.recorded_for {
            Some(owner) if owner.is_known() => {}
            Some(_) => group.recorded_for = Some(client),
            None => {
                group.recorded_for = Some(client);
                self.changed.push(ChangedGroup {
                    key: group.key(),
                    owner: client,
                });
            }
        }
    }

    /// Whether the log gets records of a group that it had none of, when a member with a recorded session joins.
    pub fn begins_records(&self, filter: &[u8], name: &[u8]) -> bool {
        let group = self.id_of(filter, name).and_then(|id| self.groups.get(&id));
        self.has_records && group.is_none_or(|group| group.recorded_for.is_none())
    }

    /// Adds a member. If the group does not exist, creates a group that begins after `offsets`, one for each partition. Returns the group or why there is
    /// no room for it, and whether the session was counted as a new one.
    pub fn add_member(
        &mut self,
        join: &GroupJoin<'_>,
        offsets: impl Iterator<Item = u64>,
    ) -> (Result<u64, Reason>, bool) {
        let GroupJoin {
            filter,
            name,
            member,
            credit,
            party,
            is_new,
            recorded_for,
        } = *join;
        let existing = self.id_of(filter, name);
        // The group may have ended since the session subscribed. Then the session counts as new.
        let is_new_subscriber = is_new || existing.is_none();
        let id = match existing {
            Some(id) => Ok(id),
            None => self.create(filter, name, party.number(), offsets),
        };
        if let Ok(id) = id {
            if let Some(client) = recorded_for {
                self.record_for(id, client);
            }
            self.change_and_count(id, |group| {
                group.sessions += u32::from(is_new_subscriber);
                group.members.add(member, party, credit);
                0
            });
        }
        (id, is_new_subscriber)
    }

    /// Counts another session without a connection that subscribes to this group. A new group continues after its recorded positions. In a partition
    /// without a recorded position it continues after the partition's last offset, which `last_offsets` has.
    pub fn add_session(&mut self, filter: &[u8], name: &[u8], last_offsets: &[u64]) {
        let existing = self.id_of(filter, name);
        let is_new = existing.is_none();
        let id =
            existing.or_else(|| self.create_restored(filter, name, last_offsets.iter().copied()));
        let key = GroupKey {
            filter: filter.into(),
            name: name.into(),
        };
        let recorded = self.recorded_positions.get(&key);
        let Some(group) = id.and_then(|id| self.groups.get_mut(&id)) else {
            return;
        };
        group.sessions += 1;
        for (cursor, offset) in group.cursors.iter_mut().zip(recorded) {
            if let Some(offset) = offset.filter(|_| is_new) {
                *cursor = GroupCursor {
                    offset: cursor.offset.min(offset),
                    is_behind: true,
                };
            }
        }
    }

    /// Adds 1 to a member's credit, since the delivery of this message is complete. Returns false if the member has left.
    pub fn return_credit(
        &mut self,
        id: u64,
        member: Member,
        (partition_index, offset): (usize, u64),
    ) -> bool {
        let Some(group) = self.groups.get_mut(&id) else {
            return false;
        };
        let was_given = group.in_flight.remove(&(partition_index, offset)).is_some();
        self.bytes -= usize::from(was_given) * IN_FLIGHT_BYTES;
        group.members.add_credit(member, 1)
    }

    /// Whether this group exists.
    pub fn has(&self, filter: &[u8], name: &[u8]) -> bool {
        self.id_of(filter, name).is_some()
    }

    /// See [`Home::take_due_positions`](super::Home::take_due_positions). `partition_index_of` gives the index of a topic's partition.
    pub fn take_due_positions(
        &mut self,
        examines_all: bool,
        partition_index_of: impl Fn(&[u8]) -> usize,
    ) -> Vec<DuePosition> {
        let mut due = Vec::new();
        for ChangedGroup { key, owner } in core::mem::take(&mut self.changed) {
            match self.id_of(&key.filter, &key.name) {
                Some(id) => self.push_changed_positions(id, &partition_index_of, &mut due),
                None => self.push_end(&key, owner, &mut due),
            }
        }
        if examines_all {
            let next = self.groups.range(self.next_examined..);
            let ids: Vec<u64> = next.map(|(id, _)| *id).take(GROUPS_PER_CALL).collect();
            self.next_examined = match ids.last() {
                Some(last) if ids.len() == GROUPS_PER_CALL => last + 1,
                _ => 0,
            };
            for id in ids {
                self.push_changed_positions(id, &partition_index_of, &mut due);
            }
            self.push_late_ends(&mut due);
        }
        due
    }

    /// Adds the recorded positions of a group that has ended to `due`.
    fn push_end(&self, key: &GroupKey, owner: Client, due: &mut Vec<DuePosition>) {
        let positions = self.recorded_positions.get(key).iter().enumerate();
        let recorded = positions.filter(|(_, position)| position.is_some());
        due.extend(recorded.map(|(partition_index, _)| DuePosition {
            partition_index,
            group: key.clone(),
            offset: None,
            owner,
            may_wait: true,
        }));
    }

    /// Adds the recorded positions of some groups whose end was not recorded yet, since there was no room for it.
    fn push_late_ends(&mut self, due: &mut Vec<DuePosition>) {
        for _ in 0..GROUPS_PER_CALL {
            let after = self.last_recorded.take();
            let Some(key) = self.recorded_positions.next_group(after.as_ref()).cloned() else {
                return;
            };
            self.steps.add(1);
            if !self.has(&key.filter, &key.name) {
                self.push_end(&key, Client::NOBODY, due);
            }
            self.last_recorded = Some(key);
        }
    }

    /// Adds the positions of a group that differ from its recorded positions to `due`.
    fn push_changed_positions(
        &self,
        id: u64,
        partition_index_of: &impl Fn(&[u8]) -> usize,
        due: &mut Vec<DuePosition>,
    ) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let Some(owner) = group.recorded_for else {
            return;
        };
        let key = group.key();
        let recorded = self.recorded_positions.get(&key);
        let only_partition = match topic::has_wildcard(&group.filter) {
            true => None,
            false => Some(partition_index_of(&group.filter)),
        };
        self.steps.add(group.cursors.len() + group.returned.len());
        for partition_index in 0..group.cursors.len() {
            if only_partition.is_some_and(|only| only != partition_index) {
                continue;
            }
            let offset = Some(group.delivered_until(partition_index, partition_index_of));
            let earlier = recorded.get(partition_index).copied().flatten();
            if earlier != offset {
                let group = key.clone();
                due.push(DuePosition {
                    partition_index,
                    group,
                    offset,
                    owner,
                    may_wait: earlier.is_some(),
                });
            }
        }
    }

    /// Removes a member and takes back its unacknowledged messages. Returns whether the group still exists.
    pub fn remove_member(&mut self, from: ShardId, leave: &LeaveGroup) -> bool {
        let LeaveGroup {
            group: id,
            to,
            ref unacked,
            ends,
        } = *leave;
        self.change_and_count(id, |group| {
            group.returned.extend(unacked.iter().cloned());
            topic_name_bytes(unacked)
        });
        let Some(group) = self.groups.get_mut(&id) else {
            return false;
        };
        let old_bytes = group.own_bytes();
        group.members.remove((from, to));
        // Messages that the member does not give back stay with its session.
        group.in_flight.retain(|_, member| *member != (from, to));
        self.bytes -= old_bytes - group.own_bytes();
        group.sessions -= u32::from(ends);
        if group.sessions == 0 {
            self.remove(id);
            return false;
        }
        true
    }

    /// Removes a session without a connection that has unsubscribed or ended.
    pub fn remove_session(&mut self, filter: &[u8], name: &[u8]) {
        let Some(id) = self.id_of(filter, name) else {
            return;
        };
        let group = self.groups.get_mut(&id).expect("it was just found");
        group.sessions -= 1;
        if group.sessions == 0 {
            self.remove(id);
        }
    }

    /// Gives the message to the next member of each group that [`Groups::find_due`] has found. A group reads this message from the log later if the log
    /// may have earlier messages for it, or without `may_give`. Returns whether the caller must queue an entry for late groups
    /// ([`Groups::mark_late_behind`]).
    pub fn give_to_due(
        &mut self,
        partition_index: usize,
        offset: u64,
        may_give: bool,
        mut give: impl FnMut(u64, Member),
    ) -> bool {
        // Each message costs the member's shard a visit (the delivery to one connection). The home counts these steps as its own, so that it does not give
        // members more messages than their shards can send.
        let steps = if may_give { STEPS_PER_VISIT } else { 1 };
        self.steps
            .add(self.due.len() * steps + self.late_lists.len());
        for id in &self.due {
            let group = self.groups.get_mut(id).expect("it was just found");
            let must_wait = !may_give || group.is_behind() || group.has_returned();
            match if must_wait { None } else { group.take_credit() } {
                Some(member) => {
                    give(*id, member);
                    if self.has_records {
                        group.add_in_flight(partition_index, offset, member);
                        self.bytes += IN_FLIGHT_BYTES;
                    }
                    group.cursors[partition_index].offset = offset;
                }
                None => group.cursors[partition_index].is_behind = true,
            }
        }
        (self.late_lists.iter()).for_each(|list| self.lists.make_late(*list, partition_index));
        !self.late_lists.is_empty() && !core::mem::replace(&mut self.is_late_queued, true)
    }

    /// Marks some of the late groups as having messages in the log, and returns them. Other late groups may be [left](Groups::must_requeue_late).
    pub fn mark_late_behind(&mut self) -> Vec<u64> {
        let late = self.lists.take_late();
        self.steps.add(late.ids.len());
        for id in &late.ids {
            let Some(group) = self.groups.get_mut(id) else {
                continue;
            };
            for partition_index in &late.partitions {
                group.cursors[*partition_index].is_behind = true;
            }
        }
        late.ids
    }

    /// Whether late groups are left. If so, the caller queues another entry for them.
    pub fn must_requeue_late(&mut self) -> bool {
        self.is_late_queued = self.lists.has_late();
        self.is_late_queued
    }

    /// Marks a group as queued, if it has messages to give and is not queued already. Returns the party that is charged for the group's pages: that of
    /// the group's next member, so that a client with many groups gets only one share of the work.
    pub fn try_queue(&mut self, id: u64) -> Option<Party> {
        let group = self.groups.get_mut(&id)?;
        if group.is_queued || !group.can_give() {
            return None;
        }
        let party = group.members.party_of_next()?;
        group.is_queued = true;
        Some(party)
    }

    /// Takes a group out; it must be [put back](Groups::put).
    pub fn take(&mut self, id: u64) -> Option<Group> {
        let mut group = self.groups.remove(&id)?;
        self.bytes -= group.in_flight.len() * IN_FLIGHT_BYTES;
        group.is_queued = false;
        Some(group)
    }

    pub fn put(&mut self, id: u64, group: Group) {
        self.bytes += group.in_flight.len() * IN_FLIGHT_BYTES;
        self.groups.insert(id, group);
    }

    /// Whether the log has the positions of groups with recorded sessions.
    pub fn has_records(&self) -> bool {
        self.has_records
    }

    /// Takes the next returned message of a group that was taken out.
    pub fn next_returned(&mut self, group: &mut Group) -> Option<UnackedMessage> {
        let unacked = group.returned.pop_front()?;
        self.bytes -= unacked.topic.len();
        Some(unacked)
    }

    fn remove(&mut self, id: u64) {
        let group = self.groups.remove(&id).expect("it was there");
        self.bytes -= group.own_bytes() + topic_name_bytes(&group.returned);
        if let Some(owner) = group.recorded_for {
            let key = group.key();
            self.changed.push(ChangedGroup { key, owner });
        }
        if self
            .lists
            .remove(self.filters.value(group.filter_row), &group.name)
        {
            self.filters.close(group.filter_row);
        }
    }

    /// Writes groups from number `from` on; returns the number to continue with, if any are left.
    pub fn save(&self, from: u64, block: &mut Block<'_>) -> Option<u64> {
        for (id, group) in self.groups.range(from..) {
            if block.is_full() {
                return Some(*id);
            }
            let mut out = block.record(kind::GROUP);
            out.field(&group.filter);
            out.field(&group.name);
            out.number(u64::from(group.sessions));
            for cursor in &group.cursors {
                out.number(cursor.offset);
            }
            out.number(group.returned.len() as u64);
            for UnackedMessage { topic, offset } in &group.returned {
                out.field(topic);
                out.number(*offset);
            }
        }
        None
    }

    /// Reads a group that a home with `cursors` partitions has written. A group without sessions is damaged, since a group ends with its last
    /// session.
    pub fn read<'a>(
        fields: &mut FieldReader<'a>,
        cursors: usize,
    ) -> Result<SavedGroup<'a>, Damaged> {
        let (filter, name) = (fields.field()?, fields.field()?);
        let sessions = fields.number32()?;
        if !(1..=SAVED_SESSIONS_MAX).contains(&sessions) {
            return Err(Damaged("a group has a wrong number of sessions"));
        }
        let offsets = (0..cursors).map(|_| fields.number());
        let offsets: Vec<u64> = offsets.collect::<Result<_, _>>()?;
        let count = fields.number()?;
        let read_unacked = |_| {
            let topic = fields.field()?.into();
            let offset = fields.number()?;
            Ok(UnackedMessage { topic, offset })
        };
        let returned = (0..count).map(read_unacked);
        Ok(SavedGroup {
            filter,
            name,
            sessions,
            offsets,
            returned: returned.collect::<Result<_, _>>()?,
        })
    }

    /// Restores a group from the snapshot of a home. If another home has written the same group before, adds only this home's cursors and returned
    /// messages. The restored group has no members, and is marked as behind in its partitions.
    pub fn restore(&mut self, saved: SavedGroup<'_>, cursors: impl Iterator<Item = (usize, u64)>) {
        let SavedGroup { filter, name, .. } = saved;
        let existing = self.id_of(filter, name);
        let zero_offsets = core::iter::repeat_n(0, self.partition_count);
        let Some(id) = existing.or_else(|| self.create_restored(filter, name, zero_offsets)) else {
            return;
        };
        self.change_and_count(id, |group| {
            // Each home has counted the same sessions, so the counts must not be added up.
            group.sessions = saved.sessions.max(group.sessions);
            for (partition_index, offset) in cursors {
                group.cursors[partition_index] = GroupCursor {
                    offset,
                    is_behind: true,
                };
            }
            let bytes = topic_name_bytes(&saved.returned);
            group.returned.extend(saved.returned);
            bytes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::snapshot::FieldWriter;
    use crate::mail::ReplyTo;

    #[test]
    fn bytes_of_groups_are_counted_until_they_end() {
        let mut groups = Groups::new(7, 1, false, &Steps::default());
        let id = groups
            .create(b"a/+", b"workers", RESTORED, core::iter::once(0))
            .expect("there is room");
        let alone = groups.bytes();
        let trie = groups.filters.bytes();
        let row = ENTRY_BYTES + lists::LIST_BYTES;
        assert_eq!(alone, row + 3 + 7 + size_of::<GroupCursor>() + trie);
        groups.change_and_count(id, |group| {
            let unacked = UnackedMessage {
                topic: [b'x'; 1000].into(),
                offset: 9,
            };
            group.returned.push_back(unacked);
            topic_name_bytes(&group.returned)
        });
        assert!(groups.bytes() >= alone + 1000 + size_of::<UnackedMessage>());
        groups.remove(id);
        assert_eq!(groups.bytes(), 0);
    }

    #[test]
    fn recorded_position_is_before_what_was_given_and_before_what_came_back() {
        let mut groups = Groups::new(7, 2, true, &Steps::default());
        let id = groups
            .create_restored(b"a/+", b"workers", [10, 20].into_iter())
            .expect("there is room");
        let (partition_index_of, member) = (|_: &[u8]| 1, (0, ReplyTo::for_will(1)));
        let position = |groups: &Groups| {
            let group = &groups.groups[&id];
            [0, 1].map(|partition_index| group.delivered_until(partition_index, partition_index_of))
        };
        assert_eq!(position(&groups), [10, 20]);
        groups.change_and_count(id, |group| {
            group.add_in_flight(0, 9, member);
            group.add_in_flight(0, 7, member);
            let topic = b"a/x".as_slice().into();
            group
                .returned
                .push_back(UnackedMessage { topic, offset: 15 });
            3
        });
        assert_eq!(position(&groups), [6, 14]);
        let due = groups.take_due_positions(false, partition_index_of);
        let due: Vec<_> = due
            .iter()
            .map(|due| (due.partition_index, due.offset))
            .collect();
        assert_eq!(due, [(0, Some(6)), (1, Some(14))]);
        groups.return_credit(id, member, (0, 7));
        assert_eq!(position(&groups), [8, 14]);
        groups.remove(id);
        assert_eq!(groups.bytes(), 0);
    }

    #[test]
    fn a_saved_group_without_sessions_is_refused() {
        let sessions_of = |sessions: u64| {
            let mut bytes = Vec::new();
            let mut out = FieldWriter(&mut bytes);
            out.field(b"a/+");
            out.field(b"workers");
            out.number(sessions);
            out.number(0); // no returned messages
            Groups::read(&mut FieldReader(&bytes), 0).map(|saved| saved.sessions)
        };
        assert_eq!(sessions_of(1), Ok(1));
        let refused = Err(Damaged("a group has a wrong number of sessions"));
        assert_eq!(sessions_of(0), refused);
        assert_eq!(sessions_of(u32::MAX.into()), refused);
    }
}
