//! Finds the first message of a chain for a subscription that begins at a position, at a time, or with a count of messages, in bounded steps.
//!
//! A chain (the list of a topic's messages) has no index. The list of its rule has marks every few entries, which lead to any offset and any second
//! in a few steps. If the offset is not in the chain, the search follows the list and the chain in parallel, at twice the cost of the shorter way. A
//! search can also go back, since each entry contains the offset of the previous entry. A search that reaches its limit is resumed later.
//!
//! Invariant: a resumed search has advanced by at least one entry, and has skipped no entry of the chain.

use super::*;

/// The result of a search for the first message after an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekResult {
    /// The entry; `NONE` if there is none.
    Found(u32),
    /// Not found up to this offset, from which to resume.
    Continue(u64),
}

/// The result of a search for the beginning of the newest messages of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekBackResult {
    /// The newest messages begin after this offset.
    Found(u64),
    /// Not found yet: the offset at which to resume, and the number of messages still to count, including the one at this offset.
    Continue(u64, u32),
}

impl Log {
    /// Searches for the first message of a chain after `offset`, in at most `limit` entries.
    pub fn seek(&self, chain: u32, offset: u64, limit: usize) -> SeekResult {
        let newest = match chain {
            NONE => NONE,
            chain => self.chains.get(chain).newest(),
        };
        if newest == NONE || self.entries.get(newest).offset <= offset {
            return SeekResult::Found(NONE);
        }
        let mut in_chain = self.oldest(chain);
        if self.entries.get(in_chain).offset > offset {
            return SeekResult::Found(in_chain);
        }
        if let Some(entry) = self
            .entries
            .try_get(self.recently_read.entry_at(chain, offset))
            && entry.chain == chain
            && entry.offset == offset
        {
            // A reused row has another offset or another chain, so this is the entry that was read.
            return SeekResult::Found(entry.next);
        }
        let rule_number = self.chains.get(chain).rule;
        let (entries, steps) = (&self.entries, &self.steps);
        let before = offset.saturating_sub(1);
        let mut in_list = self.lists.first_after(entries, rule_number, before, steps);
        let entry = self.entries.get(in_list);
        if entry.offset == offset && entry.chain == chain {
            return SeekResult::Found(entry.next);
        }
        if entry.offset == offset {
            in_list = entry.younger;
        }
        // Both ways lead to the newest message, which is after `offset`, so neither way ends before it.
        let mut read_to = offset;
        for _ in 0..limit.max(1) {
            self.steps.add(1);
            let entry = self.entries.get(in_list);
            if entry.offset > offset && entry.chain == chain {
                return SeekResult::Found(in_list);
            }
            (read_to, in_list) = (entry.offset, entry.younger);
            let entry = self.entries.get(in_chain);
            if entry.offset > offset {
                return SeekResult::Found(in_chain);
            }
            in_chain = entry.next;
        }
        SeekResult::Continue(read_to)
    }

    /// Searches for the beginning of the newest `count` messages, in at most `limit` entries; `None` if there are no messages.
    pub fn seek_newest(&self, chain: u32, count: u32, limit: usize) -> Option<SeekBackResult> {
        if count == 0 || self.count(chain) == 0 {
            return None;
        }
        let newest = self.entries.get(self.chains.get(chain).newest());
        Some(self.seek_back(chain, newest.offset, count, limit))
    }

    /// Goes back over the newest `left` messages up to `offset`, by about `limit` entries.
    pub fn seek_back(
        &self,
        chain: u32,
        offset: u64,
        mut remaining: u32,
        limit: usize,
    ) -> SeekBackResult {
        let all_messages = SeekBackResult::Found(self.last_lost_offset(chain).unwrap_or(offset));
        if remaining >= self.count(chain) {
            return all_messages;
        }
        let mut id = match self.entry_at_offset(chain, offset) {
            Some(id) => id,
            // The message was removed meanwhile: the search continues at the message before it.
            None => match self.seek(chain, offset, limit) {
                SeekResult::Continue(offset) => return SeekBackResult::Continue(offset, remaining),
                SeekResult::Found(NONE) => self.chains.get(chain).newest(),
                SeekResult::Found(next) => {
                    match self.entry_at_offset(chain, self.entries.get(next).previous) {
                        Some(before) => before,
                        None => return all_messages,
                    }
                }
            },
        };
        let until_step = self.steps.count().saturating_add(limit.max(1) as u64);
        loop {
            self.steps.add(1);
            let entry = self.entries.get(id);
            if remaining == 1 {
                return SeekBackResult::Found(entry.previous);
            }
            let neighbour = self.entries.try_get(entry.older);
            let before = match neighbour.is_some_and(|older| older.chain == chain) {
                true => Some(entry.older),
                false => self.entry_at_offset(chain, entry.previous),
            };
            let Some(before) = before else {
                return all_messages;
            };
            (id, remaining) = (before, remaining - 1);
            if self.steps.count() >= until_step {
                return SeekBackResult::Continue(self.entries.get(id).offset, remaining);
            }
        }
    }

    /// The message of a chain at exactly this offset, found by the marks in a few steps. `NONE` is an empty chain.
    pub fn entry_at_offset(&self, chain: u32, offset: u64) -> Option<u32> {
        let rule_number = self.chains.try_get(chain)?.rule;
        let (entries, steps) = (&self.entries, &self.steps);
        let before = offset.checked_sub(1)?;
        let id = self.lists.first_after(entries, rule_number, before, steps);
        let entry = self.entries.try_get(id)?;
        (entry.offset == offset && entry.chain == chain).then_some(id)
    }

    /// An offset after which the chain has exactly the messages that arrived after this second. `None` without a chain.
    pub fn offset_before_time(&self, chain: u32, time_s: u32) -> Option<u64> {
        let last_lost = self.last_lost_offset(chain)?;
        let rule_number = self.chains.get(chain).rule;
        let (entries, steps) = (&self.entries, &self.steps);
        let last_arrived = self
            .lists
            .last_arrived_by(entries, rule_number, time_s, steps);
        Some(last_arrived.max(last_lost))
    }
}
