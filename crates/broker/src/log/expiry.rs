//! Removes messages by time: those that are older than the rule's age, and those whose time to live is over.
//!
//! Invariant: when [`Log::remove_expired`] has finished, the chain has no expired messages. Expired messages of other chains may remain.
//!
//! A *chain* is the list of a topic's messages.

use super::removal::RemovalCause;
use super::*;
use crate::log::entry::ORPHANED;

/// The maximum number of steps that remove expired messages when a limit must remove one message.
const EXPIRED_AT_ONCE: u64 = 64;

impl Log {
    /// Whether the message's own time to live, or the rule's, is over.
    pub fn is_expired(&self, id: u32, now_s: u32) -> bool {
        let entry = self.entries.get(id);
        let rule_number = self.chains.get(entry.chain).rule;
        let ttl_s = self.lists.ttl_s(rule_number);
        ttl_s != 0 && now_s.saturating_sub(entry.time_s) >= ttl_s
            || entry
                .expires_at_s(&self.blobs)
                .is_some_and(|expires_at_s| now_s >= expires_at_s)
    }

    /// Removes up to `limit` messages of a rule, oldest first. Stops at the first message that is younger than `age_s` and not expired. Calls
    /// `emptied` for each chain that has become empty, with its topic and the topic's chain from now on. Returns the number of removed messages.
    pub fn expire(
        &mut self,
        rule_number: u8,
        age_s: u32,
        now_s: u32,
        limit: usize,
        mut emptied: impl FnMut(u32, u32),
    ) -> usize {
        for removed in 0..limit {
            let id = self.lists.oldest(rule_number);
            if id == NONE {
                return removed;
            }
            let entry = self.entries.get(id);
            if now_s.saturating_sub(entry.time_s) < age_s && !self.is_expired(id, now_s) {
                return removed;
            }
            let topic = self.chains.get(entry.chain).topic;
            // The oldest entry of a rule is also the oldest of its chain.
            let chain = self.drop_oldest(entry.chain, now_s);
            if self.count(chain) == 0 && topic != ORPHANED {
                emptied(topic, chain);
            }
        }
        limit
    }

    /// Removes all messages of a chain that are older than `age_s` or have expired.
    #[cfg(test)]
    pub fn remove_all_expired(&mut self, chain: u32, age_s: u32, now_s: u32) -> u32 {
        self.remove_expired(chain, age_s, now_s, usize::MAX).0
    }

    /// Removes the messages of a chain that are older than `age_s` or have expired, in about `limit` steps. Returns the chain, and whether
    /// all of these messages are removed now. If not, the caller must not let readers read the chain yet.
    pub fn remove_expired(
        &mut self,
        mut chain: u32,
        age_s: u32,
        now_s: u32,
        limit: usize,
    ) -> (u32, bool) {
        let until_step = self.steps.count().saturating_add(limit.max(1) as u64);
        while self.count(chain) > 0 {
            let oldest = self.chains.get(chain).oldest();
            let message_age_s = now_s.saturating_sub(self.entries.get(oldest).time_s);
            if message_age_s < age_s && !self.is_expired(oldest, now_s) {
                break;
            }
            if self.steps.count() >= until_step {
                return (chain, false);
            }
            chain = self.drop_oldest(chain, now_s);
        }
        if self.count(chain) > 0 && self.chains.get(chain).has_ttls {
            return (
                chain,
                self.remove_expired_ttls(chain, NONE, now_s, until_step),
            );
        }
        (chain, true)
    }

    /// Removes, in a few steps, messages of a chain that have outlived their own time to live, except the entry `spared`. Returns whether any was
    /// removed.
    pub(super) fn drop_expired(&mut self, chain: u32, spared: u32, now_s: u32) -> bool {
        let former_count = self.count(chain);
        if self.chains.get(chain).has_ttls {
            let until_step = self.steps.count().saturating_add(EXPIRED_AT_ONCE);
            self.remove_expired_ttls(chain, spared, now_s, until_step);
        }
        self.count(chain) < former_count
    }

    /// Removes messages that have outlived their own time to live, except the entry `spared`. Stops at step `until`. Returns whether none is left.
    fn remove_expired_ttls(
        &mut self,
        chain: u32,
        spared: u32,
        now_s: u32,
        until_step: u64,
    ) -> bool {
        loop {
            let of_chain = (chain, 0, 0)..=(chain, u32::MAX, u32::MAX);
            let mut expiries = self.expiries.range(of_chain).peekable();
            let has_ttls = expiries.peek().is_some();
            let Some(&(_, expires_at_s, id)) = expiries.find(|(_, _, id)| *id != spared) else {
                self.chains.get_mut(chain).has_ttls = has_ttls;
                return true;
            };
            if now_s < expires_at_s {
                return true;
            }
            if self.steps.count() >= until_step {
                return false;
            }
            self.removal_counts.expired += 1;
            self.remove_entry(self.previous_in_chain(id), id, RemovalCause::Unneeded);
            if self.count(chain) == 0 {
                return true;
            }
        }
    }

    /// The entry before this one in its chain; `NONE` for the oldest.
    fn previous_in_chain(&self, id: u32) -> u32 {
        let entry = self.entries.get(id);
        let row = self.chains.get(entry.chain);
        if row.oldest() == id {
            return NONE;
        }
        if row.keeps_latest {
            return self
                .keys
                .get(self.keys.row_of(&self.entries, &self.blobs, id))
                .previous;
        }
        let before = self.entry_at_offset(entry.chain, entry.previous);
        before.expect("an entry names the one before it")
    }
}
