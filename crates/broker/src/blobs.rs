//! Bytes of any length in size classes: topic names and logged messages. A freed place is reused by
//! the next blob of its class, so that a log that turns over touches the same pages again (a fresh
//! page costs more than the copy into it).
//!
//! Invariants: a handle names exactly one place; the caller remembers the length. Blobs past the
//! largest class have an allocation of their own.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::slab::{NONE, Side};

/// Classes are 8 bytes apart up to here.
const FINE_MAX: usize = 128;
/// From there each power of two has sixteen classes, up to here; past it a blob has its own box.
const CLASS_MAX: usize = 8 << 10;
const CHUNK_BYTES: usize = 16 << 10;
const CLASSES: usize = FINE_MAX / 8 + 6 * 16;
/// The class number of blobs with their own box.
const OWN: u32 = 127;
const SLOT_BITS: u32 = 25;

/// Where a blob lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blob(u32);

impl Blob {
    /// No blob.
    pub const NONE: Blob = Blob(NONE);
}

#[derive(Default)]
struct Class {
    chunks: Vec<Box<[u8]>>,
    /// Head of the free list; the links lie in the free places themselves.
    free: u32,
    next_fresh: u32,
}

/// The arena.
pub struct Blobs {
    classes: Vec<Class>,
    own: Side<Box<[u8]>>,
    bytes: usize,
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
fn class_size(class: usize) -> usize {
    if class < FINE_MAX / 8 {
        return (class + 1) * 8;
    }
    let above = class - FINE_MAX / 8;
    let (power, step) = (7 + above / 16, above % 16);
    (1 << power) + ((step + 1) << (power - 4))
}

/// Bytes that a blob of `len` occupies.
pub fn occupied(len: usize) -> usize {
    if len > CLASS_MAX {
        len
    } else {
        class_size(class_of(len))
    }
}

impl Blobs {
    /// An empty arena.
    pub fn new() -> Self {
        Blobs {
            classes: Vec::new(),
            own: Side::new(),
            bytes: 0,
        }
    }

    /// Bytes that its blobs occupy.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Stores the concatenation of `parts`.
    pub fn insert(&mut self, parts: &[&[u8]]) -> Blob {
        let len = parts.iter().map(|part| part.len()).sum();
        self.bytes += occupied(len);
        if len > CLASS_MAX {
            let id = self.own.insert(parts.concat().into_boxed_slice());
            return Blob(OWN << SLOT_BITS | id);
        }
        let class = class_of(len);
        if self.classes.is_empty() {
            self.classes.resize_with(CLASSES, || Class {
                free: NONE,
                ..Class::default()
            });
        }
        let slot = self.classes[class].take(class_size(class));
        let mut at = self.classes[class].place(slot, class_size(class));
        for part in parts {
            let (here, rest) = at.split_at_mut(part.len());
            here.copy_from_slice(part);
            at = rest;
        }
        Blob((class as u32) << SLOT_BITS | slot)
    }

    /// The whole place of a blob: at least the bytes that were stored.
    #[inline]
    pub fn get(&self, blob: Blob) -> &[u8] {
        let (class, slot) = (blob.0 >> SLOT_BITS, blob.0 & ((1 << SLOT_BITS) - 1));
        if class == OWN {
            return self.own.get(slot);
        }
        let size = class_size(class as usize);
        let per = CHUNK_BYTES / size;
        let at = (slot as usize % per) * size;
        &self.classes[class as usize].chunks[slot as usize / per][at..at + size]
    }

    /// Frees a blob of `len` bytes.
    pub fn remove(&mut self, blob: Blob, len: usize) {
        self.bytes -= occupied(len);
        let (class, slot) = (blob.0 >> SLOT_BITS, blob.0 & ((1 << SLOT_BITS) - 1));
        if class == OWN {
            self.own.remove(slot);
            return;
        }
        let class = class as usize;
        let free = self.classes[class].free;
        self.classes[class].place(slot, class_size(class))[..4]
            .copy_from_slice(&free.to_le_bytes());
        self.classes[class].free = slot;
    }
}

impl Default for Blobs {
    fn default() -> Self {
        Self::new()
    }
}

impl Class {
    fn place(&mut self, slot: u32, size: usize) -> &mut [u8] {
        let per = CHUNK_BYTES / size;
        let at = (slot as usize % per) * size;
        &mut self.chunks[slot as usize / per][at..at + size]
    }

    fn take(&mut self, size: usize) -> u32 {
        if self.free != NONE {
            let slot = self.free;
            let link = self.place(slot, size)[..4].try_into().expect("four bytes");
            self.free = u32::from_le_bytes(link);
            return slot;
        }
        let slot = self.next_fresh;
        assert!(slot < 1 << SLOT_BITS, "a size class is full");
        self.next_fresh += 1;
        if slot as usize / (CHUNK_BYTES / size) == self.chunks.len() {
            self.chunks
                .push(vec![0; CHUNK_BYTES / size * size].into_boxed_slice());
        }
        slot
    }
}

/// Topic names, which find their own length: the last byte of a place says how many bytes before
/// it are unused.
#[derive(Default)]
pub struct Names(Blobs);

impl Names {
    /// Bytes that the names occupy.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Stores a name of at most 1,000 bytes.
    pub fn insert(&mut self, name: &[u8]) -> Blob {
        let size = occupied(name.len() + 1);
        let padding = size - name.len() - 1;
        assert!(
            padding < 256,
            "the steps of the classes are under 256 bytes up to names of 1,000"
        );
        let zeros = [0u8; 256];
        self.0.insert(&[name, &zeros[..padding], &[padding as u8]])
    }

    /// The name.
    #[inline]
    pub fn get(&self, name: Blob) -> &[u8] {
        let place = self.0.get(name);
        let end = place.len() - 1;
        &place[..end - place[end] as usize]
    }

    /// Frees a name.
    pub fn remove(&mut self, name: Blob) {
        let len = self.0.get(name).len();
        self.0.remove(name, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_length_and_waste_a_sixteenth_at_most() {
        for len in 1..=CLASS_MAX {
            let size = occupied(len);
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
    fn blobs_and_names_come_back_whole_and_everything_is_freed() {
        let (mut blobs, mut names) = (Blobs::new(), Names::default());
        let body = |n: usize| vec![n as u8; (n * 37) % 20_000 + 1];
        for round in 0..3 {
            let kept: Vec<_> = (0..500)
                .map(|n| (n, blobs.insert(&[&body(n), b"end"])))
                .collect();
            for (n, blob) in &kept {
                let len = body(*n).len();
                assert_eq!(&blobs.get(*blob)[..len], &body(*n)[..], "round {round}");
                assert_eq!(&blobs.get(*blob)[len..len + 3], b"end");
            }
            for (n, blob) in kept {
                blobs.remove(blob, body(n).len() + 3);
            }
            assert_eq!(blobs.bytes(), 0);
        }
        for len in 0..=1000 {
            let text = vec![b'x'; len];
            let name = names.insert(&text);
            assert_eq!(names.get(name), &text[..]);
            names.remove(name);
        }
        assert_eq!(names.0.bytes(), 0);
    }
}
