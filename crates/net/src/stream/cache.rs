//! A cache of expanded keys, so that the key of a busy connection is not expanded for each record. The cache is direct-mapped: the row of a
//! connection gives the only slot that can hold its key.
//!
//! Invariant: a cached key was expanded from the current secret of its connection. Code that changes or frees a secret must call
//! [`forget`](Cache::forget).

use super::cipher::ExpandedKey;
use super::keys::KeyPlace;

/// Number of cached keys, half a kilobyte each.
const SLOTS: usize = 32;

type Slot = Option<(KeyPlace, ExpandedKey)>;

/// The cache of expanded keys of one direction.
pub struct Cache {
    slots: Vec<Slot>,
}

impl Cache {
    pub fn new() -> Cache {
        let mut slots = Vec::new();
        slots.resize_with(SLOTS, || None);
        Cache { slots }
    }

    /// The expanded key for the connection at `place`, whose secret is `secret`.
    pub fn get(&mut self, place: KeyPlace, secret: &[u8]) -> &ExpandedKey {
        let slot = &mut self.slots[place.row as usize % SLOTS];
        if slot.as_ref().is_none_or(|(cached, _)| *cached != place) {
            *slot = Some((place, place.cipher.expand_key(secret)));
        }
        let (_, key) = slot.as_ref().expect("the key was just put there");
        key
    }

    /// Removes the key of a connection, if it is cached.
    pub fn forget(&mut self, place: KeyPlace) {
        let slot = &mut self.slots[place.row as usize % SLOTS];
        if slot.as_ref().is_some_and(|(cached, _)| *cached == place) {
            *slot = None;
        }
    }
}
