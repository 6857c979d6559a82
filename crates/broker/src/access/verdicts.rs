//! Credentials that were answered for lately: so that a publisher with a thousand requests a second is looked at once.
//!
//! Bounded: past the limit the oldest answer goes first, and is asked for again when it is needed. Refusals are not kept
//! here: whoever is refused may ask as often as the queue of questions takes it.

use alloc::collections::{BTreeMap, VecDeque};

use super::{Digest, Known};

/// Answers of one shard.
#[derive(Default)]
pub struct Verdicts {
    known: BTreeMap<Digest, (Known, u32)>,
    /// In the order in which they came; as many as there are in `known`.
    order: VecDeque<Digest>,
    /// How often what may be believed has changed.
    round: u32,
}

impl Verdicts {
    /// What was found, if it may still be believed.
    pub fn get(&self, digest: Digest, now_unix_s: u32) -> Option<&Known> {
        let (known, until_unix_s) = self.known.get(&digest)?;
        let end_unix_s = (*until_unix_s).min(known.until_unix_s);
        (now_unix_s < end_unix_s).then_some(known)
    }

    /// Keeps an answer until that second, among at most so many.
    pub fn keep(&mut self, digest: Digest, known: Known, until_unix_s: u32, most: usize) {
        if most == 0 {
            return;
        }
        if self.known.insert(digest, (known, until_unix_s)).is_some() {
            return;
        }
        self.order.push_back(digest);
        if self.order.len() > most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Forgets all: what may be believed has changed. Answers to what was asked before are not kept either.
    pub fn clear(&mut self) {
        *self = Verdicts {
            round: self.round.wrapping_add(1),
            ..Verdicts::default()
        };
    }

    /// Which change what is asked now comes after.
    pub fn round(&self) -> u32 {
        self.round
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Credential, Grants};
    use super::*;
    use alloc::sync::Arc;

    #[test]
    fn answers_end_with_their_time_and_the_oldest_make_room() {
        let digest = |n: u8| Credential::Token(&[n]).digest(&[0; 32]);
        let known = |until_unix_s| Known {
            grants: Arc::new(Grants::default()),
            until_unix_s,
        };
        let mut verdicts = Verdicts::default();
        verdicts.keep(digest(1), known(u32::MAX), 10, 2);
        verdicts.keep(digest(2), known(7), 10, 2);
        assert!(verdicts.get(digest(1), 9).is_some());
        assert!(
            verdicts.get(digest(1), 10).is_none(),
            "it is asked for again"
        );
        assert!(verdicts.get(digest(2), 6).is_some());
        assert!(
            verdicts.get(digest(2), 7).is_none(),
            "the token itself is over"
        );
        verdicts.keep(digest(1), known(u32::MAX), 20, 2);
        assert!(verdicts.get(digest(1), 19).is_some());
        verdicts.keep(digest(3), known(u32::MAX), 20, 2);
        assert!(
            verdicts.get(digest(1), 11).is_none(),
            "the oldest made room"
        );
        assert!(verdicts.get(digest(3), 11).is_some());
        assert_eq!(verdicts.order.len(), verdicts.known.len());
    }
}
