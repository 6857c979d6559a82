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
    pages: BTreeMap<FuturePageKey, PendingPage>,
    /// The number of the newest page.
    newest_number: u64,
    names_bytes: usize,
}

impl FuturePages {
    /// Heap bytes of all pages.
    pub fn bytes(&self) -> usize {
        let each = size_of::<(FuturePageKey, PendingPage)>();
        self.pages.len() * each + self.names_bytes
    }

    /// Adds a page that waits until the log of this partition has reached this offset.
    pub fn push(&mut self, page: PendingPage, partition_index: usize, offset: u64) {
        self.newest_number += 1;
        self.names_bytes += page.names_bytes();
        self.pages
            .insert((partition_index, offset, self.newest_number), page);
    }

    /// The number of the newest page, if any page waits for this partition.
    pub fn newest_of(&self, partition_index: usize) -> Option<u64> {
        let mut of_partition = self
            .pages
            .range((partition_index, 0, 0)..(partition_index + 1, 0, 0));
        of_partition.next().map(|_| self.newest_number)
    }

    /// At most `limit` pages that wait for this partition, none newer than page `number`.
    pub fn keys_up_to(
        &self,
        partition_index: usize,
        number: u64,
        limit: usize,
    ) -> Vec<FuturePageKey> {
        let of_partition = self
            .pages
            .range((partition_index, 0, 0)..(partition_index + 1, 0, 0));
        let keys = of_partition.map(|(due, _)| *due);
        keys.filter(|(_, _, count)| *count <= number)
            .take(limit)
            .collect()
    }

    /// The first page for this partition that begins at this offset or before it.
    pub fn first_key_until(&self, partition_index: usize, offset: u64) -> Option<FuturePageKey> {
        let mut reached = self
            .pages
            .range((partition_index, 0, 0)..=(partition_index, offset, u64::MAX));
        reached.next().map(|(due, _)| *due)
    }

    pub fn take(&mut self, key: &FuturePageKey) -> Option<PendingPage> {
        let page = self.pages.remove(key)?;
        self.names_bytes -= page.names_bytes();
        Some(page)
    }
}
