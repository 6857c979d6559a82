//! Stores the names of topics, of clients, and of the levels of filters. A name needs no stored length: the last byte of its place contains the
//! number of unused bytes before that byte.

use crate::store::blobs::{Blob, BlobOwner, Blobs, class_size};
use crate::store::slab::Slab;

/// The names.
#[derive(Default)]
pub struct Names(Blobs);

impl Names {
    /// Bytes that the names occupy.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Bytes of all chunks, used or not.
    pub fn reserved_bytes(&self) -> usize {
        self.0.reserved_bytes()
    }

    /// Stores a name of at most 1,000 bytes.
    ///
    /// # Panics
    /// When no size class has a place for the name. The configured limits exclude that.
    pub fn insert(&mut self, name: &[u8]) -> Blob {
        let class = self.0.class_with_free_place(name.len() + 1);
        let class = class.expect("the limits leave a place for every name");
        let padding = class_size(class) - name.len() - 1;
        assert!(
            padding < 256,
            "the steps of the classes are under 256 bytes up to names of 1,000"
        );
        let zeros = [0u8; 256];
        let parts = [name, &zeros[..padding], &[padding as u8]];
        self.0.insert_in_class(class, &parts)
    }

    /// The bytes of a name.
    #[inline]
    pub fn get(&self, name: Blob) -> &[u8] {
        let padded = self.0.get(name);
        let end = padded.len() - 1;
        &padded[..end - padded[end] as usize]
    }

    /// Frees a name.
    pub fn remove(&mut self, name: Blob) {
        self.0.remove(name);
    }

    /// See [`Blobs::compact`].
    #[inline]
    pub fn compact<T: BlobOwner>(&mut self, rows: &mut Slab<T>) -> usize {
        self.0.compact(rows)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::store::slab::{NONE, SlabRow};

    #[test]
    fn names_come_back_whole_and_everything_is_freed() {
        let mut names = Names::default();
        for len in 0..=1000 {
            let text = alloc::vec![b'x'; len];
            let name = names.insert(&text);
            assert_eq!(names.get(name), &text[..]);
            names.remove(name);
        }
        assert_eq!(names.bytes(), 0);
    }

    struct Row {
        name: Blob,
        next: u32,
    }
    impl SlabRow for Row {
        fn vacant(next: u32) -> Self {
            Row {
                name: Blob::NONE,
                next,
            }
        }
        fn next_vacant(&self) -> u32 {
            self.next
        }
    }
    impl BlobOwner for Row {
        fn blob_mut(&mut self) -> Option<&mut Blob> {
            Some(&mut self.name)
        }
    }

    /// Tests that the memory of removed names is freed although one name stays in each chunk. Inserts and removes names of one length after
    /// another.
    #[test]
    fn names_in_each_chunk_do_not_keep_the_memory_of_removed_ones() {
        const MANY: usize = 8_192;
        let (mut names, mut rows) = (Names::default(), Slab::default());
        let mut kept = Vec::new();
        for len in (63..255).step_by(16) {
            let text = |n: usize| {
                let mut text = n.to_le_bytes().to_vec();
                text.resize(len, b'x');
                text
            };
            let add = |names: &mut Names, rows: &mut Slab<Row>, n| {
                let name = names.insert(&text(n));
                let next = NONE;
                let id = rows.insert(Row { name, next });
                names.compact(rows);
                (id, text(n))
            };
            let all: Vec<_> = (0..MANY).map(|n| add(&mut names, &mut rows, n)).collect();
            for (n, (id, text)) in all.into_iter().enumerate() {
                if n % 32 == 0 {
                    kept.push((id, text));
                    continue;
                }
                names.remove(rows.remove(id).name);
            }
        }
        for (id, text) in &kept {
            assert_eq!(names.get(rows.get(*id).name), text);
        }
        // Nothing was inserted after the last removals, so the arena is not compacted yet, and this much more may be reserved.
        let reserved_max = 2 * (names.bytes() + Blobs::SPARE_BYTES) + MANY * 256;
        let reserved = names.reserved_bytes();
        assert!(
            reserved <= reserved_max,
            "{reserved} bytes, and not {reserved_max}"
        );
    }
}
