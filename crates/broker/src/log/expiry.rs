//! What goes by time: messages that the rule keeps no longer, and messages whose time to live has passed.
//!
//! Invariants: after [`Log::freshen`] a chain holds nothing that has expired. Nothing is looked for in chains that
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
            if self.count(chain) == 0 {
                emptied(topic, chain);
            }
        }
        limit
    }

    /// Drops all that is too old or has expired in one chain: time is exact for whoever looks.
    pub fn freshen(&mut self, mut chain: u32, age_s: u32, now_s: u32) -> u32 {
        while self.count(chain) > 0 {
            let oldest = self.chains.get(chain).oldest();
            let kept_s = now_s.saturating_sub(self.entries.get(oldest).time_s);
            if kept_s < age_s && !self.is_expired(oldest, now_s) {
                break;
            }
            chain = self.drop_oldest(chain, now_s);
        }
        if self.count(chain) > 0 && self.chains.get(chain).mortal {
            self.sweep(chain, now_s);
        }
        chain
    }

    /// Messages with an end of their own expire in any order.
    fn sweep(&mut self, chain: u32, now_s: u32) {
        let (mut before, mut mortal) = (NONE, false);
        let mut id = self.chains.get(chain).oldest();
        while id != NONE {
            let entry = self.entries.get(id);
            let next = entry.next;
            if self.is_expired(id, now_s) {
                self.expired += 1;
                self.take(before, id, Gone::Unneeded);
            } else {
                mortal |= entry.is_mortal();
                before = id;
            }
            id = next;
        }
        self.chains.get_mut(chain).mortal = mortal;
    }
}
