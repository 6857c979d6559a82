//! Pages that begin ahead of what a home has applied: subscribers that come from other nodes, which had read further in the same log.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::page_queue::PendingPage;

/// The partition, by its place, the position, and a number of its own.
pub(super) type Key = (usize, u64, u64);

/// The pages that wait for the log.
#[derive(Default)]
pub(crate) struct FuturePages {
    /// Pages that wait for the log, by where they begin.
    waiting: BTreeMap<Key, PendingPage>,
    /// The number of the last of them.
    count: u64,
    names_bytes: usize,
}

impl FuturePages {
    /// Bytes of what waits.
    pub fn bytes(&self) -> usize {
        let each = size_of::<(Key, PendingPage)>();
        self.waiting.len() * each + self.names_bytes
    }

    /// Has a page wait until the log of the partition at this place has come to this offset.
    pub fn push(&mut self, reading: PendingPage, at: usize, offset: u64) {
        self.count += 1;
        self.names_bytes += reading.names_bytes();
        self.waiting.insert((at, offset, self.count), reading);
    }

    /// The number of the last page that waits, if one does for the partition at this place.
    pub fn last_of(&self, at: usize) -> Option<u64> {
        let mut of_partition = self.waiting.range((at, 0, 0)..(at + 1, 0, 0));
        of_partition.next().map(|_| self.count)
    }

    /// At most so many pages that wait for the partition at this place, up to the one with this number.
    pub fn up_to(&self, at: usize, number: u64, most: usize) -> Vec<Key> {
        let of_partition = self.waiting.range((at, 0, 0)..(at + 1, 0, 0));
        let due = of_partition.map(|(due, _)| *due);
        due.filter(|(_, _, count)| *count <= number)
            .take(most)
            .collect()
    }

    /// The first page that waits for the log of the partition at this place, and begins at this offset or before it.
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
