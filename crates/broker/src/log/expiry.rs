//! What goes by time: messages that the rule keeps no longer, and messages whose time to live has passed.
//!
//! Invariants: when [`Log::freshen_some`] says that it was all, a chain holds nothing that has expired. Nothing is looked for in chains that
//! nobody asks for, except for the oldest of each rule.

use super::*;

impl Log {
    /// Whether its own time to live or the rule's has passed.
    pub fn is_expired(&self, id: u32, now_s: u32) -> bool {
        let entry = self.entries.get(id);
        let number = self.chains.get(entry.chain).rule;
        let ttl_s = self.ages[number as usize].ttl_s;
        ttl_s != 0 && now_s.saturating_sub(entry.time_s) >= ttl_s
            || entry.is_mortal() && now_s >= Entry::end_s(self.blobs.get(entry.blob))
    }

    /// Drops up to `limit` messages of a rule that are older than `age_s`, or than the rule lets them live.
    /// `emptied` is told the topics that have nothing left, and the chain that they have now. Says how many went.
    pub fn expire(
        &mut self,
        number: u8,
        age_s: u32,
        now_s: u32,
        limit: usize,
        mut emptied: impl FnMut(u32, u32),
    ) -> usize {
        for gone in 0..limit {
            let id = self.ages[number as usize].oldest;
            if id == NONE {
                return gone;
            }
            let entry = self.entries.get(id);
            if now_s.saturating_sub(entry.time_s) < age_s && !self.is_expired(id, now_s) {
                return gone;
            }
            let topic = self.chains.get(entry.chain).topic;
            // The oldest of a rule is the oldest of its chain.
            let chain = self.drop_oldest(entry.chain, now_s);
            if self.count(chain) == 0 && topic != DOOMED {
                emptied(topic, chain);
            }
        }
        limit
    }

    /// Drops all that is too old or has expired in one chain: time is exact for whoever looks.
    #[cfg(test)]
    pub fn freshen(&mut self, chain: u32, age_s: u32, now_s: u32) -> u32 {
        self.freshen_some(chain, age_s, now_s, usize::MAX).0
    }

    /// Drops what is too old or has expired in one chain, in so many steps at most. Returns the chain, and whether that
    /// was all: time is exact then for whoever looks.
    pub fn freshen_some(
        &mut self,
        mut chain: u32,
        age_s: u32,
        now_s: u32,
        limit: usize,
    ) -> (u32, bool) {
        let until = self.steps.count().saturating_add(limit.max(1) as u64);
        while self.count(chain) > 0 {
            let oldest = self.chains.get(chain).oldest();
            let kept_s = now_s.saturating_sub(self.entries.get(oldest).time_s);
            if kept_s < age_s && !self.is_expired(oldest, now_s) {
                break;
            }
            if self.steps.count() >= until {
                return (chain, false);
            }
            chain = self.drop_oldest(chain, now_s);
        }
        if self.count(chain) > 0 && self.chains.get(chain).mortal {
            return (chain, self.sweep(chain, now_s, until));
        }
        (chain, true)
    }

    /// Messages with an end of their own expire in any order. Says whether all that have are gone.
    fn sweep(&mut self, chain: u32, now_s: u32, until: u64) -> bool {
        loop {
            let of_chain = (chain, 0, 0)..=(chain, u32::MAX, u32::MAX);
            let Some(&(_, end_s, id)) = self.mortals.range(of_chain).next() else {
                self.chains.get_mut(chain).mortal = false;
                return true;
            };
            if now_s < end_s {
                return true;
            }
            if self.steps.count() >= until {
                return false;
            }
            self.expired += 1;
            self.take(self.before(id), id, Gone::Unneeded);
            if self.count(chain) == 0 {
                return true;
            }
        }
    }

    /// The entry before this one in its chain, `NONE` before the oldest.
    fn before(&self, id: u32) -> u32 {
        let entry = self.entries.get(id);
        let row = self.chains.get(entry.chain);
        if row.oldest() == id {
            return NONE;
        }
        if row.latest {
            return self.keys.get(self.key_row_of(id)).before;
        }
        let before = self.entry_at(row.rule, entry.chain, entry.previous);
        before.expect("an entry names the one before it")
    }
}
