//! Bytes of any length in size classes: topic names and logged messages. The next blob of a class reuses a freed place,
//! so that a log that turns over touches the same pages again (a fresh page costs more than the copy into it).
//!
//! Invariants: a handle names exactly one place; the caller remembers the length. Blobs past the largest class have an
//! allocation of their own, which may be shared. When a class is full, a blob goes to the next larger class.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::budget::admission::Admission;
use crate::store::shared::{SHARED_MIN, Shared};
use crate::store::slab::{NONE, Side};

/// Classes are 8 bytes apart up to here.
const FINE_MAX: usize = 128;
/// From there each power of two has sixteen classes, up to here; past it a blob has its own box.
const CLASS_MAX: usize = SHARED_MIN;
const CHUNK_BYTES: usize = 16 << 10;
const CLASSES: usize = FINE_MAX / 8 + 6 * 16;
/// The class number of blobs with their own box.
const OWN: u32 = 127;
const SLOT_BITS: u32 = 25;
/// Places of one class. In tests so few that classes fill up.
const PLACES_MAX: u32 = if cfg!(test) { 1 << 14 } else { 1 << SLOT_BITS };

/// Going on would take another blob's bytes for this one's.
const LOST: &str = "a blob lies where its handle says";

/// Where a blob lies.
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

#[derive(Default)]
struct Class {
    chunks: Vec<Box<[u8]>>,
    /// Head of the free list; the links lie in the free places themselves.
    free: u32,
    next_fresh: u32,
}

/// The arena.
#[derive(Default)]
pub struct Blobs {
    classes: Vec<Class>,
    own: Side<Option<Shared>>,
    bytes: usize,
    /// Of blobs with an allocation of their own.
    own_bytes: usize,
    chunks: usize,
}

/// The bytes of a blob.
pub enum Place<'a> {
    /// At least the bytes that were stored.
    Bytes(&'a [u8]),
    /// A blob with an allocation of its own.
    Own(&'a Shared),
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
    /// Bytes that its blobs occupy.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes reserved for blobs, used or not.
    pub fn reserved_bytes(&self) -> usize {
        self.chunks * CHUNK_BYTES + self.own_bytes + self.own.bytes()
    }

    /// Blobs with an allocation of their own.
    pub fn own(&self) -> u32 {
        self.own.len()
    }

    /// Whether there may be no place for the next blob: the table of blobs with an allocation of their own is full.
    pub fn is_full(&self) -> bool {
        self.own.len() >= PLACES_MAX - 1
    }

    /// Stores the concatenation of `parts`; a large one is counted in `admission` as kept by a log.
    ///
    /// # Panics
    /// When it is large and the arena [is full](Self::is_full).
    pub fn insert(&mut self, parts: &[&[u8]], admission: &Admission) -> Blob {
        let len = parts.iter().map(|part| part.len()).sum();
        match self.class_with_place(len) {
            Some(class) => self.insert_in(class, parts),
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
        self.own_bytes += bytes.len();
        bytes.enter_log();
        Blob(OWN << SLOT_BITS | self.own.insert(Some(bytes)))
    }

    /// The smallest class that fits this many bytes and has a place left.
    fn class_with_place(&mut self, len: usize) -> Option<usize> {
        if len > CLASS_MAX {
            return None;
        }
        if self.classes.is_empty() {
            self.classes.resize_with(CLASSES, || Class {
                free: NONE,
                ..Class::default()
            });
        }
        (class_of(len)..CLASSES).find(|class| self.classes[*class].has_place())
    }

    fn insert_in(&mut self, class: usize, parts: &[&[u8]]) -> Blob {
        let size = class_size(class);
        self.bytes += size;
        let before = self.classes[class].chunks.len();
        let slot = self.classes[class].take(size);
        self.chunks += self.classes[class].chunks.len() - before;
        let mut at = self.classes[class].place(slot, size);
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
        match self.place(blob) {
            Place::Bytes(bytes) => bytes,
            Place::Own(shared) => shared,
        }
    }

    /// The place of a blob, as a reference that can be shared if the blob has an allocation of its own.
    #[inline]
    pub fn place(&self, blob: Blob) -> Place<'_> {
        let (class, slot) = (blob.0 >> SLOT_BITS, blob.0 & ((1 << SLOT_BITS) - 1));
        if class == OWN {
            let shared = self.own.get(slot).as_ref();
            return Place::Own(shared.expect(LOST));
        }
        let size = class_size(class as usize);
        let per = CHUNK_BYTES / size;
        let at = (slot as usize % per) * size;
        Place::Bytes(&self.classes[class as usize].chunks[slot as usize / per][at..at + size])
    }

    /// Frees a blob.
    pub fn remove(&mut self, blob: Blob) {
        let (class, slot) = (blob.0 >> SLOT_BITS, blob.0 & ((1 << SLOT_BITS) - 1));
        if class == OWN {
            let shared = self.own.remove(slot).expect(LOST);
            self.bytes -= shared.len();
            self.own_bytes -= shared.len();
            shared.leave_log();
            return;
        }
        let class = class as usize;
        let size = class_size(class);
        self.bytes -= size;
        let free = self.classes[class].free;
        self.classes[class].place(slot, size)[..4].copy_from_slice(&free.to_le_bytes());
        self.classes[class].free = slot;
    }
}

impl Drop for Blobs {
    fn drop(&mut self) {
        for shared in self.own.iter().flatten() {
            shared.leave_log();
        }
    }
}

impl Class {
    fn place(&mut self, slot: u32, size: usize) -> &mut [u8] {
        let per = CHUNK_BYTES / size;
        let at = (slot as usize % per) * size;
        &mut self.chunks[slot as usize / per][at..at + size]
    }

    fn has_place(&self) -> bool {
        self.free != NONE || self.next_fresh < PLACES_MAX
    }

    fn take(&mut self, size: usize) -> u32 {
        if self.free != NONE {
            let slot = self.free;
            let link = self.place(slot, size)[..4].try_into().expect("four bytes");
            self.free = u32::from_le_bytes(link);
            return slot;
        }
        let slot = self.next_fresh;
        self.next_fresh += 1;
        if slot as usize / (CHUNK_BYTES / size) == self.chunks.len() {
            self.chunks
                .push(vec![0; CHUNK_BYTES / size * size].into_boxed_slice());
        }
        slot
    }
}

/// Topic names, which carry their own length: the last byte of a place is the number of unused bytes before it.
#[derive(Default)]
pub struct Names(Blobs);

impl Names {
    /// Bytes that the names occupy.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Stores a name of at most 1,000 bytes.
    ///
    /// # Panics
    /// When there are more names of one length than a shard may have topics.
    pub fn insert(&mut self, name: &[u8]) -> Blob {
        let class = self.0.class_with_place(name.len() + 1);
        let class = class.expect("the limits leave a place for every name");
        let padding = class_size(class) - name.len() - 1;
        assert!(
            padding < 256,
            "the steps of the classes are under 256 bytes up to names of 1,000"
        );
        let zeros = [0u8; 256];
        let parts = [name, &zeros[..padding], &[padding as u8]];
        self.0.insert_in(class, &parts)
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
        self.0.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Settings;

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
    fn full_size_class_is_relieved_by_the_next_larger_one() {
        let admission = Admission::new(&Settings::default(), 7);
        let mut blobs = Blobs::default();
        let of = |n: u32| n.to_le_bytes();
        let all: Vec<Blob> = (0..3 * PLACES_MAX)
            .map(|n| blobs.insert(&[&of(n)], &admission))
            .collect();
        assert_eq!(blobs.bytes(), PLACES_MAX as usize * (8 + 16 + 24));
        for (n, blob) in (0..).zip(&all) {
            assert_eq!(blobs.get(*blob)[..4], of(n));
        }
        all.into_iter().for_each(|blob| blobs.remove(blob));
        assert_eq!(blobs.bytes(), 0);
        blobs.insert(&[&of(1)], &admission);
        assert_eq!(blobs.bytes(), 8);
    }

    #[test]
    fn blobs_and_names_come_back_whole_and_everything_is_freed() {
        let admission = Admission::new(&Settings::default(), 7);
        let (mut blobs, mut names) = (Blobs::default(), Names::default());
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
        for len in 0..=1000 {
            let text = vec![b'x'; len];
            let name = names.insert(&text);
            assert_eq!(names.get(name), &text[..]);
            names.remove(name);
        }
        assert_eq!(names.0.bytes(), 0);
    }
}
