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

/// A chunk, with its places as `R`.
struct Chunk<R> {
    places: R,
    /// Head of the list of freed places.
    first_free_place: u32,
    /// Places in use.
    places_in_use: u32,
    /// Neighbours in the list of chunks with freed places; `newer` is undefined in the first. In a freed chunk, `older` links to another freed chunk.
    newer: u32,
    older: u32,
}

/// The chunks.
pub(super) struct Chunks<R> {
    chunks: Vec<Chunk<R>>,
    /// Head of the list of chunks with freed places: the chunk that was full most recently.
    first_reusable: u32,
    /// The chunk with places that were never used, if any.
    growing: u32,
    /// The empty chunk that is kept, if any.
    spare: u32,
    /// Head of the list of freed chunks.
    first_freed: u32,
    /// Number of chunks that are not freed.
    live_count: u32,
}

impl<R> Default for Chunks<R> {
    fn default() -> Self {
        Chunks {
            chunks: Vec::new(),
            first_reusable: NONE,
            growing: NONE,
            spare: NONE,
            first_freed: NONE,
            live_count: 0,
        }
    }
}

impl<R: Default> Chunks<R> {
    /// Number of chunks that are not freed.
    pub fn len(&self) -> usize {
        self.live_count as usize
    }

    /// The places of the last chunk, and the number of that chunk.
    pub fn last(&self) -> Option<(&R, usize)> {
        let (last, before) = self.chunks.split_last()?;
        Some((&last.places, before.len()))
    }

    /// The places of all chunks.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        self.chunks.iter().map(|chunk| &chunk.places)
    }

    /// The places of chunk `number`, which are empty if the chunk is freed. `None` if there is no such chunk.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&R> {
        self.chunks.get(number).map(|chunk| &chunk.places)
    }

    /// The places of chunk `number`.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut R> {
        self.chunks.get_mut(number).map(|chunk| &mut chunk.places)
    }

    /// Whether there is a free place, or a freed chunk whose number a new chunk can get.
    pub fn has_place(&self) -> bool {
        (self.first_reusable, self.growing, self.first_freed) != (NONE, NONE, NONE)
    }

    /// The number of chunks, freed ones included. It never decreases.
    pub fn len_with_freed(&self) -> usize {
        self.chunks.len()
    }

    /// Takes a freed place. Returns the number of the place, and the places of its chunk. `link_of` reads the link in a freed place.
    #[inline]
    pub fn take_freed_place(
        &mut self,
        link_of: impl FnOnce(&R, u32) -> u32,
    ) -> Option<(u32, &mut R)> {
        let number = self.first_reusable;
        let chunk = self.chunks.get_mut(number as usize)?;
        let place = chunk.first_free_place;
        chunk.first_free_place = link_of(&chunk.places, place);
        chunk.places_in_use += 1;
        if chunk.first_free_place == NONE {
            self.first_reusable = chunk.older;
        }
        if number == self.spare {
            self.spare = NONE;
        }
        Some((place, &mut chunk.places))
    }

    /// Takes a place that was never used. Returns the number of the chunk and its places, to which the caller appends the new place. `make`
    /// makes a chunk.
    pub fn take_new_place(&mut self, make: impl FnOnce() -> R) -> (u32, &mut R) {
        if self.growing == NONE {
            self.growing = self.add(make());
        }
        let number = self.growing;
        if number == self.spare {
            self.spare = NONE;
        }
        let chunk = &mut self.chunks[number as usize];
        chunk.places_in_use += 1;
        (number, &mut chunk.places)
    }

    /// Notes that the chunk of the last [`take_new_place`](Self::take_new_place) is full.
    pub fn note_full(&mut self) {
        self.growing = NONE;
    }

    fn add(&mut self, places: R) -> u32 {
        self.live_count += 1;
        let chunk = Chunk {
            places,
            first_free_place: NONE,
            places_in_use: 0,
            newer: NONE,
            older: NONE,
        };
        if self.first_freed == NONE {
            // The list grows in small steps. If it doubled, it would reserve about a byte for each message.
            if self.chunks.len() == self.chunks.capacity() {
                self.chunks.reserve_exact(self.chunks.len() / 32 + 4);
            }
            self.chunks.push(chunk);
            return self.chunks.len() as u32 - 1;
        }
        let number = self.first_freed;
        let freed_chunk = &mut self.chunks[number as usize];
        self.first_freed = freed_chunk.older;
        *freed_chunk = chunk;
        number
    }

    /// Frees a place of chunk `number`. Returns the chunk's places, and the link that the caller must store in the freed place.
    #[inline]
    pub fn free(&mut self, number: usize, place: u32) -> (&mut R, u32) {
        let first = self.first_reusable;
        let chunk = &mut self.chunks[number];
        let link = chunk.first_free_place;
        chunk.first_free_place = place;
        chunk.places_in_use -= 1;
        if link == NONE {
            chunk.older = first;
            self.first_reusable = number as u32;
            if let Some(first) = self.chunks.get_mut(first as usize) {
                first.newer = number as u32;
            }
        }
        (&mut self.chunks[number].places, link)
    }

    /// Whether chunk `number` has no place in use.
    #[inline]
    pub fn is_empty(&self, number: usize) -> bool {
        self.chunks[number].places_in_use == 0
    }

    /// Whether at most `used_max` places of chunk `number` are in use, and the next place will be taken from another chunk.
    pub fn is_sparse(&self, number: usize, used_max: usize) -> bool {
        let next_used = match self.first_reusable {
            NONE => self.growing,
            reusable => reusable,
        };
        self.chunks[number].places_in_use as usize <= used_max
            && next_used != NONE
            && next_used as usize != number
    }

    /// Keeps the empty chunk `number` as the spare chunk, or frees it if there is a spare chunk already. Returns whether it was freed.
    pub fn release_empty(&mut self, number: usize) -> bool {
        if self.spare == NONE {
            self.spare = number as u32;
            return false;
        }
        let Chunk { newer, older, .. } = self.chunks[number];
        if self.first_reusable == number as u32 {
            self.first_reusable = older;
        } else {
            self.chunks[newer as usize].older = older;
            if let Some(older) = self.chunks.get_mut(older as usize) {
                older.newer = newer;
            }
        }
        if self.growing == number as u32 {
            self.growing = NONE;
        }
        let chunk = &mut self.chunks[number];
        (chunk.places, chunk.first_free_place) = (R::default(), NONE);
        chunk.older = self.first_freed;
        self.first_freed = number as u32;
        self.live_count -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use crate::base::settings::Settings;
    use crate::budget::admission::Admission;
    use crate::store::blobs::{Blobs, occupied_blob_bytes};
    use crate::store::slab::SideTable;

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
        fn places_are_unique_while_chunks_come_and_go(ops in prop::collection::vec(op(), 1..12)) {
            let admission = Admission::new(&Settings::default(), 7);
            let (mut blobs, mut side) = (Blobs::default(), SideTable::default());
            let mut all = BTreeMap::new();
            let (mut next, mut bytes) = (0u64, 0);
            for op in ops {
                match op {
                    Op::Come(count, len) => for _ in 0..count.min(2_000_000 / len) {
                        next += 1;
                        let mut text = next.to_le_bytes()[..len.min(8)].to_vec();
                        text.resize(len, next as u8);
                        let blob = blobs.insert(&[&text], &admission);
                        bytes += occupied_blob_bytes(len);
                        let row = side.insert(next);
                        all.insert(next, (blob, row, text));
                    },
                    Op::Go(count, step) => {
                        let going: alloc::vec::Vec<u64> = all.keys().copied().step_by(step).take(count).collect();
                        for key in going {
                            let (blob, row, text) = all.remove(&key).expect("it is there");
                            bytes -= occupied_blob_bytes(text.len());
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
            prop_assert!(!side.take_missed());
            prop_assert!(blobs.reserved_bytes() <= Blobs::SPARE_BYTES);
            prop_assert!(side.bytes() <= 16 << 10);
        }
    }
}
