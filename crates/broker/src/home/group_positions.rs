//! The recorded positions of shared subscriptions (groups), if MQTT sessions are [recorded](crate::budget::world::World::recovers_sessions). The home
//! (the part of a shard that keeps topics) writes the position of each group in a partition to the partition's log, from the first member with a recorded
//! session until the group ends. After a crash, the group continues there. Other groups do not exist after a crash.
//!
//! Invariants:
//! * A recorded position is before each message that was given to a member and not acknowledged, and before each message that waits for a member. So after a
//!   crash the group skips no message, but may give messages again.
//! * The bytes of the records count for a client. On a full disk no group begins to have records.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Bound;

use crate::base::ids::PartitionId;
use crate::base::snapshot::{Block, kind};
use crate::budget::admission::Client;

/// The key of a group: different filters may have groups of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub filter: Box<[u8]>,
    pub name: Box<[u8]>,
}

/// Memory of an entry, without the bytes of its key and of its positions.
const ENTRY_BYTES: usize = 2 * (size_of::<GroupKey>() + size_of::<Box<[Option<u64>]>>());

/// The positions in the log, by group and by the index of the partition at this home.
#[derive(Default)]
pub(crate) struct GroupPositions {
    positions_by_group: BTreeMap<GroupKey, Box<[Option<u64>]>>,
    bytes: usize,
}

/// A position to record.
pub(crate) struct DuePosition {
    /// The index of the partition at its home.
    pub partition_index: usize,
    pub group: GroupKey,
    /// All messages up to this offset are delivered; `None` if the group has ended.
    pub offset: Option<u64>,
    /// The client that is charged for the record.
    pub owner: Client,
    /// Whether the log has an earlier position of the group, so that the record may be written later: then the group continues there after a crash, or the
    /// position is dropped if the group has ended.
    pub may_wait: bool,
}

fn entry_bytes(key: &GroupKey, partitions: usize) -> usize {
    ENTRY_BYTES + key.filter.len() + key.name.len() + partitions * size_of::<Option<u64>>()
}

impl GroupPositions {
    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The recorded positions of a group, by index of the partition; empty if no position of the group is recorded.
    pub fn get(&self, group: &GroupKey) -> &[Option<u64>] {
        self.positions_by_group
            .get(group)
            .map_or(&[], |positions| positions)
    }

    /// The first group after `after` with a recorded position; the first of all if it is `None`.
    pub fn next_group(&self, after: Option<&GroupKey>) -> Option<&GroupKey> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.positions_by_group.range((start, Bound::Unbounded));
        rest.map(|(group, _)| group).next()
    }

    /// Sets the position of a group in one of `partitions` partitions; `None`: the group has ended.
    pub fn set(
        &mut self,
        group: GroupKey,
        partition_index: usize,
        partitions: usize,
        offset: Option<u64>,
    ) {
        let bytes = entry_bytes(&group, partitions);
        if offset.is_none() && !self.positions_by_group.contains_key(&group) {
            return;
        }
        let positions = self
            .positions_by_group
            .entry(group.clone())
            .or_insert_with(|| {
                self.bytes += bytes;
                alloc::vec![None; partitions].into_boxed_slice()
            });
        if let Some(position) = positions.get_mut(partition_index) {
            *position = offset;
        }
        if positions.iter().all(Option::is_none) {
            self.positions_by_group.remove(&group);
            self.bytes -= bytes;
        }
    }

    /// Writes the positions of the groups that come after `after`; of all groups if it is `None`. `partitions` are the partitions in the order of their
    /// indexes. Returns `None` if all are written, otherwise the `after` of the next call.
    pub fn save<P: Iterator<Item = PartitionId>>(
        &self,
        partitions: impl Fn() -> P,
        after: Option<GroupKey>,
        block: &mut Block<'_>,
    ) -> Option<Option<GroupKey>> {
        let mut last_saved = after.clone();
        let is_left = |group: &GroupKey| after.as_ref().is_none_or(|after| group > after);
        for (group, positions) in self
            .positions_by_group
            .iter()
            .filter(|(group, _)| is_left(group))
        {
            if block.is_full() {
                return Some(last_saved);
            }
            for (partition, offset) in partitions().zip(positions) {
                let Some(offset) = offset else { continue };
                let mut out = block.record(kind::GROUP_POSITION);
                out.number(partition.into());
                out.field(&group.filter);
                out.field(&group.name);
                out.number(*offset);
            }
            last_saved = Some(group.clone());
        }
        None
    }

    /// Drops the positions of groups for which `is_kept` returns false.
    pub fn retain(&mut self, is_kept: impl Fn(&GroupKey) -> bool) {
        self.positions_by_group.retain(|group, _| is_kept(group));
        let entries = self.positions_by_group.iter();
        self.bytes = entries
            .map(|(group, positions)| entry_bytes(group, positions.len()))
            .sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_has_a_position_in_each_partition_until_it_ends_in_all() {
        let group = || GroupKey {
            filter: b"a/#"[..].into(),
            name: b"workers"[..].into(),
        };
        let mut all = GroupPositions::default();
        all.set(group(), 1, 3, Some(7));
        all.set(group(), 2, 3, Some(0));
        assert_eq!(all.get(&group()), [None, Some(7), Some(0)]);
        assert!(all.bytes() > 0);
        all.set(group(), 1, 3, None);
        assert_eq!(all.get(&group()), [None, None, Some(0)]);
        all.set(group(), 2, 3, None);
        assert_eq!((all.get(&group()), all.bytes()), (&[][..], 0));
        all.set(group(), 0, 3, None);
        assert_eq!(all.bytes(), 0);
    }
}
