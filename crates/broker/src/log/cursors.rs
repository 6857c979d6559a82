//! A cache of entries that were recently read into pages: the next page of a long chain begins without a search.

use crate::store::slab::NONE;

/// The size of a log's cache, 1 KiB. In tests it is so small that readers overwrite each other's entries.
const CURSORS: usize = if cfg!(test) { 2 } else { 256 };

/// Entries by a hash of chain and offset; a reader continues at the last entry of its page. The caller must compare chain and offset: another
/// reader may have overwritten the slot, and the entry's row may have been reused.
pub(super) struct Cursors([u32; CURSORS]);

impl Cursors {
    pub fn new() -> Cursors {
        Cursors([NONE; CURSORS])
    }

    pub fn get(&self, chain: u32, offset: u64) -> u32 {
        self.0[place(chain, offset)]
    }

    pub fn put(&mut self, chain: u32, offset: u64, id: u32) {
        self.0[place(chain, offset)] = id;
    }
}

fn place(chain: u32, offset: u64) -> usize {
    chain.wrapping_mul(31).wrapping_add(offset as u32) as usize % CURSORS
}
