//! Pages (runs of past messages for subscribers) that must wait, because they begin after the last record that this node has applied. Their
//! subscribers come from other nodes, which have applied more of the log.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::page_queue::PendingPage;

/// Partition, offset, and number of the page.
pub(super) type FuturePageKey = (usize, u64, u64);

/// The pages that wait for the log.
#[derive(Default)]
pub(crate) struct FuturePages {
    /// The pages by partition, and by the offset at which they begin.
    waiting: BTreeMap<FuturePageKey, PendingPage>,
    /// The number of the newest page.
    count: u64,
    names_bytes: usize,
}

impl FuturePages {
    /// Heap bytes of all pages.
    pub fn bytes(&self) -> usize {
        let each = size_of::<(FuturePageKey, PendingPage)>();
        self.waiting.len() * each + self.names_bytes
    }

    /// Adds a page that waits until the log of this partition has reached this offset.
    pub fn push(&mut self, reading: PendingPage, partition_index: usize, offset: u64) {
        self.count += 1;
        self.names_bytes += reading.names_bytes();
        self.waiting
            .insert((partition_index, offset, self.count), reading);
    }

    /// The number of the newest page, if any page waits for this partition.
    pub fn last_of(&self, partition_index: usize) -> Option<u64> {
        let mut of_partition = self
            .waiting
            .range((partition_index, 0, 0)..(partition_index + 1, 0, 0));
        of_partition.next().map(|_| self.count)
    }

    /// At most `limit` pages that wait for this partition, none newer than page `number`.
    pub fn up_to(&self, partition_index: usize, number: u64, limit: usize) -> Vec<FuturePageKey> {
        let of_partition = self
            .waiting
            .range((partition_index, 0, 0)..(partition_index + 1, 0, 0));
        let due = of_partition.map(|(due, _)| *due);
        due.filter(|(_, _, count)| *count <= number)
            .take(limit)
            .collect()
    }

    /// The first page for this partition that begins at this offset or before it.
    pub fn first_until(&self, partition_index: usize, offset: u64) -> Option<FuturePageKey> {
        let mut due = self
            .waiting
            .range((partition_index, 0, 0)..=(partition_index, offset, u64::MAX));
        due.next().map(|(due, _)| *due)
    }

    pub fn take(&mut self, due: &FuturePageKey) -> Option<PendingPage> {
        let reading = self.waiting.remove(due)?;
        self.names_bytes -= reading.names_bytes();
        Some(reading)
    }
}
