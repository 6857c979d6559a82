//! Pages (runs of past messages for subscribers) that begin after the last record that this node has applied, and so have to wait. Their
//! subscribers come from other nodes, which have applied more of the same log.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::page_queue::PendingPage;

/// Partition, offset, and number of the page.
pub(super) type Key = (usize, u64, u64);

/// The pages that wait for the log.
#[derive(Default)]
pub(crate) struct FuturePages {
    /// The pages by partition, and by the offset at which they begin.
    waiting: BTreeMap<Key, PendingPage>,
    /// The number of the newest page.
    count: u64,
    names_bytes: usize,
}

impl FuturePages {
    /// Heap bytes of all pages.
    pub fn bytes(&self) -> usize {
        let each = size_of::<(Key, PendingPage)>();
        self.waiting.len() * each + self.names_bytes
    }

    /// Adds a page that waits until the log of partition `at` has reached this offset.
    pub fn push(&mut self, reading: PendingPage, at: usize, offset: u64) {
        self.count += 1;
        self.names_bytes += reading.names_bytes();
        self.waiting.insert((at, offset, self.count), reading);
    }

    /// The number of the newest page, if any page waits for partition `at`.
    pub fn last_of(&self, at: usize) -> Option<u64> {
        let mut of_partition = self.waiting.range((at, 0, 0)..(at + 1, 0, 0));
        of_partition.next().map(|_| self.count)
    }

    /// At most `most` pages that wait for partition `at`, none newer than page `number`.
    pub fn up_to(&self, at: usize, number: u64, most: usize) -> Vec<Key> {
        let of_partition = self.waiting.range((at, 0, 0)..(at + 1, 0, 0));
        let due = of_partition.map(|(due, _)| *due);
        due.filter(|(_, _, count)| *count <= number)
            .take(most)
            .collect()
    }

    /// The first page for partition `at` that begins at this offset or before it.
    pub fn first_until(&self, at: usize, offset: u64) -> Option<Key> {
        let mut due = self.waiting.range((at, 0, 0)..=(at, offset, u64::MAX));
        due.next().map(|(due, _)| *due)
    }

    pub fn take(&mut self, due: &Key) -> Option<PendingPage> {
        let reading = self.waiting.remove(due)?;
        self.names_bytes -= reading.names_bytes();
        Some(reading)
    }
}
