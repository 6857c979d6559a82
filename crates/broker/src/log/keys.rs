//! An index of entries by chain and key, for topics that keep only the newest message of each key. It finds the message that a new one supersedes.
//!
//! Invariants: every entry of a chain that keeps latest values has one row here, and other entries have none. No two entries of such a chain have
//! the same key. The hash index is created with the first row.
//!
//! A *chain* is the list of a topic's messages.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::log::entry::Entry;
use crate::store::blobs::Blobs;
use crate::store::index::{Index, chained};
use crate::store::slab::{NONE, Slab, SlabRow};

/// A row: the entry that has a key.
pub(super) struct Key {
    hash: u32,
    next: u32,
    pub entry: u32,
    /// The previous entry of the chain.
    pub previous: u32,
}

const _: () = assert!(size_of::<Key>() == 16);

impl SlabRow for Key {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        Key {
            hash: 0,
            next,
            entry: NONE,
            previous: NONE,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

chained!(Key);

/// The rows, and the hash index that finds them by chain and key.
pub(super) struct Keys {
    rows: Slab<Key>,
    index: Option<Index>,
    seed: u64,
}

impl Keys {
    /// The bytes of the rows and their index.
    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.index.as_ref().map_or(0, Index::bytes)
    }

    /// An empty index. `seed` keys the hash, so that clients cannot choose keys that collide.
    pub fn new(seed: u64) -> Self {
        Keys {
            rows: Slab::default(),
            index: None,
            seed,
        }
    }

    pub fn len(&self) -> u32 {
        self.rows.len()
    }

    fn hash(&self, chain: u32, key: &[u8]) -> u32 {
        xxh3_64_with_seed(key, self.seed.wrapping_add(u64::from(chain))) as u32
    }

    /// The row of this key in this chain. `is` says whether an entry has this chain and key.
    fn find(&self, chain: u32, key: &[u8], mut is_match: impl FnMut(u32) -> bool) -> Option<u32> {
        let hash = self.hash(chain, key);
        let index = self.index.as_ref()?;
        index.find(&self.rows, hash, |row| is_match(row.entry))
    }

    /// The row of this key in a chain that keeps latest values.
    pub fn row_with_key(
        &self,
        entries: &Slab<Entry>,
        blobs: &Blobs,
        chain: u32,
        key: &[u8],
    ) -> Option<u32> {
        self.find(chain, key, |id| {
            entries.get(id).chain == chain && key_of(entries, blobs, id) == key
        })
    }

    /// The row of an entry of a chain that keeps latest values.
    pub fn row_of(&self, entries: &Slab<Entry>, blobs: &Blobs, id: u32) -> u32 {
        let key = key_of(entries, blobs, id);
        let row = self.find(entries.get(id).chain, key, |other| other == id);
        row.expect("a keyed entry has a row")
    }

    pub fn get(&self, id: u32) -> &Key {
        self.rows.get(id)
    }

    pub fn get_mut(&mut self, id: u32) -> &mut Key {
        self.rows.get_mut(id)
    }

    pub fn insert(&mut self, chain: u32, key: &[u8], entry: u32, previous: u32) {
        let hash = self.hash(chain, key);
        let id = self.rows.insert(Key {
            hash,
            next: NONE,
            entry,
            previous,
        });
        self.index
            .get_or_insert_default()
            .insert(&mut self.rows, id);
    }

    pub fn remove(&mut self, id: u32) {
        let index = self.index.as_mut().expect("a row is in the index");
        index.remove(&mut self.rows, id);
        self.rows.remove(id);
    }
}

/// The key of an entry.
pub(super) fn key_of<'a>(entries: &Slab<Entry>, blobs: &'a Blobs, id: u32) -> &'a [u8] {
    let entry = entries.get(id);
    entry.parts(blobs.get(entry.blob)).key
}
