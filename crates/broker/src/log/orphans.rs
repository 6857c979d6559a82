//! Orphaned chains: chains (lists of messages) of deleted or emptied topics that are too long to be removed in one step. No reader gets their
//! messages. Each turn (a pass of the shard's loop) removes some of them. If the byte budget is exceeded, they are removed before all other messages.
//!
//! Invariant: an orphaned chain has messages, and no topic's row refers to it.

use super::removal::RemovalCause;
use super::*;
use crate::log::entry::ORPHANED;

/// A chain of at most this many messages is removed in one step. It is low in tests, so that most chains are long.
const SHORT_CHAIN_MAX: u32 = if cfg!(test) { 2 } else { 64 };

impl Log {
    /// Whether a chain is too long to be removed in one step.
    pub(super) fn is_long(&self, chain: u32) -> bool {
        self.count(chain) > SHORT_CHAIN_MAX
    }

    /// Makes a chain with messages an orphan.
    pub(super) fn orphan(&mut self, chain: u32) {
        self.chains.get_mut(chain).topic = ORPHANED;
        self.orphans.insert(chain);
        self.counts.home.orphans.add(1);
    }

    /// Whether messages of a chain can expire.
    pub(super) fn may_expire(&self, chain: u32) -> bool {
        let row = self.chains.get(chain);
        row.has_ttls || self.lists.ttl_s(row.rule) != 0
    }

    /// Makes a chain an orphan, and counts all its messages as lost, as if a limit had removed them. Returns the topic's new chain, or `NONE`. The
    /// last lost message is the newest one that has not expired. Only a few of the newest messages are examined. If all of them have expired, the
    /// newest message counts as lost.
    pub(super) fn lose_all(&mut self, chain: u32, now_s: u32) -> u32 {
        let row = self.chains.get(chain);
        let (topic, rule_number, keeps_latest, newest_removed) =
            (row.topic, row.rule, row.keeps_latest, row.newest_removed);
        let newest = row.newest();
        let previous_lost = self.entries.get(row.oldest()).previous;
        let mut last_lost = newest;
        for _ in 0..SHORT_CHAIN_MAX {
            if !self.is_expired(last_lost, now_s) {
                break;
            }
            match self.entry_at_offset(chain, self.entries.get(last_lost).previous) {
                Some(older) => last_lost = older,
                None => break,
            }
        }
        if self.is_expired(last_lost, now_s) {
            last_lost = newest;
        }
        let lost_offset = self.entries.get(last_lost).offset;
        let count = self.count(chain);
        self.orphan(chain);
        self.losses
            .add_all(topic, previous_lost, lost_offset, count);
        if !newest_removed && last_lost == newest {
            return NONE;
        }
        let new_chain = self.empty_chain(topic, rule_number, keeps_latest, lost_offset);
        self.note_newest_removed(new_chain);
        new_chain
    }

    /// Whether there are orphaned chains.
    pub fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// Removes at most `limit` messages of orphaned chains; returns how many.
    pub fn clear_orphans(&mut self, limit: usize) -> usize {
        for removed in 0..limit {
            let Some(chain) = self.orphans.first().copied() else {
                return removed;
            };
            let oldest = self.chains.get(chain).oldest();
            self.remove_entry(NONE, oldest, RemovalCause::Unneeded);
        }
        limit
    }
}
