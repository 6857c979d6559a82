//! The chunks of a table or of a size class: which have free places, and which are empty and go.
//!
//! Freed places are used before new ones, those of the chunk first that was full until last: so chunks that run empty stay out of use,
//! and come free. One empty chunk is kept, so that a table that shrinks and grows by a row does not allocate each time.
//!
//! Invariants: each chunk has a list of its own of its freed places; the links lie in the places. A chunk with freed places is in the
//! list of such chunks. At most one chunk has places that were never used. Places of a chunk that has gone are not used, and its number
//! comes back with the next chunk that is made.

use alloc::vec::Vec;

/// No row: the end of a chain, an empty field.
pub const NONE: u32 = u32::MAX;

/// A chunk: `rows` are its places.
struct Chunk<R> {
    rows: R,
    /// Head of the list of freed places.
    free: u32,
    /// Places in use.
    used: u32,
    /// Neighbours in the list of chunks with freed places; `newer` means nothing in the first. A chunk that has gone links to another one.
    newer: u32,
    older: u32,
}

/// The chunks.
pub(super) struct Chunks<R> {
    all: Vec<Chunk<R>>,
    /// The chunk with freed places that got the first of them last.
    roomy: u32,
    /// The chunk with places that were never used.
    filling: u32,
    /// An empty chunk that is kept.
    spare: u32,
    /// A chunk that has gone.
    gone: u32,
    /// Chunks that are there.
    there: u32,
}

impl<R> Default for Chunks<R> {
    fn default() -> Self {
        Chunks {
            all: Vec::new(),
            roomy: NONE,
            filling: NONE,
            spare: NONE,
            gone: NONE,
            there: 0,
        }
    }
}

impl<R: Default> Chunks<R> {
    /// Chunks that are there.
    pub fn len(&self) -> usize {
        self.there as usize
    }

    /// The last chunk, and how many numbers of chunks are before it.
    pub fn last(&self) -> Option<(&R, usize)> {
        let (last, before) = self.all.split_last()?;
        Some((&last.rows, before.len()))
    }

    /// The places of all chunks.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        self.all.iter().map(|chunk| &chunk.rows)
    }

    /// The places of chunk `at`; none if it has gone.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&R> {
        self.all.get(at).map(|chunk| &chunk.rows)
    }

    /// The same, to change them.
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut R> {
        self.all.get_mut(at).map(|chunk| &mut chunk.rows)
    }

    /// Whether a place can be had without a chunk more than there ever were.
    pub fn has_place(&self) -> bool {
        (self.roomy, self.filling, self.gone) != (NONE, NONE, NONE)
    }

    /// Chunks that there ever were at the same time.
    pub fn most(&self) -> usize {
        self.all.len()
    }

    /// Takes a freed place: its number, and the places of its chunk. `link_of` reads the link in a place.
    #[inline]
    pub fn reuse(&mut self, link_of: impl FnOnce(&R, u32) -> u32) -> Option<(u32, &mut R)> {
        let at = self.roomy;
        let chunk = self.all.get_mut(at as usize)?;
        let place = chunk.free;
        chunk.free = link_of(&chunk.rows, place);
        chunk.used += 1;
        if chunk.free == NONE {
            self.roomy = chunk.older;
        }
        if at == self.spare {
            self.spare = NONE;
        }
        Some((place, &mut chunk.rows))
    }

    /// The chunk for a place that was never used, and its places, of which one more is used from now on. `make` makes a chunk.
    pub fn fill(&mut self, make: impl FnOnce() -> R) -> (u32, &mut R) {
        if self.filling == NONE {
            self.filling = self.add(make());
        }
        let at = self.filling;
        if at == self.spare {
            self.spare = NONE;
        }
        let chunk = &mut self.all[at as usize];
        chunk.used += 1;
        (at, &mut chunk.rows)
    }

    /// The chunk that [`fill`](Self::fill) gave has no other new place.
    pub fn filled(&mut self) {
        self.filling = NONE;
    }

    fn add(&mut self, rows: R) -> u32 {
        self.there += 1;
        let chunk = Chunk {
            rows,
            free: NONE,
            used: 0,
            newer: NONE,
            older: NONE,
        };
        if self.gone == NONE {
            // Doubling would reserve a byte for each message.
            if self.all.len() == self.all.capacity() {
                self.all.reserve_exact(self.all.len() / 32 + 4);
            }
            self.all.push(chunk);
            return self.all.len() as u32 - 1;
        }
        let at = self.gone;
        let place = &mut self.all[at as usize];
        self.gone = place.older;
        *place = chunk;
        at
    }

    /// A place of chunk `at` is free: returns the places of the chunk, and the link to store in this one.
    #[inline]
    pub fn free(&mut self, at: usize, place: u32) -> (&mut R, u32) {
        let first = self.roomy;
        let chunk = &mut self.all[at];
        let link = chunk.free;
        chunk.free = place;
        chunk.used -= 1;
        if link == NONE {
            chunk.older = first;
            self.roomy = at as u32;
            if let Some(first) = self.all.get_mut(first as usize) {
                first.newer = at as u32;
            }
        }
        (&mut self.all[at].rows, link)
    }

    /// Whether chunk `at` has no place in use.
    #[inline]
    pub fn is_empty(&self, at: usize) -> bool {
        self.all[at].used == 0
    }

    /// Whether at most so many places of chunk `at` are in use, and there is another chunk for the next place.
    pub fn is_lonely(&self, at: usize, most: usize) -> bool {
        let next = match self.roomy {
            NONE => self.filling,
            roomy => roomy,
        };
        self.all[at].used as usize <= most && next != NONE && next as usize != at
    }

    /// The empty chunk `at` is kept if no other empty one is; else it goes, which this says.
    pub fn give_back(&mut self, at: usize) -> bool {
        if self.spare == NONE {
            self.spare = at as u32;
            return false;
        }
        let Chunk { newer, older, .. } = self.all[at];
        if self.roomy == at as u32 {
            self.roomy = older;
        } else {
            self.all[newer as usize].older = older;
            if let Some(older) = self.all.get_mut(older as usize) {
                older.newer = newer;
            }
        }
        if self.filling == at as u32 {
            self.filling = NONE;
        }
        let chunk = &mut self.all[at];
        (chunk.rows, chunk.free) = (R::default(), NONE);
        chunk.older = self.gone;
        self.gone = at as u32;
        self.there -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use crate::base::settings::Settings;
    use crate::budget::admission::Admission;
    use crate::store::blobs::{Blobs, occupied};
    use crate::store::slab::Side;

    /// Comings and goings: so many at once, of blobs of this length; those that go are each so-many-th of all.
    #[derive(Clone, Debug)]
    enum Op {
        Come(usize, usize),
        Go(usize, usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        let len = prop_oneof![Just(1usize), Just(8), Just(500), 1usize..9_000];
        let come = (1usize..3_000, len).prop_map(|(count, len)| Op::Come(count, len));
        let go = (1usize..6_000, 1usize..4).prop_map(|(count, step)| Op::Go(count, step));
        prop_oneof![come, go]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn places_are_nobody_elses_while_chunks_come_and_go(ops in prop::collection::vec(op(), 1..12)) {
            let admission = Admission::new(&Settings::default(), 7);
            let (mut blobs, mut side) = (Blobs::default(), Side::default());
            let mut all = BTreeMap::new();
            let (mut next, mut bytes) = (0u64, 0);
            for op in ops {
                match op {
                    Op::Come(count, len) => for _ in 0..count.min(2_000_000 / len) {
                        next += 1;
                        let mut text = next.to_le_bytes()[..len.min(8)].to_vec();
                        text.resize(len, next as u8);
                        let blob = blobs.insert(&[&text], &admission);
                        bytes += occupied(len);
                        let row = side.insert(next);
                        all.insert(next, (blob, row, text));
                    },
                    Op::Go(count, step) => {
                        let going: alloc::vec::Vec<u64> = all.keys().copied().step_by(step).take(count).collect();
                        for key in going {
                            let (blob, row, text) = all.remove(&key).expect("it is there");
                            bytes -= occupied(text.len());
                            blobs.remove(blob);
                            prop_assert_eq!(side.remove(row), key);
                        }
                    }
                }
                prop_assert_eq!((blobs.bytes(), side.len() as usize), (bytes, all.len()));
                prop_assert!(blobs.reserved_bytes() >= bytes);
                for (key, (blob, row, text)) in &all {
                    prop_assert_eq!(&blobs.get(*blob)[..text.len()], &text[..]);
                    prop_assert_eq!(side.get(*row), key);
                }
            }
            for (blob, row, _) in all.into_values() {
                blobs.remove(blob);
                side.remove(row);
            }
            prop_assert!(!side.was_missed());
            prop_assert!(blobs.reserved_bytes() <= Blobs::SPARE_BYTES);
            prop_assert!(side.bytes() <= 16 << 10);
        }
    }
}
