//! Tables of rows that grow in small chunks. A row keeps its index while it is in use. Freed rows are reused first. Growth never copies rows, and
//! reserves little more than is used: with millions of rows, the spare capacity of a doubling vector would exceed the memory budget.
//!
//! Tables free empty chunks if their rows allow it ([`Vacant::FREES_CHUNKS`]).
//!
//! Invariants: a row is either in use or in the free list, and the caller knows which. If the caller uses the index of a row that does not exist, the
//! broker has a bug. The same is true of a free row of a table of side rows ([`Side`]). Then the caller gets an empty row that belongs to no one, and
//! the table notes the miss ([`Slab::was_missed`]). The shard ends the connection that it was serving.

use alloc::vec::Vec;
use core::cell::{Cell, OnceCell};

use crate::store::chunks::Chunks;
pub use crate::store::chunks::NONE;

/// Approximate size of a chunk: small enough that a table with few rows costs little, and large enough that the list of chunks is short.
const CHUNK_BYTES: usize = 16 << 10;

/// A row type whose free rows store the links of the free list, so that the list needs no extra memory.
pub trait Vacant {
    /// Whether empty chunks are freed. If they are, nobody may look up a free row, since its chunk may be gone.
    const FREES_CHUNKS: bool = false;
    /// A free row that links to `next`.
    fn vacant(next: u32) -> Self;
    /// The index of the next free row, stored in a free row.
    fn next_vacant(&self) -> u32;
    /// Copies the fields that must outlive the row's former content, such as a generation.
    fn inherit(&mut self, _former: &Self) {}
}

/// A chunked table of `T`.
pub struct Slab<T> {
    chunks: Chunks<Vec<T>>,
    used: u32,
    /// Returned instead of a row that does not exist.
    nobody: T,
    missed: Cell<bool>,
}

impl<T: Vacant> Slab<T> {
    const PER_CHUNK: usize = {
        let rows = CHUNK_BYTES / size_of::<T>();
        assert!(rows >= 16, "rows must be small beside a chunk");
        1 << rows.ilog2()
    };

    /// Whether a missing row was looked up since the last call.
    #[inline]
    pub fn was_missed(&self) -> bool {
        self.missed.get() && self.missed.take()
    }

    /// Rows in use.
    pub fn len(&self) -> u32 {
        self.used
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.chunks.len() * Self::PER_CHUNK * size_of::<T>()
    }

    /// One past the highest index that was ever used.
    pub fn end(&self) -> u32 {
        match self.chunks.last() {
            None => 0,
            Some((last, before)) => (before * Self::PER_CHUNK + last.len()) as u32,
        }
    }

    /// Stores a row, and returns its index.
    pub fn insert(&mut self, mut row: T) -> u32 {
        self.used += 1;
        let at = |id: u32| id as usize % Self::PER_CHUNK;
        let link_of = |rows: &Vec<T>, id| rows[at(id)].next_vacant();
        if let Some((id, rows)) = self.chunks.reuse(link_of) {
            row.inherit(&rows[at(id)]);
            rows[at(id)] = row;
            return id;
        }
        let (chunk, rows) = self.chunks.fill(|| Vec::with_capacity(Self::PER_CHUNK));
        let id = chunk * Self::PER_CHUNK as u32 + rows.len() as u32;
        rows.push(row);
        if rows.len() == Self::PER_CHUNK {
            self.chunks.filled();
        }
        id
    }

    /// Frees a row, and returns its content.
    pub fn remove(&mut self, id: u32) -> T {
        if self.try_get(id).is_none() {
            self.missed.set(true);
            return T::vacant(NONE);
        }
        let (chunk, at) = (id as usize / Self::PER_CHUNK, id as usize % Self::PER_CHUNK);
        let (rows, next) = self.chunks.free(chunk, id);
        let mut vacant = T::vacant(next);
        vacant.inherit(&rows[at]);
        let row = core::mem::replace(&mut rows[at], vacant);
        self.used -= 1;
        if T::FREES_CHUNKS && self.chunks.is_empty(chunk) {
            self.chunks.give_back(chunk);
        }
        row
    }

    /// The row `id`, which must exist.
    #[inline]
    pub fn get(&self, id: u32) -> &T {
        match self.try_get(id) {
            Some(row) => row,
            None => {
                self.missed.set(true);
                &self.nobody
            }
        }
    }

    /// The row `id`, which must exist.
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> &mut T {
        let at = id as usize;
        let chunk = self.chunks.get_mut(at / Self::PER_CHUNK);
        match chunk.and_then(|chunk| chunk.get_mut(at % Self::PER_CHUNK)) {
            Some(row) => row,
            None => {
                self.missed.set(true);
                self.nobody = T::vacant(NONE);
                &mut self.nobody
            }
        }
    }

    /// The row `id`, in use or free; `None` if the table has no such row.
    #[inline]
    pub fn try_get(&self, id: u32) -> Option<&T> {
        let id = id as usize;
        self.chunks
            .get(id / Self::PER_CHUNK)?
            .get(id % Self::PER_CHUNK)
    }
}

impl<T: Vacant> Default for Slab<T> {
    /// An empty table; allocates nothing.
    fn default() -> Self {
        Slab {
            chunks: Chunks::default(),
            used: 0,
            nobody: T::vacant(NONE),
            missed: Cell::new(false),
        }
    }
}

/// A row for a type that cannot store a link itself.
pub enum Slot<T> {
    /// In use.
    Used(T),
    /// Free, with the next free row.
    Free(u32),
}

impl<T> Vacant for Slot<T> {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        Slot::Free(next)
    }
    fn next_vacant(&self) -> u32 {
        match self {
            Slot::Free(next) => *next,
            // A row in use must never be in the free list.
            Slot::Used(_) => unreachable!("a used row stands in the free list"),
        }
    }
}

/// A table of side rows: rows that exist only while a connection or a topic needs them.
#[derive(Default)]
pub struct Side<T> {
    rows: Slab<Slot<T>>,
    /// Returned instead of a row that does not exist; made when such a row is looked up.
    nobody: OnceCell<T>,
}

impl<T: Default> Side<T> {
    /// Whether a missing row was looked up since the last call.
    pub fn was_missed(&self) -> bool {
        self.rows.was_missed()
    }
    /// Rows in use.
    pub fn len(&self) -> u32 {
        self.rows.len()
    }
    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
    }
    /// The rows in use.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let rows = self.rows.chunks.iter().flatten();
        rows.filter_map(|row| match row {
            Slot::Used(row) => Some(row),
            Slot::Free(_) => None,
        })
    }
    /// All rows, in use and free.
    pub fn rows_mut(&mut self) -> &mut Slab<Slot<T>> {
        &mut self.rows
    }
    /// Adds a row.
    pub fn insert(&mut self, row: T) -> u32 {
        self.rows.insert(Slot::Used(row))
    }
    /// Removes a row, and returns it.
    pub fn remove(&mut self, id: u32) -> T {
        // A free row is already in the free list, and must not be freed again.
        if !matches!(self.rows.try_get(id), Some(Slot::Used(_))) {
            self.rows.missed.set(true);
            return T::default();
        }
        match self.rows.remove(id) {
            Slot::Used(row) => row,
            Slot::Free(_) => T::default(),
        }
    }
    /// The row `id`, which must be in use.
    pub fn get(&self, id: u32) -> &T {
        match self.rows.get(id) {
            Slot::Used(row) => row,
            Slot::Free(_) => {
                self.rows.missed.set(true);
                self.nobody.get_or_init(T::default)
            }
        }
    }
    /// The row `id`, which must be in use.
    pub fn get_mut(&mut self, id: u32) -> &mut T {
        let Side { rows, .. } = self;
        let Slab { chunks, missed, .. } = rows;
        let (at, per_chunk) = (id as usize, Slab::<Slot<T>>::PER_CHUNK);
        let chunk = chunks.get_mut(at / per_chunk);
        match chunk.and_then(|chunk| chunk.get_mut(at % per_chunk)) {
            Some(Slot::Used(row)) => row,
            _ => {
                missed.set(true);
                self.nobody = OnceCell::from(T::default());
                self.nobody.get_mut().expect("it was just set")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_to_no_row_is_noted_and_disturbs_no_other() {
        let mut side = Side::default();
        let (kept, gone) = (side.insert(7_u32), side.insert(8));
        assert_eq!(side.remove(gone), 8);
        for lost in [gone, NONE, 1 << 20] {
            assert!(!side.was_missed());
            assert_eq!(*side.get(lost), 0);
            assert!(side.was_missed());
            *side.get_mut(lost) = 9;
            assert_eq!((*side.get(lost), *side.get_mut(lost)), (9, 0));
            assert_eq!(side.remove(lost), 0);
            assert!(side.was_missed());
        }
        assert_eq!((side.len(), *side.get(kept)), (1, 7));
        assert_eq!((side.insert(1), side.insert(2)), (gone, 2));
    }

    #[test]
    fn rows_keep_their_index_and_freed_ones_come_back_first() {
        let mut side = Side::default();
        let ids: Vec<u32> = (0..5000u32).map(|n| side.insert(n)).collect();
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(*side.get(*id), n as u32);
        }
        assert_eq!(side.remove(ids[7]), 7);
        assert_eq!(side.remove(ids[4000]), 4000);
        assert_eq!(side.insert(1), ids[4000]);
        assert_eq!(side.insert(2), ids[7]);
        assert_eq!(side.rows.len(), 5000);
    }
}
