//! Where topics and sessions are kept. A name hashes to one of [`SLOTS`] slots (`crore_wire::topic::slot`); each slot belongs to
//! a partition, and each partition to a home.
//!
//! Invariant: the partition of a name depends on the number of partitions alone, not on how many homes or shards there are.

use crore_wire::topic;

use crate::base::ids::{PartitionId, ShardId};

/// Slots of the whole name space.
pub const SLOTS: usize = 256;

/// Computes the partition of a name and the home of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    partitions: PartitionId,
    homes: ShardId,
}

impl Placement {
    /// A placement of 1 to [`SLOTS`] partitions at 1 to `partitions` homes.
    pub const fn new(partitions: PartitionId, homes: ShardId) -> Placement {
        assert!(0 < homes && homes <= partitions && partitions as usize <= SLOTS);
        Placement { partitions, homes }
    }

    /// How many partitions there are.
    pub const fn partitions(self) -> PartitionId {
        self.partitions
    }

    /// How many homes there are.
    pub const fn homes(self) -> ShardId {
        self.homes
    }

    /// The partition of a slot.
    pub const fn of_slot(self, slot: u8) -> PartitionId {
        slot as PartitionId % self.partitions
    }

    /// The partition of a topic or a session.
    pub fn partition_of(self, name: &[u8]) -> PartitionId {
        self.of_slot(topic::slot(name))
    }

    /// The home of a partition.
    pub const fn home_of(self, partition: PartitionId) -> ShardId {
        partition % self.homes
    }

    /// The home of a topic or a session.
    pub fn home_of_name(self, name: &[u8]) -> ShardId {
        self.home_of(self.partition_of(name))
    }

    /// The partitions of a home, in the order of their places there.
    pub fn of_home(self, home: ShardId) -> impl Iterator<Item = PartitionId> {
        (home..self.partitions).step_by(usize::from(self.homes))
    }

    /// How many partitions a home has.
    pub const fn count_at(self, home: ShardId) -> usize {
        (self.partitions - home).div_ceil(self.homes) as usize
    }

    /// A partition's place among those of its home.
    pub const fn place_at_home(self, partition: PartitionId) -> usize {
        (partition / self.homes) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_has_a_place_of_its_own_at_its_home() {
        for partitions in [1, 2, 3, 16, 255, 256] {
            for homes in (1..=partitions).step_by(5) {
                let placement = Placement::new(partitions, homes);
                let mut next = alloc::vec![0; usize::from(homes)];
                for partition in 0..partitions {
                    let next = &mut next[usize::from(placement.home_of(partition))];
                    assert_eq!(placement.place_at_home(partition), *next);
                    *next += 1;
                }
                for (home, count) in (0..).zip(next) {
                    assert_eq!(placement.count_at(home), count);
                    let places = placement.of_home(home);
                    assert!(places.map(|it| placement.place_at_home(it)).eq(0..count));
                }
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
