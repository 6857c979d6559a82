//! A cache of read positions in chains. A reader gets a long chain page by page. If the last entry of the former page is still in the cache,
//! the next page begins after that entry, without a search of the chain.
//!
//! Words: a *page* is a bounded run of past messages; a *chain* is the list of a topic's messages.

use crate::store::slab::NONE;

/// The number of slots; 256 of them occupy 1 KiB. Tests use only two, so that readers overwrite each other's entries.
const SLOTS: usize = if cfg!(test) { 2 } else { 256 };

/// The ids of recently read entries. A hash of the entry's chain and offset selects its slot.
///
/// Another reader may have overwritten the slot, and the entry's row may have been reused, so the caller must check that the entry
/// has the chain and the offset that it asked for.
pub(super) struct RecentlyRead([u32; SLOTS]);

impl RecentlyRead {
    pub fn new() -> RecentlyRead {
        RecentlyRead([NONE; SLOTS])
    }

    pub fn entry_at(&self, chain: u32, offset: u64) -> u32 {
        self.0[slot(chain, offset)]
    }

    pub fn put(&mut self, chain: u32, offset: u64, id: u32) {
        self.0[slot(chain, offset)] = id;
    }
}

fn slot(chain: u32, offset: u64) -> usize {
    chain.wrapping_mul(31).wrapping_add(offset as u32) as usize % SLOTS
}
