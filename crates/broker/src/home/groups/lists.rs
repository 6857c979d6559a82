//! The groups of each filter, by name, and which of them are *late*.
//!
//! A publish gives its message to at most [`AT_ONCE`] groups. If the groups of a filter would exceed that number, they are late: the publish only
//! notes the message's partition in the filter's list. In each later turn (a pass of the shard's loop), some of the groups learn that the log has
//! messages for them.
//!
//! Invariant: while the groups of a filter are late, no publish gives them a message. So each group reads all messages from the log, in order.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::store::slab::{NONE, SideTable};

/// The maximum number of groups to which one publish gives its message. This takes some hundred microseconds. In practice far fewer groups
/// share a filter.
pub(super) const AT_ONCE: usize = 256;

/// Bytes of a leaf of the tree of names, which has room for eleven entries.
const LEAF_BYTES: usize = 11 * size_of::<(Arc<[u8]>, u64)>() + 16;
/// Bytes of the list of a filter with few groups.
pub(super) const LIST_BYTES: usize = size_of::<GroupsOfFilter>() + LEAF_BYTES;
/// Bytes of an entry without its name, in leaves that are two thirds full, with the counts of the name's `Arc`.
pub(super) const NAME_BYTES: usize = 3 * size_of::<(Arc<[u8]>, u64)>() / 2 + 16;

/// The groups that share a filter.
#[derive(Default)]
struct GroupsOfFilter {
    ids: BTreeMap<Arc<[u8]>, u64>,
    /// Partitions with messages of which the groups have not learned yet.
    missed: Vec<usize>,
    /// Present while the groups learn of missed messages, some of the groups in each turn.
    telling: Option<Telling>,
}

struct Telling {
    partitions: Vec<usize>,
    /// The name of the last group that has learned of the missed messages.
    last: Option<Arc<[u8]>>,
}

impl GroupsOfFilter {
    fn is_late(&self) -> bool {
        self.telling.is_some() || !self.missed.is_empty()
    }
}

/// The lists of all filters.
#[derive(Default)]
pub(super) struct GroupsByFilter {
    all: SideTable<GroupsOfFilter>,
    /// The numbers of the lists with late groups. `served` is the list that was served last.
    late: BTreeSet<u32>,
    served: u32,
}

impl GroupsByFilter {
    /// The group with this name in a list.
    pub fn find(&self, list: u32, name: &[u8]) -> Option<u64> {
        self.all.get(list).ids.get(name).copied()
    }

    /// Adds a group to a list, or to a new list if `list` is [`NONE`]. Returns the list.
    pub fn add(&mut self, list: u32, name: Arc<[u8]>, id: u64) -> u32 {
        let list = match list {
            NONE => self.all.insert(GroupsOfFilter::default()),
            list => list,
        };
        self.all.get_mut(list).ids.insert(name, id);
        list
    }

    /// Removes a group. Also removes the list if it is empty then, and returns true.
    pub fn remove(&mut self, list: u32, name: &[u8]) -> bool {
        let ids = &mut self.all.get_mut(list).ids;
        ids.remove(name);
        let ends = ids.is_empty();
        if ends {
            self.all.remove(list);
            self.late.remove(&list);
        }
        ends
    }

    /// Adds the groups of a list to `due`, the groups that get the message now, or adds the list to `late`.
    pub fn collect(&self, list: u32, due: &mut Vec<u64>, late: &mut Vec<u32>) {
        let found = self.all.get(list);
        if found.is_late() || due.len() + found.ids.len() > AT_ONCE {
            late.push(list);
        } else {
            due.extend(found.ids.values());
        }
    }

    /// Notes that the log of this partition has a message for the groups of a list.
    pub fn note_message(&mut self, list: u32, partition: usize) {
        let missed = &mut self.all.get_mut(list).missed;
        if !missed.contains(&partition) {
            missed.push(partition);
        }
        self.late.insert(list);
    }

    /// Whether any groups are late.
    pub fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Takes some of the late groups of the next list; returns them, and the partitions in which they have missed messages.
    pub fn next_late(&mut self) -> (Vec<u64>, Vec<usize>) {
        let behind = (Bound::Excluded(self.served), Bound::Unbounded);
        let next = self.late.range(behind).next().or_else(|| self.late.first());
        let Some(at) = next.copied() else {
            return Default::default();
        };
        self.served = at;
        let list = self.all.get_mut(at);
        let mut telling = list.telling.take().unwrap_or_else(|| Telling {
            partitions: core::mem::take(&mut list.missed),
            last: None,
        });
        let from = telling.last.as_deref();
        let from = from.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = list.ids.range::<[u8], _>((from, Bound::Unbounded));
        let some: Vec<_> = rest.by_ref().take(AT_ONCE).collect();
        let (ids, partitions) = (
            some.iter().map(|(_, id)| **id).collect(),
            telling.partitions.clone(),
        );
        let last = some.last().map(|(name, _)| Arc::clone(name));
        if rest.next().is_some() {
            telling.last = last;
            list.telling = Some(telling);
        } else if list.missed.is_empty() {
            self.late.remove(&at);
        }
        (ids, partitions)
    }
}
