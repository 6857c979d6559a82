//! Manages the chunks of a table or of a size class: finds free places, and frees empty chunks.
//!
//! Freed places are reused before places that were never used. Among chunks with freed places, the chunk that was full most recently is used first,
//! so that emptier chunks get no new rows and become empty. One empty chunk is kept, since otherwise a table that shrinks and grows by one row would
//! allocate each time.
//!
//! Invariants: each chunk has a free list, whose links are stored in the freed places. All chunks with freed places are in one list. At
//! most one chunk has places that were never used. The next new chunk reuses the number of a freed chunk.

use alloc::vec::Vec;

/// No row. Marks the end of a list, or an empty field.
pub const NONE: u32 = u32::MAX;

/// A chunk.
struct Chunk<R> {
    rows: R,
    /// Head of the list of freed places.
    free: u32,
    /// Places in use.
    used: u32,
    /// Neighbours in the list of chunks with freed places; `newer` is undefined in the first. In a freed chunk, `older` links to another freed chunk.
    newer: u32,
    older: u32,
}

/// The chunks.
pub(super) struct Chunks<R> {
    all: Vec<Chunk<R>>,
    /// Head of the list of chunks with freed places: the chunk that was full most recently.
    reusable: u32,
    /// The chunk with places that were never used, if any.
    filling: u32,
    /// The empty chunk that is kept, if any.
    spare: u32,
    /// Head of the list of freed chunks.
    freed: u32,
    /// Number of chunks that are not freed.
    live: u32,
}

impl<R> Default for Chunks<R> {
    fn default() -> Self {
        Chunks {
            all: Vec::new(),
            reusable: NONE,
            filling: NONE,
            spare: NONE,
            freed: NONE,
            live: 0,
        }
    }
}

impl<R: Default> Chunks<R> {
    /// Number of chunks that are not freed.
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// The places of the last chunk, and the number of that chunk.
    pub fn last(&self) -> Option<(&R, usize)> {
        let (last, before) = self.all.split_last()?;
        Some((&last.rows, before.len()))
    }

    /// The places of all chunks.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        self.all.iter().map(|chunk| &chunk.rows)
    }

    /// The places of chunk `at`, which are empty if the chunk is freed. `None` if there is no such chunk.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&R> {
        self.all.get(at).map(|chunk| &chunk.rows)
    }

    /// The places of chunk `at`.
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut R> {
        self.all.get_mut(at).map(|chunk| &mut chunk.rows)
    }

    /// Whether there is a free place, or a freed chunk whose number a new chunk can get.
    pub fn has_place(&self) -> bool {
        (self.reusable, self.filling, self.freed) != (NONE, NONE, NONE)
    }

    /// The number of chunks, freed ones included. It never decreases.
    pub fn len_with_freed(&self) -> usize {
        self.all.len()
    }

    /// Takes a freed place. Returns the number of the place, and the places of its chunk. `link_of` reads the link in a freed place.
    #[inline]
    pub fn reuse(&mut self, link_of: impl FnOnce(&R, u32) -> u32) -> Option<(u32, &mut R)> {
        let at = self.reusable;
        let chunk = self.all.get_mut(at as usize)?;
        let place = chunk.free;
        chunk.free = link_of(&chunk.rows, place);
        chunk.used += 1;
        if chunk.free == NONE {
            self.reusable = chunk.older;
        }
        if at == self.spare {
            self.spare = NONE;
        }
        Some((place, &mut chunk.rows))
    }

    /// Takes a place that was never used. Returns the number of the chunk and its places, to which the caller appends the new place. `make`
    /// makes a chunk.
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

    /// Notes that the chunk that [`fill`](Self::fill) returned is full.
    pub fn filled(&mut self) {
        self.filling = NONE;
    }

    fn add(&mut self, rows: R) -> u32 {
        self.live += 1;
        let chunk = Chunk {
            rows,
            free: NONE,
            used: 0,
            newer: NONE,
            older: NONE,
        };
        if self.freed == NONE {
            // The list grows in small steps. If it doubled, it would reserve about a byte for each message.
            if self.all.len() == self.all.capacity() {
                self.all.reserve_exact(self.all.len() / 32 + 4);
            }
            self.all.push(chunk);
            return self.all.len() as u32 - 1;
        }
        let at = self.freed;
        let place = &mut self.all[at as usize];
        self.freed = place.older;
        *place = chunk;
        at
    }

    /// Frees a place of chunk `at`. Returns the chunk's places, and the link that the caller must store in the freed place.
    #[inline]
    pub fn free(&mut self, at: usize, place: u32) -> (&mut R, u32) {
        let first = self.reusable;
        let chunk = &mut self.all[at];
        let link = chunk.free;
        chunk.free = place;
        chunk.used -= 1;
        if link == NONE {
            chunk.older = first;
            self.reusable = at as u32;
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

    /// Whether at most `used_max` places of chunk `at` are in use, and the next place will be taken from another chunk.
    pub fn is_sparse(&self, at: usize, used_max: usize) -> bool {
        let next = match self.reusable {
            NONE => self.filling,
            reusable => reusable,
        };
        self.all[at].used as usize <= used_max && next != NONE && next as usize != at
    }

    /// Keeps the empty chunk `at` as the spare chunk, or frees it if there is a spare chunk already. Returns whether it was freed.
    pub fn give_back(&mut self, at: usize) -> bool {
        if self.spare == NONE {
            self.spare = at as u32;
            return false;
        }
        let Chunk { newer, older, .. } = self.all[at];
        if self.reusable == at as u32 {
            self.reusable = older;
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
        chunk.older = self.freed;
        self.freed = at as u32;
        self.live -= 1;
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

    /// Inserts a number of blobs of one length, or removes every n-th blob.
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
