//! An arena for byte strings (names and logged messages), with size classes. The next blob of a class reuses a freed place. So a log at its limit
//! writes to the same memory pages again: a fresh page would cost more than the copy into it. An empty chunk is freed, except one in each class
//! ([`Blobs::SPARE_BYTES`]).
//!
//! A single blob can keep a chunk alive after its neighbours are freed. So while much more is reserved than used, the owner calls [`Blobs::compact`]
//! with each insertion: the call examines some rows of the owner's table, and moves their blobs out of sparse chunks. Thus the chunks have at most
//! twice the bytes of the blobs, plus two chunks for each class. After many removals, this holds again only after some insertions.
//!
//! Invariants: a handle names exactly one place. It does not contain the length, which the caller must know. A blob larger than the largest class has
//! its own allocation, which may be shared. When a class is full, its blobs are stored in the next larger class.

use alloc::vec::Vec;

use crate::budget::admission::Admission;
use crate::store::chunks::Chunks;
use crate::store::shared::{SHARED_MIN, Shared};
use crate::store::slab::{NONE, SideTable, Slab, SlabRow};

/// Up to this length, there is a class for every 8 bytes.
const FINE_MAX: usize = 128;
/// Above `FINE_MAX`, each power of two has sixteen classes, up to this length. A longer blob has its own allocation.
const CLASS_MAX: usize = SHARED_MIN;
const CHUNK_BYTES: usize = 16 << 10;
const CLASSES: usize = FINE_MAX / 8 + 6 * 16;
/// The class number of blobs with their own allocation.
const OWN_ALLOCATION: u32 = 127;
const PLACE_BITS: u32 = 25;
/// The maximum number of places of one class. In tests there are so few that classes become full.
const PLACES_MAX: u32 = if cfg!(test) { 1 << 14 } else { 1 << PLACE_BITS };

/// Rows that [`Blobs::compact`] examines in one call.
const ROWS_PER_BLOB: u32 = 32;

/// The message of the panic when a handle is not valid. Without the panic the caller would get the bytes of another blob.
const BLOB_LOST: &str = "a blob lies where its handle says";

/// The handle of a blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blob(u32);

impl Default for Blob {
    fn default() -> Self {
        Blob::NONE
    }
}

impl Blob {
    /// No blob.
    pub const NONE: Blob = Blob(NONE);
}

/// The places of one class. The links between freed places are stored in these places.
#[derive(Default)]
struct Class {
    /// A chunk is allocated with the capacity for all its places. Its length grows with the places in use, so that unused memory pages are
    /// not touched.
    chunks: Chunks<Vec<u8>>,
}

/// The arena.
#[derive(Default)]
pub struct Blobs {
    classes: Vec<Class>,
    shared: SideTable<Option<Shared>>,
    bytes: usize,
    /// Bytes of blobs with their own allocation.
    shared_bytes: usize,
    /// Bytes of all chunks.
    chunk_bytes: usize,
    /// The next row of the owner's table to examine.
    next_row: u32,
}

/// A row that owns a blob.
pub trait BlobOwner: SlabRow {
    /// The handle of the row's blob. `None` or [`Blob::NONE`] if the row has no blob; a free row has none.
    fn blob_mut(&mut self) -> Option<&mut Blob>;
}

/// The bytes of a blob.
pub enum BlobBytes<'a> {
    /// The place of the blob: the stored bytes, and padding.
    Padded(&'a [u8]),
    /// A blob with its own allocation.
    Shared(&'a Shared),
}

fn class_of(len: usize) -> usize {
    if len <= FINE_MAX {
        return len.max(1).div_ceil(8) - 1;
    }
    let power = (len - 1).ilog2();
    let step = (len - 1 - (1 << power)) >> (power - 4);
    FINE_MAX / 8 + (power as usize - 7) * 16 + step
}

/// Bytes of a place of this class.
pub(super) fn class_size(class: usize) -> usize {
    if class < FINE_MAX / 8 {
        return (class + 1) * 8;
    }
    let above = class - FINE_MAX / 8;
    let (power, step) = (7 + above / 16, above % 16);
    (1 << power) + ((step + 1) << (power - 4))
}

/// Bytes that a blob of `len` occupies.
pub fn occupied_blob_bytes(len: usize) -> usize {
    if len > CLASS_MAX {
        len
    } else {
        class_size(class_of(len))
    }
}

impl Blobs {
    /// The maximum bytes of empty chunks: one chunk for each class.
    pub const SPARE_BYTES: usize = CLASSES * CHUNK_BYTES;

    /// Bytes of all places in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of all chunks and allocations, used or not.
    pub fn reserved_bytes(&self) -> usize {
        self.chunk_bytes + self.shared_bytes + self.shared.bytes()
    }

    /// The number of blobs with their own allocation.
    pub fn shared_count(&self) -> u32 {
        self.shared.len()
    }

    /// Whether the table of blobs with their own allocation is full, so that the next blob may find no place.
    pub fn is_full(&self) -> bool {
        self.shared.len() >= PLACES_MAX - 1
    }

    /// Stores the concatenation of `parts`. A large blob is counted in `admission` as kept by a log.
    ///
    /// # Panics
    /// When the blob is large and the arena [is full](Self::is_full).
    pub fn insert(&mut self, parts: &[&[u8]], admission: &Admission) -> Blob {
        let len = parts.iter().map(|part| part.len()).sum();
        match self.class_with_free_place(len) {
            Some(class) => self.insert_in_class(class, parts),
            None => self.insert_shared(Shared::new(parts.concat().into_boxed_slice(), admission)),
        }
    }

    /// Stores shared bytes, without a copy.
    ///
    /// # Panics
    /// When the arena [is full](Self::is_full).
    pub fn insert_shared(&mut self, bytes: Shared) -> Blob {
        assert!(!self.is_full(), "the caller makes room first");
        self.bytes += bytes.len();
        self.shared_bytes += bytes.len();
        bytes.enter_log();
        Blob(OWN_ALLOCATION << PLACE_BITS | self.shared.insert(Some(bytes)))
    }

    /// The smallest class that fits `len` bytes and has a place left.
    pub(super) fn class_with_free_place(&mut self, len: usize) -> Option<usize> {
        if len > CLASS_MAX {
            return None;
        }
        if self.classes.is_empty() {
            self.classes.resize_with(CLASSES, Class::default);
        }
        (class_of(len)..CLASSES).find(|class| self.classes[*class].has_place(*class))
    }

    pub(super) fn insert_in_class(&mut self, class: usize, parts: &[&[u8]]) -> Blob {
        let size = class_size(class);
        self.bytes += size;
        let size_class = &mut self.classes[class];
        let place = match size_class.insert_in_freed_place(size, parts) {
            Some(slot) => slot,
            None => size_class.insert_in_new_place(size, parts, &mut self.chunk_bytes),
        };
        Blob((class as u32) << PLACE_BITS | place)
    }

    /// The place of a blob: the stored bytes, and padding.
    #[inline]
    pub fn get(&self, blob: Blob) -> &[u8] {
        match self.get_shareable(blob) {
            BlobBytes::Padded(bytes) => bytes,
            BlobBytes::Shared(shared) => shared,
        }
    }

    /// The place of a blob, or the shared bytes of a blob with its own allocation.
    #[inline]
    pub fn get_shareable(&self, blob: Blob) -> BlobBytes<'_> {
        let (class, place) = (blob.0 >> PLACE_BITS, blob.0 & ((1 << PLACE_BITS) - 1));
        if class == OWN_ALLOCATION {
            let shared = self.shared.get(place).as_ref();
            return BlobBytes::Shared(shared.expect(BLOB_LOST));
        }
        let size = class_size(class as usize);
        let per_chunk = CHUNK_BYTES / size;
        let offset = (place as usize % per_chunk) * size;
        let chunk = self.classes[class as usize]
            .chunks
            .get(place as usize / per_chunk);
        BlobBytes::Padded(&chunk.expect(BLOB_LOST)[offset..offset + size])
    }

    /// Moves the blobs of some rows of the owner's table out of sparse chunks, if the chunks occupy far more bytes than the blobs. Returns the number
    /// of examined rows.
    #[inline]
    pub fn compact<T: BlobOwner>(&mut self, rows: &mut Slab<T>) -> usize {
        let needed = self.bytes - self.shared_bytes;
        // Even after compaction, each class may have two sparse chunks: the chunk that gets the next blob, and the spare one.
        match self.chunk_bytes > 2 * (needed + Self::SPARE_BYTES) {
            true => self.compact_some(rows),
            false => 0,
        }
    }

    #[cold]
    fn compact_some<T: BlobOwner>(&mut self, rows: &mut Slab<T>) -> usize {
        if self.next_row >= rows.end() {
            self.next_row = 0;
        }
        let end = self.next_row.saturating_add(ROWS_PER_BLOB).min(rows.end());
        for id in self.next_row..end {
            if rows.try_get(id).is_none() {
                continue;
            }
            if let Some(blob) = rows.get_mut(id).blob_mut()
                && *blob != Blob::NONE
                && self.is_sparse(*blob)
            {
                let old_blob = *blob;
                let bytes = self.get(old_blob).to_vec();
                *blob = self.insert_in_class((old_blob.0 >> PLACE_BITS) as usize, &[&bytes]);
                self.remove(old_blob);
            }
        }
        let examined = end - self.next_row;
        self.next_row = end;
        examined as usize
    }

    /// Whether at least half of the places in a blob's chunk are free. False for the chunk into which the next blob of the class would go.
    fn is_sparse(&self, blob: Blob) -> bool {
        let (class, place) = (blob.0 >> PLACE_BITS, blob.0 & ((1 << PLACE_BITS) - 1));
        if class == OWN_ALLOCATION {
            return false;
        }
        let per_chunk = CHUNK_BYTES / class_size(class as usize);
        let chunks = &self.classes[class as usize].chunks;
        chunks.is_sparse(place as usize / per_chunk, per_chunk / 2)
    }

    /// Frees a blob.
    pub fn remove(&mut self, blob: Blob) {
        let (class, place) = (blob.0 >> PLACE_BITS, blob.0 & ((1 << PLACE_BITS) - 1));
        if class == OWN_ALLOCATION {
            let shared = self.shared.remove(place).expect(BLOB_LOST);
            self.bytes -= shared.len();
            self.shared_bytes -= shared.len();
            shared.leave_log();
            return;
        }
        let class = class as usize;
        let size = class_size(class);
        self.bytes -= size;
        let per_chunk = CHUNK_BYTES / size;
        let (chunk, offset) = (
            place as usize / per_chunk,
            (place as usize % per_chunk) * size,
        );
        let chunks = &mut self.classes[class].chunks;
        let (places, next) = chunks.free(chunk, place);
        places[offset..offset + 4].copy_from_slice(&next.to_le_bytes());
        if chunks.is_empty(chunk) && chunks.release_empty(chunk) {
            self.chunk_bytes -= per_chunk * size;
        }
    }
}

impl Drop for Blobs {
    fn drop(&mut self) {
        for shared in self.shared.iter().flatten() {
            shared.leave_log();
        }
    }
}

impl Class {
    fn has_place(&self, class: usize) -> bool {
        let chunks_max = PLACES_MAX as usize / (CHUNK_BYTES / class_size(class));
        self.chunks.has_place() || self.chunks.len_with_freed() < chunks_max
    }

    /// Stores the concatenation of `parts` in a freed place, if there is one. Returns the place's number.
    fn insert_in_freed_place(&mut self, size: usize, parts: &[&[u8]]) -> Option<u32> {
        let per_chunk = CHUNK_BYTES / size;
        let offset_of = |place: u32| (place as usize % per_chunk) * size;
        let (place, places) = self.chunks.take_freed_place(|places, place| {
            let link = places[offset_of(place)..].first_chunk();
            u32::from_le_bytes(*link.expect("four bytes"))
        })?;
        let mut unwritten = &mut places[offset_of(place)..offset_of(place) + size];
        for part in parts {
            let (part_bytes, rest) = unwritten.split_at_mut(part.len());
            part_bytes.copy_from_slice(part);
            unwritten = rest;
        }
        Some(place)
    }

    /// Stores the concatenation of `parts` in a place that was never used. Adds the bytes of a new chunk to `chunk_bytes`.
    fn insert_in_new_place(
        &mut self,
        size: usize,
        parts: &[&[u8]],
        chunk_bytes: &mut usize,
    ) -> u32 {
        let per_chunk = CHUNK_BYTES / size;
        let (chunk, places) = self.chunks.take_new_place(|| {
            *chunk_bytes += per_chunk * size;
            Vec::with_capacity(per_chunk * size)
        });
        let (places_before, end) = (places.len() / size, places.len() + size);
        for part in parts {
            places.extend_from_slice(part);
        }
        assert!(places.len() <= end, "{BLOB_LOST}");
        places.resize(end, 0);
        if end == per_chunk * size {
            self.chunks.note_full();
        }
        chunk * per_chunk as u32 + places_before as u32
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::base::settings::Settings;

    #[test]
    fn classes_hold_their_length_and_waste_a_sixteenth_at_most() {
        for len in 1..=CLASS_MAX {
            let size = occupied_blob_bytes(len);
            assert!(size >= len, "{len} in {size}");
            assert!(
                size - len < 8 || (size - len) * 16 <= len,
                "{len} in {size}"
            );
            assert_eq!(class_of(size), class_of(len));
        }
        assert_eq!(class_of(CLASS_MAX), CLASSES - 1);
    }

    #[test]
    fn full_size_class_is_relieved_by_the_next_larger_one() {
        let admission = Admission::new(&Settings::default(), 7);
        let mut blobs = Blobs::default();
        let of = |n: u32| n.to_le_bytes();
        let all: Vec<Blob> = (0..3 * PLACES_MAX)
            .map(|n| blobs.insert(&[&of(n)], &admission))
            .collect();
        let of_class = |size: usize| {
            let per = CHUNK_BYTES / size;
            PLACES_MAX as usize / per * per * size
        };
        let relieved =
            3 * PLACES_MAX as usize - (of_class(8) / 8 + of_class(16) / 16 + of_class(24) / 24);
        let bytes = of_class(8) + of_class(16) + of_class(24) + relieved * 32;
        assert_eq!(blobs.bytes(), bytes);
        for (n, blob) in (0..).zip(&all) {
            assert_eq!(blobs.get(*blob)[..4], of(n));
        }
        all.into_iter().for_each(|blob| blobs.remove(blob));
        assert_eq!(blobs.bytes(), 0);
        blobs.insert(&[&of(1)], &admission);
        assert_eq!(blobs.bytes(), 8);
    }

    #[test]
    fn blobs_come_back_whole_and_everything_is_freed() {
        let admission = Admission::new(&Settings::default(), 7);
        let mut blobs = Blobs::default();
        let body = |n: usize| vec![n as u8; (n * 37) % 20_000 + 1];
        for round in 0..3 {
            let kept: Vec<_> = (0..500)
                .map(|n| (n, blobs.insert(&[&body(n), b"end"], &admission)))
                .collect();
            for (n, blob) in &kept {
                let len = body(*n).len();
                assert_eq!(&blobs.get(*blob)[..len], &body(*n)[..], "round {round}");
                assert_eq!(&blobs.get(*blob)[len..len + 3], b"end");
            }
            for (_, blob) in kept {
                blobs.remove(blob);
            }
            assert_eq!(blobs.bytes(), 0);
        }
    }
}
