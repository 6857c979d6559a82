//! The TLS state of each link (connection number): 4 bytes for a connection with TLS, nothing for one without.
//!
//! Links are small numbers that are reused, so a table indexed by link is dense. A chunk of the table is allocated when one of its
//! links has TLS.

use super::cipher::Cipher;
use super::keys::KeyPlace;

/// Number of links of a chunk, which is one page of memory.
const CHUNK_LINKS: usize = 1024;
/// The lower bits of an entry are the row of the keys, and the upper bits are the cipher or [`UNFINISHED`].
const ROW_BITS: u32 = 29;
const UNFINISHED: u32 = 7;

/// The state of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// The connection has no TLS, or its first bytes have not arrived.
    Plain,
    /// The handshake is not finished.
    UnfinishedHandshake,
    /// The connection is established and has keys.
    Sealed(KeyPlace),
}

/// Entries by link.
pub struct Table {
    chunks: Vec<Option<Box<[u32; CHUNK_LINKS]>>>,
}

impl Table {
    pub const fn new() -> Table {
        Table { chunks: Vec::new() }
    }

    /// Bytes that the table occupies.
    pub fn bytes(&self) -> usize {
        let allocated = self.chunks.iter().flatten().count();
        allocated * size_of::<[u32; CHUNK_LINKS]>()
            + self.chunks.capacity() * size_of::<Option<Box<()>>>()
    }

    #[inline]
    pub fn get(&self, link: u32) -> Entry {
        let chunk = self
            .chunks
            .get(link as usize / CHUNK_LINKS)
            .and_then(Option::as_ref);
        let bits = chunk.map_or(0, |chunk| chunk[link as usize % CHUNK_LINKS]);
        if bits == 0 {
            return Entry::Plain;
        }
        let row = bits & ((1 << ROW_BITS) - 1);
        match Cipher::from_repr((bits >> ROW_BITS) as u8) {
            Some(cipher) => Entry::Sealed(KeyPlace { cipher, row }),
            None => Entry::UnfinishedHandshake,
        }
    }

    pub fn set(&mut self, link: u32, entry: Entry) {
        let bits = match entry {
            Entry::Plain => 0,
            Entry::UnfinishedHandshake => UNFINISHED << ROW_BITS,
            Entry::Sealed(place) => {
                assert!(place.row < 1 << ROW_BITS, "more connections than links");
                u32::from(place.cipher as u8) << ROW_BITS | place.row
            }
        };
        let chunk_index = link as usize / CHUNK_LINKS;
        if chunk_index >= self.chunks.len() {
            if bits == 0 {
                return;
            }
            self.chunks.resize_with(chunk_index + 1, || None);
        }
        if self.chunks[chunk_index].is_none() && bits == 0 {
            return;
        }
        let chunk = self.chunks[chunk_index].get_or_insert_with(|| Box::new([0; CHUNK_LINKS]));
        chunk[link as usize % CHUNK_LINKS] = bits;
    }
}

/// One bit for each link: whether no bytes of the connection have arrived yet.
pub struct SilentLinks {
    words: Vec<u64>,
}

impl SilentLinks {
    pub const fn new() -> SilentLinks {
        SilentLinks { words: Vec::new() }
    }

    pub fn set(&mut self, link: u32) {
        let word_index = link as usize / 64;
        if word_index >= self.words.len() {
            self.words.resize(word_index + 1, 0);
        }
        self.words[word_index] |= 1 << (link % 64);
    }

    /// Clears the bit; returns whether it was set.
    pub fn take(&mut self, link: u32) -> bool {
        let Some(word) = self.words.get_mut(link as usize / 64) else {
            return false;
        };
        let was_set = *word >> (link % 64) & 1 == 1;
        *word &= !(1 << (link % 64));
        was_set
    }
}
