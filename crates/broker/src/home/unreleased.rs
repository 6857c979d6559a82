//! The keys of the QoS 2 messages that clients with recorded MQTT sessions have published, and not yet released by a PUBREL. If the server crashes
//! before the client gets the PUBREC, the client sends the message again. The key (session and packet id) identifies the message, so that it is
//! published only once (MQTT 5.0 section 4.3.3). A will has a key, too: the packet id 0, and a token of its own in place of the session.
//!
//! The record of a message contains its key, and the release has a record of its own, so all processes that read the log have the same table. In a
//! cluster a message may reach the log after the end of its session, so the keys of an ended session stay for some time (`retired_tokens.rs`).
//!
//! Invariants:
//! * A key is in the table from the record of its message to the record of the release. The client uses a packet id again only after the latter.
//! * A message is a retry only if its own partition has its key. Otherwise the nodes of a cluster would decide differently: if a client uses a packet id
//!   first in one partition and then in another, a node may read the second message before the release of the first.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::snapshot::{Block, kind};
use crate::budget::admission::Party;
use crate::mail::message::SessionKey;

/// Memory of an entry: leaves of a `BTreeMap` have eleven slots, are two thirds full, and have a header. The session of the message is charged for it.
pub(crate) const ENTRY_BYTES: usize = 48;

/// The key of a message, and the slot of the message's topic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct KeyInSlot {
    key: SessionKey,
    slot: u8,
}

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

    /// Whether the table has this key for a topic of a partition. `is_here` tells which slots the partition has.
    pub fn has(&self, key: SessionKey, is_here: impl Fn(u8) -> bool) -> bool {
        self.keys
            .range(all_slots(key, key))
            .any(|it| is_here(it.slot))
    }

    /// Adds the key of a message that was published to a topic of this slot.
    pub fn insert(&mut self, key: SessionKey, slot: u8) {
        self.keys.insert(KeyInSlot { key, slot });
    }

    /// The slots of the messages that a release of `key` releases. The packet id 0 releases all messages of the session.
    pub fn slots_of(&self, key: SessionKey) -> Vec<u8> {
        let all = self.keys.range(keys_of_release(key));
        all.map(|it| it.slot).collect()
    }

    /// Applies a release that the log of a partition contains. `is_here` tells which slots the partition has.
    pub fn release(&mut self, key: SessionKey, is_here: impl Fn(u8) -> bool) {
        let all = self.keys.range(keys_of_release(key));
        let released = all.filter(|it| is_here(it.slot));
        for key in released.copied().collect::<Vec<_>>() {
            self.keys.remove(&key);
        }
    }

    /// A digest of the keys.
    pub fn digest(&self, seed: u64) -> u64 {
        self.keys.iter().fold(0, |digest, KeyInSlot { key, slot }| {
            let session = key.session.number().to_le_bytes();
            let key = xxh3_64_with_seed(&session, seed) ^ u64::from(key.packet_id);
            digest ^ xxh3_64_with_seed(&key.to_le_bytes(), u64::from(*slot))
        })
    }

    /// Drops the keys of all sessions for which `is_kept` returns false.
    pub fn retain(&mut self, is_kept: impl Fn(Party) -> bool) {
        self.keys.retain(|it| is_kept(it.key.session));
    }

    /// Writes the keys that follow `after`; all keys if it is `None`. Returns `None` if all are written, else the `after` of the next call.
    pub fn save(
        &self,
        after: Option<KeyInSlot>,
        block: &mut Block<'_>,
    ) -> Option<Option<KeyInSlot>> {
        let mut last_saved = after;
        let is_unsaved = |entry: &KeyInSlot| after.is_none_or(|after| *entry > after);
        for entry in self.keys.iter().filter(|it| is_unsaved(it)) {
            let KeyInSlot { key, slot } = entry;
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

/// All entries with the keys from `first` to `last`.
fn all_slots(first: SessionKey, last: SessionKey) -> RangeInclusive<KeyInSlot> {
    let entry = |key, slot| KeyInSlot { key, slot };
    entry(first, 0)..=entry(last, u8::MAX)
}

/// The entries that a release of `key` releases.
fn keys_of_release(key: SessionKey) -> RangeInclusive<KeyInSlot> {
    let last = match key.packet_id {
        0 => SessionKey {
            packet_id: u16::MAX,
            ..key
        },
        _ => key,
    };
    all_slots(key, last)
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
