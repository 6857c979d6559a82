//! The contents of a log that a snapshot of the home saves and restores: the state of each chain, and each message in the form in which it was
//! appended.
//!
//! Words: a *home* is the part of a shard that keeps topics; a *chain* is the list of a topic's messages.

use super::{Chain, Log};
use crate::mail::message::{Headers, NewMessage};
use crate::store::blobs::BlobBytes;
use crate::store::slab::NONE;

/// The state of a topic's chain.
pub enum ChainState {
    /// The topic has no chain.
    None,
    /// The chain has no messages.
    Empty {
        /// The last lost offset.
        last_lost_offset: u64,
        /// Whether the newest messages were removed without being lost.
        newest_removed: bool,
    },
    /// The chain has messages.
    Filled {
        /// Whether the newest messages were removed without being lost.
        newest_removed: bool,
    },
}

impl Log {
    /// The state of a chain; `NONE` is no chain.
    pub fn chain_state(&self, chain: u32) -> ChainState {
        if chain == NONE {
            return ChainState::None;
        }
        let row = self.chains.get(chain);
        let newest_removed = row.newest_removed;
        match row.count {
            0 => ChainState::Empty {
                last_lost_offset: row.last_lost_offset(),
                newest_removed,
            },
            _ => ChainState::Filled { newest_removed },
        }
    }

    /// The offset of a chain's newest message, or, without messages, the last lost offset; 0 without a chain.
    pub fn last_offset(&self, chain: u32) -> u64 {
        if chain == NONE {
            return 0;
        }
        let row = self.chains.get(chain);
        match row.count {
            0 => row.last_lost_offset(),
            _ => self.entries.get(row.newest()).offset,
        }
    }

    /// Creates a chain without messages, for a topic that has lost all up to `lost`.
    pub fn empty_chain(
        &mut self,
        topic: u32,
        rule_number: u8,
        keeps_latest: bool,
        lost: u64,
    ) -> u32 {
        self.chains
            .insert(Chain::new(topic, rule_number, keeps_latest, lost))
    }

    /// Records that a chain's newest messages were removed without being lost.
    pub fn note_newest_removed(&mut self, chain: u32) {
        if chain != NONE {
            self.chains.get_mut(chain).newest_removed = true;
        }
    }

    /// A message in the form in which it was appended.
    pub fn message(&self, id: u32) -> NewMessage<'_> {
        let entry = self.entries.get(id);
        let chain = self.chains.get(entry.chain);
        let bytes = self.blobs.get(entry.blob);
        let parts = entry.parts(bytes);
        let whole = match self.blobs.get_shareable(entry.blob) {
            BlobBytes::Shared(shared) => {
                let len = entry.bytes();
                Some(shared.slice(len - parts.frame.len()..len))
            }
            BlobBytes::Padded(_) => None,
        };
        NewMessage {
            topic: chain.topic,
            offset: entry.offset,
            previous: entry.previous,
            owner: entry.owner(bytes),
            time_s: entry.time_s,
            latest: chain.keeps_latest,
            headers: Headers {
                content_type: parts.content_type,
                event: parts.event,
                key: parts.key,
                attributes: parts.attributes,
                ttl_s: entry.ttl_s(bytes),
                qos: entry.qos(),
                retain: entry.was_retained(),
                binary: entry.is_binary(),
            },
            frame: parts.frame,
            whole,
        }
    }
}
