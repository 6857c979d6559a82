//! The expanded keys of the most recently used connections, so that a busy connection does not pay for the expansion each
//! time. Direct-mapped: a row's number gives the only slot where its key may be.
//!
//! Invariant: a cached key is that of the place's present secret; code that changes or frees a secret calls
//! [`forget`](Cache::forget).

use super::cipher::Context;
use super::keys::Place;

/// Keys of each direction that are kept, half a kilobyte each.
const SLOTS: usize = 32;

type Slot = Option<(Place, Context)>;

/// Expanded keys, of one direction.
pub struct Cache {
    slots: Vec<Slot>,
}

impl Cache {
    pub fn new() -> Cache {
        let mut slots = Vec::new();
        slots.resize_with(SLOTS, || None);
        Cache { slots }
    }

    /// The expanded key of a place; `secret` is the place's secret.
    pub fn get(&mut self, place: Place, secret: &[u8]) -> &Context {
        let slot = &mut self.slots[place.row as usize % SLOTS];
        if slot.as_ref().is_none_or(|(of, _)| *of != place) {
            *slot = Some((place, place.cipher.context(secret)));
        }
        let (_, context) = slot.as_ref().expect("it was just put there");
        context
    }

    pub fn forget(&mut self, place: Place) {
        let slot = &mut self.slots[place.row as usize % SLOTS];
        if slot.as_ref().is_some_and(|(of, _)| *of == place) {
            *slot = None;
        }
    }
}
