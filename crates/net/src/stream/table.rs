//! The state of each link: nothing at all for a plain connection, 4 bytes for one with TLS.
//!
//! Links are small numbers that are used again, so a table indexed by link is dense. It grows by chunks, and only where a
//! link has TLS.

use super::cipher::Cipher;
use super::keys::Place;

/// Links of a chunk: a page of the kernel's.
const CHUNK: usize = 1024;
/// The upper bits hold the kind of the entry, the lower ones its row.
const ROW_BITS: u32 = 29;
const EARLY: u32 = 7;

/// The state of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// It has no TLS, or its first bytes have not come.
    Plain,
    /// Its handshake is not over.
    Early,
    /// It has keys.
    Sealed(Place),
}

/// Entries by link.
pub struct Table {
    chunks: Vec<Option<Box<[u32; CHUNK]>>>,
}

impl Table {
    pub const fn new() -> Table {
        Table { chunks: Vec::new() }
    }

    /// Bytes that it occupies.
    pub fn bytes(&self) -> usize {
        let full = self.chunks.iter().flatten().count();
        full * size_of::<[u32; CHUNK]>() + self.chunks.capacity() * size_of::<Option<Box<()>>>()
    }

    #[inline]
    pub fn get(&self, link: u32) -> Entry {
        let chunk = self
            .chunks
            .get(link as usize / CHUNK)
            .and_then(Option::as_ref);
        let bits = chunk.map_or(0, |chunk| chunk[link as usize % CHUNK]);
        if bits == 0 {
            return Entry::Plain;
        }
        let row = bits & ((1 << ROW_BITS) - 1);
        match Cipher::from_repr((bits >> ROW_BITS) as u8) {
            Some(cipher) => Entry::Sealed(Place { cipher, row }),
            None => Entry::Early,
        }
    }

    pub fn set(&mut self, link: u32, entry: Entry) {
        let bits = match entry {
            Entry::Plain => 0,
            Entry::Early => EARLY << ROW_BITS,
            Entry::Sealed(place) => {
                assert!(place.row < 1 << ROW_BITS, "more connections than links");
                u32::from(place.cipher as u8) << ROW_BITS | place.row
            }
        };
        let n = link as usize / CHUNK;
        if n >= self.chunks.len() {
            if bits == 0 {
                return;
            }
            self.chunks.resize_with(n + 1, || None);
        }
        if self.chunks[n].is_none() && bits == 0 {
            return;
        }
        let chunk = self.chunks[n].get_or_insert_with(|| Box::new([0; CHUNK]));
        chunk[link as usize % CHUNK] = bits;
    }
}

/// A bit for each link: whether its first bytes are still to come.
pub struct Fresh {
    words: Vec<u64>,
}

impl Fresh {
    pub const fn new() -> Fresh {
        Fresh { words: Vec::new() }
    }

    pub fn set(&mut self, link: u32) {
        let n = link as usize / 64;
        if n >= self.words.len() {
            self.words.resize(n + 1, 0);
        }
        self.words[n] |= 1 << (link % 64);
    }

    /// Clears the bit; returns whether it was set.
    pub fn take(&mut self, link: u32) -> bool {
        let Some(word) = self.words.get_mut(link as usize / 64) else {
            return false;
        };
        let was = *word >> (link % 64) & 1 == 1;
        *word &= !(1 << (link % 64));
        was
    }
}
