//! A cache of accepted credentials, so that the credentials of a publisher with a thousand requests a second are verified once.
//!
//! When the cache is full, it drops the oldest answer. Refusals are not cached: the queue of questions limits how often refused clients can ask again.

use alloc::collections::{BTreeMap, VecDeque};

use crate::base::access::{Digest, VerifiedClient};

/// The cache of one shard.
#[derive(Default)]
pub struct VerdictCache {
    verdicts: BTreeMap<Digest, (VerifiedClient, u32)>,
    /// The keys of `known`, in order of arrival.
    arrival_order: VecDeque<Digest>,
    /// The generation of the settings.
    settings_generation: u32,
}

impl VerdictCache {
    /// The cached answer about this credential, if it is still valid. `now_s` is [`Now::unix_s`](crate::Now::unix_s). `wall_s` is the wall clock, by
    /// which tokens expire.
    pub fn get(&self, digest: Digest, now_s: u32, wall_s: u32) -> Option<&VerifiedClient> {
        let (known, until_s) = self.verdicts.get(&digest)?;
        (now_s < *until_s && wall_s < known.until_unix_s).then_some(known)
    }

    /// Caches an answer until the second `until_s`. The cache has at most `entries_max` answers.
    pub fn insert(
        &mut self,
        digest: Digest,
        known: VerifiedClient,
        until_s: u32,
        entries_max: usize,
    ) {
        if entries_max == 0 {
            return;
        }
        if self.verdicts.insert(digest, (known, until_s)).is_some() {
            return;
        }
        self.arrival_order.push_back(digest);
        if self.arrival_order.len() > entries_max
            && let Some(oldest) = self.arrival_order.pop_front()
        {
            self.verdicts.remove(&oldest);
        }
    }

    /// Empties the cache after a change of the settings, and begins a new generation. Answers to questions of earlier generations are not cached.
    pub fn clear(&mut self) {
        *self = VerdictCache {
            settings_generation: self.settings_generation.wrapping_add(1),
            ..VerdictCache::default()
        };
    }

    /// The current generation of the settings. A question and its answer carry it.
    pub fn settings_generation(&self) -> u32 {
        self.settings_generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::access::{Credential, Grants};
    use alloc::sync::Arc;

    #[test]
    fn answers_end_with_their_time_and_the_oldest_make_room() {
        let digest = |n: u8| Credential::Token(&[n]).digest(&[0; 32]);
        let known = |until_unix_s| VerifiedClient {
            grants: Arc::new(Grants::default()),
            until_unix_s,
        };
        let mut cache = VerdictCache::default();
        cache.insert(digest(1), known(u32::MAX), 10, 2);
        cache.insert(digest(2), known(7), 10, 2);
        assert!(cache.get(digest(1), 9, 9).is_some());
        assert!(
            cache.get(digest(1), 10, 10).is_none(),
            "it is asked for again"
        );
        assert!(cache.get(digest(2), 6, 6).is_some());
        assert!(
            cache.get(digest(2), 7, 7).is_none(),
            "the token itself is over"
        );
        // If the wall clock is set, the token may expire, but the lifetime of the cached answer stays.
        assert!(cache.get(digest(2), 6, 7).is_none());
        assert!(cache.get(digest(2), 9, 6).is_some());
        assert!(cache.get(digest(1), 9, 90_000).is_some());
        assert!(cache.get(digest(1), 10, 0).is_none());
        cache.insert(digest(1), known(u32::MAX), 20, 2);
        assert!(cache.get(digest(1), 19, 19).is_some());
        cache.insert(digest(3), known(u32::MAX), 20, 2);
        assert!(
            cache.get(digest(1), 11, 11).is_none(),
            "the oldest made room"
        );
        assert!(cache.get(digest(3), 11, 11).is_some());
        assert_eq!(cache.arrival_order.len(), cache.verdicts.len());
    }
}
