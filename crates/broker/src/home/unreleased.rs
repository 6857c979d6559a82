//! The QoS 2 messages that clients with recorded MQTT sessions have published and not yet released (PUBREL). If the server crashes before the client gets
//! the PUBREC, the client sends the message again. Session and packet id identify the message, so that it is published only once (MQTT 5.0 section 4.3.3).
//!
//! A will is identified in the same way, by the packet id 0 and a token of its own.
//!
//! The log contains the key with the message, and a record for the release, so each process that reads the log has the same table. In a cluster a
//! message may reach the log after the end of its session, so the keys of an ended session stay for some time (`retired_tokens.rs`).
//!
//! Invariants:
//! * A key is in the table from its message to its release. The client uses a packet id again only after the release is in the log.
//! * A message is compared only with the keys of its own partition. In a cluster, a client may use a packet id first in one partition and then in
//!   another. A node may read the second message before it reads the release of the first. All nodes must decide alike, whichever partition they read
//!   first.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::snapshot::{Block, kind};
use crate::budget::admission::Party;
use crate::mail::message::SessionKey;

/// Memory of an entry: leaves of a `BTreeMap` have eleven slots, are two thirds full, and have a header. The entry is charged to the session of the message, and counted for the shard.
pub(crate) const ENTRY_BYTES: usize = 48;

/// A key, with the slot of its message's topic.
pub(crate) type KeyInSlot = (SessionKey, u8);

/// The keys of the messages that are not released.
#[derive(Default)]
pub(crate) struct Unreleased {
    keys: BTreeSet<KeyInSlot>,
}

impl Unreleased {
    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.keys.len() * ENTRY_BYTES
    }

    /// Whether the table has this key for a topic of the partition whose slots satisfy `is_here`.
    pub fn has(&self, key: SessionKey, is_here: impl Fn(u8) -> bool) -> bool {
        let mut all = self.keys.range((key, 0)..=(key, u8::MAX));
        all.any(|(_, slot)| is_here(*slot))
    }

    /// Adds the key of a message that was published to a topic of this slot.
    pub fn insert(&mut self, key: SessionKey, slot: u8) {
        self.keys.insert((key, slot));
    }

    /// The slots of the messages that a release of `key` releases. With the packet id 0, these are all messages of the session.
    pub fn slots_of(&self, key: SessionKey) -> Vec<u8> {
        let all = self.keys.range(keys_of_release(key));
        all.map(|(_, slot)| *slot).collect()
    }

    /// Applies a release from the partition whose slots satisfy `is_here`.
    pub fn release(&mut self, key: SessionKey, is_here: impl Fn(u8) -> bool) {
        let all = self.keys.range(keys_of_release(key));
        let released = all.filter(|(_, slot)| is_here(*slot));
        for key in released.copied().collect::<Vec<_>>() {
            self.keys.remove(&key);
        }
    }

    /// A digest of the keys.
    pub fn digest(&self, seed: u64) -> u64 {
        self.keys.iter().fold(0, |digest, (key, slot)| {
            let session = key.session.number().to_le_bytes();
            let key = xxh3_64_with_seed(&session, seed) ^ u64::from(key.packet_id);
            digest ^ xxh3_64_with_seed(&key.to_le_bytes(), u64::from(*slot))
        })
    }

    /// Drops the keys of all sessions for which `is_kept` returns false.
    pub fn retain(&mut self, is_kept: impl Fn(Party) -> bool) {
        self.keys.retain(|(key, _)| is_kept(key.session));
    }

    /// Writes the keys that follow `after`; all keys if it is `None`. Returns `None` if all are written, else the `after` of the next call.
    pub fn save(
        &self,
        after: Option<KeyInSlot>,
        block: &mut Block<'_>,
    ) -> Option<Option<KeyInSlot>> {
        let mut last_saved = after;
        let is_unsaved = |placed: &KeyInSlot| after.is_none_or(|after| *placed > after);
        for entry in self.keys.iter().filter(|it| is_unsaved(it)) {
            let (key, slot) = entry;
            if block.is_full() {
                return Some(last_saved);
            }
            let mut out = block.record(kind::UNRELEASED);
            out.word(key.session.number());
            out.number(key.packet_id.into());
            out.byte(*slot);
            last_saved = Some(*entry);
        }
        None
    }
}

/// The keys that a release of `key` releases.
fn keys_of_release(key: SessionKey) -> core::ops::RangeInclusive<KeyInSlot> {
    let last = match key.packet_id {
        0 => SessionKey {
            packet_id: u16::MAX,
            ..key
        },
        _ => key,
    };
    (key, 0)..=(last, u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_ends_one_message_and_the_end_of_a_session_all_of_one_partition() {
        let mut table = Unreleased::default();
        for (token, packet_id, slot) in [(1, 1, 10), (1, 2, 20), (1, 3, 10), (2, 1, 10)] {
            table.insert(SessionKey::new(token, packet_id), slot);
        }
        let has = |table: &Unreleased, token, packet_id| {
            table.has(SessionKey::new(token, packet_id), |_| true)
        };
        table.release(SessionKey::new(1, 1), |slot| slot == 20);
        assert!(has(&table, 1, 1), "its topic is in another partition");
        assert!(!table.has(SessionKey::new(1, 1), |slot| slot == 20));
        table.release(SessionKey::new(1, 1), |slot| slot == 10);
        assert!(!has(&table, 1, 1) && has(&table, 2, 1));
        assert_eq!(table.slots_of(SessionKey::new(1, 0)), [20, 10]);
        table.release(SessionKey::new(1, 0), |slot| slot == 10);
        assert!(has(&table, 1, 2) && !has(&table, 1, 3));
        table.retain(|session| session == Party::qos2_publisher(2));
        assert!(!has(&table, 1, 2) && has(&table, 2, 1));
    }
}
