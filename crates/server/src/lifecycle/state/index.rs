//! An index of the batches of each partition in some segments of the log. It takes two or three bytes for each batch.
//!
//! A scan verifies each batch and puts it into the index. A checkpoint reads the batches a second time, and then the segments are removed. A
//! checksum of all batches of a partition shows whether it has read the same bytes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crore_broker::position::{read_varint, write_varint};
use crore_disk::{BatchPlace, ScanEvent, Storage, scan};

/// The places of batches, by partition.
pub struct Index {
    lists: Vec<List>,
    /// The last group that has a batch.
    pub last_group: u64,
    /// Why batches are missing, if the segments are damaged.
    pub damaged: Option<String>,
}

/// The places of the batches of one partition, in order.
#[derive(Clone, Default)]
struct List {
    /// Varints, which encode each place relative to the place before. In the same segment: twice the distance of the offsets. In a later
    /// segment: twice the distance of the segments plus one, then the offset.
    bytes: Vec<u8>,
    last: (u64, u64),
    /// The checksum of the batches.
    checksum: u64,
}

/// The checksum of a partition's batches up to this one. `before` is the checksum up to the batch before; 0 at the first batch.
pub fn checksum_after(before: u64, batch: &[u8]) -> u64 {
    xxh3_64_with_seed(batch, before)
}

impl Index {
    /// Scans the segments from `first` to `last` for batches after the group `checkpoint_group`. `partition_of` returns the partition of a batch.
    ///
    /// # Errors
    /// The segments cannot be read.
    pub fn new(
        storage: &impl Storage,
        first: u64,
        last: u64,
        checkpoint_group: u64,
        partitions: u16,
        partition_of: impl Fn(&[u8]) -> Result<u16, String>,
    ) -> Result<Index, String> {
        let mut index = Index {
            lists: vec![List::default(); usize::from(partitions)],
            last_group: checkpoint_group,
            damaged: None,
        };
        if first > last {
            return Ok(index);
        }
        let mut damaged = None;
        let found = scan(storage, (Some(first), Some(last)), |found| match found {
            ScanEvent::Batch(place, batch) if place.group > checkpoint_group => {
                match partition_of(batch) {
                    Ok(partition) => index.add(partition, &place, batch),
                    Err(reason) => damaged = Some(reason),
                }
            }
            ScanEvent::Batch(..) => {}
            ScanEvent::Damage(damage) => {
                damaged = Some(damage.to_string());
            }
        });
        found.map_err(|error| error.to_string())?;
        index.damaged = damaged;
        Ok(index)
    }

    fn add(&mut self, partition: u16, place: &BatchPlace, batch: &[u8]) {
        self.last_group = place.group;
        let Some(list) = self.lists.get_mut(usize::from(partition)) else {
            return;
        };
        let (segment, offset) = place.segment_and_offset();
        if segment == list.last.0 {
            write_varint(&mut list.bytes, (offset - list.last.1) << 1);
        } else {
            write_varint(&mut list.bytes, (segment - list.last.0) << 1 | 1);
            write_varint(&mut list.bytes, offset);
        }
        list.last = (segment, offset);
        list.checksum = checksum_after(list.checksum, batch);
    }

    /// The checksum of all batches of a partition, as the scan has read them.
    pub fn checksum(&self, partition: u16) -> u64 {
        self.lists[usize::from(partition)].checksum
    }

    /// The places of a partition's batches, for [`Reader::read_batch`](crore_disk::Reader::read_batch).
    pub fn of(&self, partition: u16) -> impl Iterator<Item = (u64, u64)> {
        let mut bytes = &self.lists[usize::from(partition)].bytes[..];
        let mut at = (0, 0);
        std::iter::from_fn(move || {
            let number = read_varint(&mut bytes)?;
            at = match number & 1 {
                0 => (at.0, at.1 + (number >> 1)),
                _ => (at.0 + (number >> 1), read_varint(&mut bytes)?),
            };
            Some(at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_in_order_and_a_changed_batch_is_noticed() {
        let mut index = Index {
            lists: vec![List::default(); 2],
            last_group: 0,
            damaged: None,
        };
        let places = [
            (1, 4096),
            (1, 4200),
            (1, 70_000_000),
            (2, 4096),
            (900, 5_000_000_000),
            (900, 5_000_000_001),
        ];
        for (group, (segment, batch)) in (1..).zip(places) {
            let place = BatchPlace {
                segment,
                group_offset: 4096,
                group,
                batch_offset: batch,
            };
            index.add(1, &place, format!("batch {group}").as_bytes());
        }
        assert_eq!(index.last_group, 6);
        assert_eq!(index.of(0).count(), 0);
        assert!(index.of(1).eq(places));
        let checksum = |last: &str| {
            let batches = ["batch 1", "batch 2", "batch 3", "batch 4", "batch 5", last];
            let bytes = batches.iter().map(|it| it.as_bytes());
            bytes.fold(0, checksum_after)
        };
        assert_eq!(checksum("batch 6"), index.checksum(1));
        assert_ne!(checksum("batch 7"), index.checksum(1));
    }
}
