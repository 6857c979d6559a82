//! Tables of rows that grow in small chunks. A row keeps its index while it is in use. Freed rows are reused first. Growth never copies rows, and
//! reserves little more than is used: with millions of rows, the spare capacity of a doubling vector would exceed the memory budget.
//!
//! Tables free empty chunks if their rows allow it ([`SlabRow::FREES_CHUNKS`]).
//!
//! Invariants: a row is either in use or in the free list, and the caller knows which. If the caller uses the index (`id`) of a row that does not
//! exist, the broker has a bug. The same is true of a free row of a [`SideTable`]; a [`Slab`] cannot see that. The caller then gets a row that nobody
//! owns, empty until somebody writes to it, and the table notes the miss ([`Slab::take_missed`]). The shard ends the connection that it was serving.

use alloc::vec::Vec;
use core::cell::{Cell, OnceCell};

use crate::store::chunks::Chunks;
pub use crate::store::chunks::NONE;

/// Approximate size of a chunk: small enough that a table with few rows costs little, and large enough that the list of chunks is short.
const CHUNK_BYTES: usize = 16 << 10;

/// A row type whose free rows store the links of the free list, so that the list needs no extra memory.
pub trait SlabRow {
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
    rows_in_use: u32,
    /// Returned instead of a row that does not exist.
    empty_row: T,
    /// A row that does not exist was looked up since the last `take_missed`.
    has_missed_row: Cell<bool>,
}

impl<T: SlabRow> Slab<T> {
    const PER_CHUNK: usize = {
        let rows = CHUNK_BYTES / size_of::<T>();
        assert!(rows >= 16, "rows must be small beside a chunk");
        1 << rows.ilog2()
    };

    /// Whether a missing row was looked up since the last call. Clears the mark.
    #[inline]
    pub fn take_missed(&self) -> bool {
        self.has_missed_row.get() && self.has_missed_row.take()
    }

    /// Rows in use.
    pub fn len(&self) -> u32 {
        self.rows_in_use
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.chunks.len() * Self::PER_CHUNK * size_of::<T>()
    }

    /// One past the highest index that may be in use.
    pub fn end(&self) -> u32 {
        match self.chunks.last() {
            None => 0,
            Some((last, before)) => (before * Self::PER_CHUNK + last.len()) as u32,
        }
    }

    /// Stores a row, and returns its index.
    pub fn insert(&mut self, mut row: T) -> u32 {
        self.rows_in_use += 1;
        let index_in_chunk = |id: u32| id as usize % Self::PER_CHUNK;
        let link_of = |rows: &Vec<T>, id| rows[index_in_chunk(id)].next_vacant();
        if let Some((id, rows)) = self.chunks.take_freed_place(link_of) {
            row.inherit(&rows[index_in_chunk(id)]);
            rows[index_in_chunk(id)] = row;
            return id;
        }
        let (chunk, rows) = self
            .chunks
            .take_new_place(|| Vec::with_capacity(Self::PER_CHUNK));
        let id = chunk * Self::PER_CHUNK as u32 + rows.len() as u32;
        rows.push(row);
        if rows.len() == Self::PER_CHUNK {
            self.chunks.note_full();
        }
        id
    }

    /// Frees a row, and returns its content.
    pub fn remove(&mut self, id: u32) -> T {
        if self.try_get(id).is_none() {
            self.has_missed_row.set(true);
            return T::vacant(NONE);
        }
        let (chunk, index_in_chunk) =
            (id as usize / Self::PER_CHUNK, id as usize % Self::PER_CHUNK);
        let (rows, next) = self.chunks.free(chunk, id);
        let mut vacant = T::vacant(next);
        vacant.inherit(&rows[index_in_chunk]);
        let row = core::mem::replace(&mut rows[index_in_chunk], vacant);
        self.rows_in_use -= 1;
        if T::FREES_CHUNKS && self.chunks.is_empty(chunk) {
            self.chunks.release_empty(chunk);
        }
        row
    }

    /// The row `id`, which must exist.
    #[inline]
    pub fn get(&self, id: u32) -> &T {
        match self.try_get(id) {
            Some(row) => row,
            None => {
                self.has_missed_row.set(true);
                &self.empty_row
            }
        }
    }

    /// The row `id`, which must exist.
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> &mut T {
        let index = id as usize;
        let chunk = self.chunks.get_mut(index / Self::PER_CHUNK);
        match chunk.and_then(|chunk| chunk.get_mut(index % Self::PER_CHUNK)) {
            Some(row) => row,
            None => {
                self.has_missed_row.set(true);
                self.empty_row = T::vacant(NONE);
                &mut self.empty_row
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

impl<T: SlabRow> Default for Slab<T> {
    /// An empty table; allocates nothing.
    fn default() -> Self {
        Slab {
            chunks: Chunks::default(),
            rows_in_use: 0,
            empty_row: T::vacant(NONE),
            has_missed_row: Cell::new(false),
        }
    }
}

/// A row of a [`SideTable`], for a type that cannot store a link itself.
pub enum SideRow<T> {
    /// In use.
    InUse(T),
    /// Free, with the next free row.
    Free(u32),
}

impl<T> SlabRow for SideRow<T> {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        SideRow::Free(next)
    }
    fn next_vacant(&self) -> u32 {
        match self {
            SideRow::Free(next) => *next,
            // A row in use must never be in the free list.
            SideRow::InUse(_) => unreachable!("a used row stands in the free list"),
        }
    }
}

/// A table of side rows: rows that exist only while a connection or a topic needs them.
#[derive(Default)]
pub struct SideTable<T> {
    rows: Slab<SideRow<T>>,
    /// Returned instead of a row that is not in use; made when such a row is looked up.
    empty_row: OnceCell<T>,
}

impl<T: Default> SideTable<T> {
    /// Whether a missing or free row was looked up since the last call. Clears the mark.
    pub fn take_missed(&self) -> bool {
        self.rows.take_missed()
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
            SideRow::InUse(row) => Some(row),
            SideRow::Free(_) => None,
        })
    }
    /// The slab, with the rows in use and the free ones.
    pub fn slab_mut(&mut self) -> &mut Slab<SideRow<T>> {
        &mut self.rows
    }
    /// Adds a row.
    pub fn insert(&mut self, row: T) -> u32 {
        self.rows.insert(SideRow::InUse(row))
    }
    /// Removes a row, and returns it.
    pub fn remove(&mut self, id: u32) -> T {
        // A free row is already in the free list, and must not be freed again.
        if !matches!(self.rows.try_get(id), Some(SideRow::InUse(_))) {
            self.rows.has_missed_row.set(true);
            return T::default();
        }
        match self.rows.remove(id) {
            SideRow::InUse(row) => row,
            SideRow::Free(_) => T::default(),
        }
    }
    /// The row `id`, which must be in use.
    pub fn get(&self, id: u32) -> &T {
        match self.rows.get(id) {
            SideRow::InUse(row) => row,
            SideRow::Free(_) => {
                self.rows.has_missed_row.set(true);
                self.empty_row.get_or_init(T::default)
            }
        }
    }
    /// The row `id`, which must be in use.
    pub fn get_mut(&mut self, id: u32) -> &mut T {
        let SideTable { rows, .. } = self;
        let Slab {
            chunks,
            has_missed_row: missed,
            ..
        } = rows;
        let (index, per_chunk) = (id as usize, Slab::<SideRow<T>>::PER_CHUNK);
        let chunk = chunks.get_mut(index / per_chunk);
        match chunk.and_then(|chunk| chunk.get_mut(index % per_chunk)) {
            Some(SideRow::InUse(row)) => row,
            _ => {
                missed.set(true);
                self.empty_row = OnceCell::from(T::default());
                self.empty_row.get_mut().expect("it was just set")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangling_link_is_counted_and_disturbs_no_other() {
        let mut side = SideTable::default();
        let (kept, gone) = (side.insert(7_u32), side.insert(8));
        assert_eq!(side.remove(gone), 8);
        for lost in [gone, NONE, 1 << 20] {
            assert!(!side.take_missed());
            assert_eq!(*side.get(lost), 0);
            assert!(side.take_missed());
            *side.get_mut(lost) = 9;
            assert_eq!((*side.get(lost), *side.get_mut(lost)), (9, 0));
            assert_eq!(side.remove(lost), 0);
            assert!(side.take_missed());
        }
        assert_eq!((side.len(), *side.get(kept)), (1, 7));
        assert_eq!((side.insert(1), side.insert(2)), (gone, 2));
    }

    #[test]
    fn rows_keep_their_index_and_freed_ones_come_back_first() {
        let mut side = SideTable::default();
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
