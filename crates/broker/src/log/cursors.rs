//! A cache of recently read entries. A reader gets a long chain page by page. If the last entry of its page is still in the cache,
//! its next page begins there, without a search of the chain.

use crate::store::slab::NONE;

/// The slots of a log's cache, 1 KiB in all. Tests have so few that readers overwrite each other's entries.
const CURSORS: usize = if cfg!(test) { 2 } else { 256 };

/// The ids of entries. A hash of an entry's chain and offset selects its slot.
///
/// Another reader may have overwritten the slot, and the entry's row may have been reused. So the caller must compare the entry that
/// it gets with the chain and the offset that it asked for.
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
