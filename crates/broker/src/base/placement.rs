//! Placement determines which home (the part of a shard that keeps topics and sessions) keeps a topic or a session. The name hashes
//! to one of [`SLOTS`] slots (`crore_wire::topic::slot`). Each slot belongs to a partition, and each partition to a home.
//!
//! Invariant: the partition of a name depends only on the number of partitions, not on the number of homes or shards.

use crore_wire::topic;

use crate::base::ids::{PartitionId, ShardId};

/// Number of slots.
pub const SLOTS: usize = 256;

/// Maps names to partitions, and partitions to homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    partitions: PartitionId,
    homes: ShardId,
}

impl Placement {
    /// The placement of `partitions` (1 to [`SLOTS`]) at `homes` (1 to `partitions`).
    pub const fn new(partitions: PartitionId, homes: ShardId) -> Placement {
        assert!(0 < homes && homes <= partitions && partitions as usize <= SLOTS);
        Placement { partitions, homes }
    }

    /// The placement of a server. Each home needs a shard, a core and a partition, so the smallest of these numbers is the number of homes.
    pub fn for_server(partitions: PartitionId, shards: usize, cores: usize) -> Placement {
        let homes = shards.min(cores).clamp(1, partitions.into());
        Placement::new(partitions, homes as ShardId)
    }

    /// Number of partitions.
    pub const fn partitions(self) -> PartitionId {
        self.partitions
    }

    /// Number of homes.
    pub const fn homes(self) -> ShardId {
        self.homes
    }

    /// The partition of a slot.
    pub const fn partition_of_slot(self, slot: u8) -> PartitionId {
        slot as PartitionId % self.partitions
    }

    /// The partition of a topic or a session.
    pub fn partition_of(self, name: &[u8]) -> PartitionId {
        self.partition_of_slot(topic::slot(name))
    }

    /// The home of a partition.
    pub const fn home_of(self, partition: PartitionId) -> ShardId {
        partition % self.homes
    }

    /// The home of a topic or a session.
    pub fn home_of_name(self, name: &[u8]) -> ShardId {
        self.home_of(self.partition_of(name))
    }

    /// The partitions of a home, in the order of [`Placement::index_at_home`].
    pub fn of_home(self, home: ShardId) -> impl Iterator<Item = PartitionId> {
        (home..self.partitions).step_by(usize::from(self.homes))
    }

    /// The homes that take over a partition which `home` had under the placement `before`, in ascending order.
    pub fn heirs(self, before: Placement, home: ShardId) -> impl Iterator<Item = ShardId> {
        let is_heir = move |heir: &ShardId| {
            let mut partitions = before.of_home(home);
            partitions.any(|partition| self.home_of(partition) == *heir)
        };
        (0..self.homes).filter(is_heir)
    }

    /// Number of partitions of a home.
    pub const fn count_at(self, home: ShardId) -> usize {
        (self.partitions - home).div_ceil(self.homes) as usize
    }

    /// The index of a partition among the partitions of its home.
    pub const fn index_at_home(self, partition: PartitionId) -> usize {
        (partition / self.homes) as usize
    }
}

/// The default number of partitions of a server that is not in a cluster.
pub const PARTITIONS: PartitionId = 16;

/// An offset in a partition (56 bits) and the slot of its topic (8 bits), in two words.
#[derive(Clone, Copy, Default)]
pub(crate) struct SlottedOffset([u32; 2]);

/// The lowest bit of the slot in the upper word.
const SLOT_SHIFT: u32 = 24;
const OFFSET_HIGH: u32 = (1 << SLOT_SHIFT) - 1;

impl SlottedOffset {
    /// The largest offset.
    pub const OFFSET_MAX: u64 = (1 << 56) - 1;

    pub fn new(slot: u8, offset: u64) -> SlottedOffset {
        let high = (offset >> 32) as u32 & OFFSET_HIGH;
        SlottedOffset([offset as u32, u32::from(slot) << SLOT_SHIFT | high])
    }

    pub fn offset(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1] & OFFSET_HIGH) << 32
    }

    pub fn slot(self) -> u8 {
        (self.0[1] >> SLOT_SHIFT) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_has_an_index_of_its_own_at_its_home() {
        for partitions in [1, 2, 3, 16, 255, 256] {
            for homes in (1..=partitions).step_by(5) {
                let placement = Placement::new(partitions, homes);
                let mut next_index = alloc::vec![0; usize::from(homes)];
                for partition in 0..partitions {
                    let next = &mut next_index[usize::from(placement.home_of(partition))];
                    assert_eq!(placement.index_at_home(partition), *next);
                    *next += 1;
                }
                for (home, count) in (0..).zip(next_index) {
                    assert_eq!(placement.count_at(home), count);
                    let partitions = placement.of_home(home);
                    assert!(
                        partitions
                            .map(|partition| placement.index_at_home(partition))
                            .eq(0..count)
                    );
                }
            }
        }
    }

    #[test]
    fn slot_and_offset_are_unpacked_as_they_were_packed() {
        for slot in [0, 1, 200, 255] {
            for offset in [0, 1, u64::from(u32::MAX) + 7, (1 << 56) - 1] {
                let slotted = SlottedOffset::new(slot, offset);
                assert_eq!((slotted.slot(), slotted.offset()), (slot, offset));
            }
        }
    }

    #[test]
    fn the_partition_of_a_name_does_not_depend_on_the_homes() {
        for name in ["a", "b/c", "news", "$SYS/x"] {
            let one = Placement::new(16, 1);
            let many = Placement::new(16, 7);
            assert_eq!(
                one.partition_of(name.as_bytes()),
                many.partition_of(name.as_bytes())
            );
        }
    }
}
