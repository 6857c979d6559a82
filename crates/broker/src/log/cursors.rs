//! Entries that were read into pages of late: a reader of a long chain gets its next page without searching for its place again.

use crate::store::slab::NONE;

/// Entries that a home remembers, 1 KiB of them. In tests so few that readers take each other's.
const CURSORS: usize = if cfg!(test) { 2 } else { 256 };

/// Entries that were read into pages, by chain and offset; the last one of a page is where its reader goes on. The caller compares
/// chain and offset: another reader may have taken the place, and the entry's row may be in use again.
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
