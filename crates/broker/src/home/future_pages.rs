//! Pages (runs of past messages for subscribers) that cannot be read yet, because they begin after the last record that this node has applied. Such
//! a subscriber was connected to another node before, and that node had applied more of the log.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use super::page_queue::PendingPage;

/// The key of a page that waits for the log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FuturePageKey {
    partition_index: usize,
    /// The page begins after this offset.
    offset: u64,
    /// Pages are numbered in the order in which they came.
    number: u64,
}

/// The keys of the pages for this partition that begin at `offset` or before it.
fn keys_until(partition_index: usize, offset: u64) -> RangeInclusive<FuturePageKey> {
    let key = |offset, number| FuturePageKey {
        partition_index,
        offset,
        number,
    };
    key(0, 0)..=key(offset, u64::MAX)
}

/// The pages that wait for the log.
#[derive(Default)]
pub(crate) struct FuturePages {
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
        let key = FuturePageKey {
            partition_index,
            offset,
            number: self.newest_number,
        };
        self.pages.insert(key, page);
    }

    /// The number of the newest page of all partitions, if any page waits for this partition.
    pub fn newest_number(&self, partition_index: usize) -> Option<u64> {
        let mut of_partition = self.pages.range(keys_until(partition_index, u64::MAX));
        of_partition.next().map(|_| self.newest_number)
    }

    /// The keys of at most `limit` pages that wait for this partition, none newer than page `number`.
    pub fn keys_up_to(
        &self,
        partition_index: usize,
        number: u64,
        limit: usize,
    ) -> Vec<FuturePageKey> {
        let of_partition = self.pages.range(keys_until(partition_index, u64::MAX));
        let keys = of_partition.map(|(key, _)| *key);
        keys.filter(|key| key.number <= number)
            .take(limit)
            .collect()
    }

    /// The key of the first page for this partition that begins at this offset or before it.
    pub fn first_key_until(&self, partition_index: usize, offset: u64) -> Option<FuturePageKey> {
        let mut reached = self.pages.range(keys_until(partition_index, offset));
        reached.next().map(|(key, _)| *key)
    }

    pub fn take(&mut self, key: &FuturePageKey) -> Option<PendingPage> {
        let page = self.pages.remove(key)?;
        self.names_bytes -= page.names_bytes();
        Some(page)
    }
}
