//! The groups of each filter, by name, and which of them are *late*.
//!
//! A publish gives its message to at most [`GROUPS_PER_PUBLISH`] groups. If the groups of a filter would exceed that number, they are *late*: the publish
//! only adds the message's partition to the filter's list. In each later turn (a pass of the shard's loop), some of the late groups are told that the log
//! of this partition has messages for them.
//!
//! Invariant: while the groups of a filter are late, no publish gives them a message. So each group reads all messages from the log, in order.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::store::slab::{NONE, SideTable};

/// The maximum number of groups to which one publish gives its message. This takes some hundred microseconds. In practice far fewer groups
/// share a filter.
pub(super) const GROUPS_PER_PUBLISH: usize = 256;

/// Bytes of a leaf of the tree of names, which has room for eleven entries.
const LEAF_BYTES: usize = 11 * size_of::<(Arc<[u8]>, u64)>() + 16;
/// Bytes of the list of a filter with few groups.
pub(super) const LIST_BYTES: usize = size_of::<GroupsOfFilter>() + LEAF_BYTES;
/// Bytes of an entry without its name, in leaves that are two thirds full, with the counts of the name's `Arc`.
pub(super) const NAME_BYTES: usize = 3 * size_of::<(Arc<[u8]>, u64)>() / 2 + 16;

/// The groups that share a filter.
#[derive(Default)]
struct GroupsOfFilter {
    /// The numbers of the groups, by their names.
    ids: BTreeMap<Arc<[u8]>, u64>,
    /// Partitions with messages of which no group was told yet.
    missed_partitions: Vec<usize>,
    /// Present while some groups were told of the same messages and others not yet.
    notification: Option<Notification>,
}

struct Notification {
    partitions: Vec<usize>,
    /// The name of the last group that was told.
    last_notified: Option<Arc<[u8]>>,
}

/// Groups that are told now of messages in the log.
#[derive(Default)]
pub(super) struct LateGroups {
    /// The numbers of the groups.
    pub ids: Vec<u64>,
    /// The indexes of the partitions with the messages.
    pub partitions: Vec<usize>,
}

impl GroupsOfFilter {
    fn is_late(&self) -> bool {
        self.notification.is_some() || !self.missed_partitions.is_empty()
    }
}

/// The lists of all filters.
#[derive(Default)]
pub(super) struct GroupsByFilter {
    lists: SideTable<GroupsOfFilter>,
    /// The numbers of the lists with late groups.
    late_lists: BTreeSet<u32>,
    /// The list of which [`take_late`](GroupsByFilter::take_late) has returned groups last.
    last_served: u32,
}

impl GroupsByFilter {
    /// The group with this name in a list.
    pub fn find(&self, list: u32, name: &[u8]) -> Option<u64> {
        self.lists.get(list).ids.get(name).copied()
    }

    /// Adds a group to a list, or to a new list if `list` is [`NONE`]. Returns the list.
    pub fn add(&mut self, list: u32, name: Arc<[u8]>, id: u64) -> u32 {
        let list = match list {
            NONE => self.lists.insert(GroupsOfFilter::default()),
            list => list,
        };
        self.lists.get_mut(list).ids.insert(name, id);
        list
    }

    /// Removes a group. Also removes the list if it is empty then, and returns true.
    pub fn remove(&mut self, list: u32, name: &[u8]) -> bool {
        let ids = &mut self.lists.get_mut(list).ids;
        ids.remove(name);
        let is_empty = ids.is_empty();
        if is_empty {
            self.lists.remove(list);
            self.late_lists.remove(&list);
        }
        is_empty
    }

    /// Adds the groups of a list to `due`, the groups that get the message now, or adds the list to `late`.
    pub fn push_due(&self, list: u32, due: &mut Vec<u64>, late: &mut Vec<u32>) {
        let groups = self.lists.get(list);
        if groups.is_late() || due.len() + groups.ids.len() > GROUPS_PER_PUBLISH {
            late.push(list);
        } else {
            due.extend(groups.ids.values());
        }
    }

    /// Makes the groups of a list late: the log of this partition has a message for them.
    pub fn make_late(&mut self, list: u32, partition: usize) {
        let missed = &mut self.lists.get_mut(list).missed_partitions;
        if !missed.contains(&partition) {
            missed.push(partition);
        }
        self.late_lists.insert(list);
    }

    /// Whether any groups are late.
    pub fn has_late(&self) -> bool {
        !self.late_lists.is_empty()
    }

    /// Returns some of the late groups of the next list, which count as told from now on.
    pub fn take_late(&mut self) -> LateGroups {
        let after_last = (Bound::Excluded(self.last_served), Bound::Unbounded);
        let next = self
            .late_lists
            .range(after_last)
            .next()
            .or_else(|| self.late_lists.first());
        let Some(list_number) = next.copied() else {
            return LateGroups::default();
        };
        self.last_served = list_number;
        let list = self.lists.get_mut(list_number);
        let mut notification = list.notification.take().unwrap_or_else(|| Notification {
            partitions: core::mem::take(&mut list.missed_partitions),
            last_notified: None,
        });
        let last_notified = notification.last_notified.as_deref();
        let start = last_notified.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = list.ids.range::<[u8], _>((start, Bound::Unbounded));
        let notified: Vec<_> = rest.by_ref().take(GROUPS_PER_PUBLISH).collect();
        let late = LateGroups {
            ids: notified.iter().map(|(_, id)| **id).collect(),
            partitions: notification.partitions.clone(),
        };
        let last_notified = notified.last().map(|(name, _)| Arc::clone(name));
        if rest.next().is_some() {
            notification.last_notified = last_notified;
            list.notification = Some(notification);
        } else if list.missed_partitions.is_empty() {
            self.late_lists.remove(&list_number);
        }
        late
    }
}
