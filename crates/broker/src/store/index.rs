//! A hash index over the rows of a [`Slab`], by linear hashing (Litwin 1980). Each bucket has a 32-bit chain head; the links are in the rows. The
//! index grows and shrinks by one bucket at a time, so no insertion stalls and the memory never doubles. It shrinks while it has more than twice as
//! many buckets as rows.
//!
//! Invariant: each inserted row is in the chain of exactly one bucket, which its hash selects for the current number of buckets.

use alloc::vec::Vec;

use crate::store::slab::{NONE, Slab, SlabRow};

/// The number of chain heads per chunk (16 KiB).
const HEADS_PER_CHUNK: usize = 4096;

/// A row that an index can chain.
pub trait Chained: SlabRow {
    /// The hash under which the row was inserted.
    fn hash(&self) -> u32;
    /// The next row of the row's chain.
    fn next(&self) -> u32;
    /// Sets the next row of the row's chain.
    fn set_next(&mut self, next: u32);
}

/// Implements [`Chained`] for a row with the field `next`, and with a field `hash` or an expression for the hash.
macro_rules! chained {
    ($row:ty) => {
        chained!($row, |row| row.hash);
    };
    ($row:ty, |$it:ident| $hash:expr) => {
        impl $crate::store::index::Chained for $row {
            fn hash(&self) -> u32 {
                let $it = self;
                $hash
            }
            fn next(&self) -> u32 {
                self.next
            }
            fn set_next(&mut self, next: u32) {
                self.next = next;
            }
        }
    };
}
pub(crate) use chained;

/// The index. The caller passes the slab of the rows to each call.
pub struct Index {
    head_chunks: Vec<Vec<u32>>,
    rows: u32,
    /// The number of buckets is `2^level + split`. Bucket number `split` is split next.
    level: u32,
    split: u32,
}

impl Index {
    /// Bytes of the chain heads.
    pub fn bytes(&self) -> usize {
        self.head_chunks.len() * HEADS_PER_CHUNK * size_of::<u32>()
    }

    fn bucket_of(&self, hash: u32) -> u32 {
        let low = hash & ((1u32 << self.level) - 1);
        if low < self.split {
            hash & ((2u32 << self.level) - 1)
        } else {
            low
        }
    }

    fn head_mut(&mut self, bucket: u32) -> &mut u32 {
        &mut self.head_chunks[bucket as usize / HEADS_PER_CHUNK][bucket as usize % HEADS_PER_CHUNK]
    }

    /// The first row of the hash's bucket.
    #[inline]
    pub fn first(&self, hash: u32) -> Option<u32> {
        let bucket = self.bucket_of(hash) as usize;
        let id = self.head_chunks[bucket / HEADS_PER_CHUNK][bucket % HEADS_PER_CHUNK];
        (id != NONE).then_some(id)
    }

    /// The row with this hash that `is_wanted` accepts.
    #[inline]
    pub fn find<T: Chained>(
        &self,
        rows: &Slab<T>,
        hash: u32,
        mut is_wanted: impl FnMut(&T) -> bool,
    ) -> Option<u32> {
        let mut next_id = self.first(hash);
        while let Some(id) = next_id {
            let row = rows.get(id);
            if row.hash() == hash && is_wanted(row) {
                return Some(id);
            }
            next_id = (row.next() != NONE).then_some(row.next());
        }
        None
    }

    /// Adds the row `id`, which must not be in the index.
    pub fn insert<T: Chained>(&mut self, rows: &mut Slab<T>, id: u32) {
        self.rows += 1;
        if self.rows > (1u32 << self.level) + self.split {
            self.grow(rows);
        }
        let bucket = self.bucket_of(rows.get(id).hash());
        let head = self.head_mut(bucket);
        rows.get_mut(id).set_next(*head);
        *head = id;
    }

    /// Removes the row `id`, which must be in the index.
    pub fn remove<T: Chained>(&mut self, rows: &mut Slab<T>, id: u32) {
        self.unlink(rows, id);
        self.rows -= 1;
        for _ in 0..2 {
            if self.rows < ((1u32 << self.level) + self.split) / 2 {
                self.shrink(rows);
            }
        }
    }

    fn unlink<T: Chained>(&mut self, rows: &mut Slab<T>, id: u32) {
        let (hash, next) = (rows.get(id).hash(), rows.get(id).next());
        let bucket = self.bucket_of(hash);
        let head = self.head_mut(bucket);
        if *head == id {
            *head = next;
            return;
        }
        let mut previous = *head;
        while rows.get(previous).next() != id {
            previous = rows.get(previous).next();
        }
        rows.get_mut(previous).set_next(next);
    }

    /// Undoes the last split: joins the two buckets that it made.
    fn shrink<T: Chained>(&mut self, rows: &mut Slab<T>) {
        if self.split == 0 {
            self.level -= 1;
            self.split = 1u32 << self.level;
        }
        self.split -= 1;
        let last_chunk = self
            .head_chunks
            .last_mut()
            .expect("the last bucket is there");
        let joined_head = last_chunk.pop().expect("a chunk is not empty");
        if last_chunk.is_empty() {
            self.head_chunks.pop();
        }
        let head = self.head_mut(self.split);
        let mut end_of_chain = *head;
        if end_of_chain == NONE {
            *head = joined_head;
            return;
        }
        while rows.get(end_of_chain).next() != NONE {
            end_of_chain = rows.get(end_of_chain).next();
        }
        rows.get_mut(end_of_chain).set_next(joined_head);
    }

    /// Splits the next bucket in two.
    fn grow<T: Chained>(&mut self, rows: &mut Slab<T>) {
        let bit = 1u32 << self.level;
        let (low_bucket, high_bucket) = (self.split, self.split + bit);
        if self
            .head_chunks
            .last()
            .is_none_or(|last| last.len() == HEADS_PER_CHUNK)
        {
            self.head_chunks.push(Vec::with_capacity(HEADS_PER_CHUNK));
        }
        self.head_chunks
            .last_mut()
            .expect("a chunk was just made")
            .push(NONE);
        let mut id = core::mem::replace(self.head_mut(low_bucket), NONE);
        while id != NONE {
            let (hash, next) = (rows.get(id).hash(), rows.get(id).next());
            let head = self.head_mut(if hash & bit == 0 {
                low_bucket
            } else {
                high_bucket
            });
            rows.get_mut(id).set_next(*head);
            *head = id;
            id = next;
        }
        self.split += 1;
        if self.split == bit {
            self.level += 1;
            self.split = 0;
        }
    }
}

impl Default for Index {
    /// An empty index with one bucket.
    fn default() -> Self {
        let mut first = Vec::with_capacity(HEADS_PER_CHUNK);
        first.push(NONE);
        Index {
            head_chunks: alloc::vec![first],
            rows: 0,
            level: 0,
            split: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Row {
        hash: u32,
        next: u32,
    }
    impl SlabRow for Row {
        fn vacant(next: u32) -> Self {
            Row { hash: 0, next }
        }
        fn next_vacant(&self) -> u32 {
            self.next
        }
    }
    chained!(Row);

    #[test]
    fn every_row_is_found_while_the_index_grows_and_shrinks() {
        let (mut rows, mut index) = (Slab::default(), Index::default());
        let hash = |n: u32| n.wrapping_mul(0x9E37_79B9) & 0xFFFF_FF0F;
        let mut ids = Vec::new();
        for n in 0..10_000 {
            let id = rows.insert(Row {
                hash: hash(n),
                next: NONE,
            });
            index.insert(&mut rows, id);
            ids.push(id);
        }
        for n in (0..10_000).step_by(3) {
            index.remove(&mut rows, ids[n]);
            rows.remove(ids[n]);
        }
        for n in 0..10_000u32 {
            let mut found = false;
            let mut seen = Vec::new();
            index.find(&rows, hash(n), |_| false);
            if n % 3 != 0 {
                let id = ids[n as usize];
                found = index.find(&rows, hash(n), |row| {
                    seen.push(row.hash);
                    core::ptr::eq(row, rows.get(id))
                }) == Some(id);
            }
            assert_eq!(found, n % 3 != 0, "row {n}");
        }
    }

    #[test]
    fn an_index_whose_rows_have_gone_is_small_again() {
        let (mut rows, mut index) = (Slab::default(), Index::default());
        let empty = index.bytes();
        for round in 0..3 {
            let ids: Vec<u32> = (0..20_000u32)
                .map(|n| {
                    let hash = (n + round).wrapping_mul(0x9E37_79B9);
                    let id = rows.insert(Row { hash, next: NONE });
                    index.insert(&mut rows, id);
                    id
                })
                .collect();
            assert!(index.bytes() > empty);
            for (n, id) in ids.iter().enumerate() {
                let hash = rows.get(*id).hash;
                index.remove(&mut rows, *id);
                rows.remove(*id);
                assert!(index.find(&rows, hash, |_| true).is_none());
                let last = rows.get(ids[ids.len() - 1]).hash;
                let more = n + 1 < ids.len();
                assert_eq!(index.find(&rows, last, |_| true).is_some(), more);
            }
            assert_eq!(index.bytes(), empty);
        }
    }
}
