//! Where pages ended: readers of long chains get further pages without searching for their place again.

use crate::store::slab::NONE;

/// Readers of one home that keep their place; 1 KiB. In tests so few that readers take each other's.
const FINGERS: usize = if cfg!(test) { 2 } else { 256 };

/// Entries that were the last of a page, by chain and offset. Another reader's, or one whose row was reused, has another chain or offset.
pub(super) struct Fingers([u32; FINGERS]);

impl Fingers {
    pub fn new() -> Fingers {
        Fingers([NONE; FINGERS])
    }

    pub fn get(&self, chain: u32, offset: u64) -> u32 {
        self.0[place(chain, offset)]
    }

    pub fn put(&mut self, chain: u32, offset: u64, id: u32) {
        self.0[place(chain, offset)] = id;
    }
}

fn place(chain: u32, offset: u64) -> usize {
    chain.wrapping_mul(31).wrapping_add(offset as u32) as usize % FINGERS
}
