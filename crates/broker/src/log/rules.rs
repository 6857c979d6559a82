//! Applies a change of rules: entries move to the lists of their new rules, and chains begin or cease to keep only latest values.
//!
//! Invariant: afterwards each list is in the order of arrival. A chain that begins to keep latest values drops its superseded messages at once.
//!
//! Deliberately not here: the new limits. A chain is trimmed to its new limit by the topic's next message, or by the clock.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Log;
use super::removal::RemovalCause;
use crate::base::rules::Rules;
use crate::base::settings::RetentionMode;
use crate::log::entry::ORPHANED;
use crate::log::keys::key_of;
use crate::log::lists::ListMoves;
use crate::store::slab::NONE;

impl Log {
    /// Changes only the rules' times to live: each topic keeps the number of its rule.
    pub fn change_times(&mut self, rules: &Rules) {
        self.lists.change_times(rules);
    }

    /// Applies these rules to all messages; `number_of` returns the new rule of a topic's row. The cost is proportional to the number of chains, and
    /// of messages in lists that are split or merged.
    pub fn change_rules(&mut self, rules: &Rules, number_of: impl Fn(u32) -> u8) {
        let retained = self.lists.retained();
        let mut moves = ListMoves::new(self.lists.len(), rules.count());
        for chain in 0..self.chains.end() {
            let row = self.chains.try_get(chain);
            let Some(row) = row.filter(|row| row.topic != NONE) else {
                continue;
            };
            let (former, orphaned) = (row.rule, row.topic == ORPHANED);
            let number = match former == retained {
                true => rules.retained(),
                // An orphaned chain may go into any list.
                false if orphaned => 0,
                false => number_of(row.topic),
            };
            let latest = rules.get(number).keep == RetentionMode::Latest;
            if latest != row.latest && !orphaned {
                self.change_keep(chain, latest);
            }
            let row = self.chains.get_mut(chain);
            row.rule = number;
            if row.count > 0 {
                moves.add(former, number);
            }
        }
        self.lists
            .change(&mut self.entries, &self.chains, rules, &moves);
    }

    /// Lets a chain begin or cease to keep only the newest message of each key.
    fn change_keep(&mut self, chain: u32, latest: bool) {
        if !latest {
            let mut id = self.chains.get(chain).oldest();
            while id != NONE {
                self.keys
                    .remove(self.keys.row_of(&self.entries, &self.blobs, id));
                id = self.entries.get(id).next;
            }
            self.chains.get_mut(chain).latest = false;
            return;
        }
        let mut newest = BTreeMap::new();
        let mut id = self.chains.get(chain).oldest();
        while id != NONE {
            newest.insert(key_of(&self.entries, &self.blobs, id).to_vec(), id);
            id = self.entries.get(id).next;
        }
        let (mut before, mut id) = (NONE, self.chains.get(chain).oldest());
        let mut kept = Vec::with_capacity(newest.len());
        while id != NONE {
            let next = self.entries.get(id).next;
            if newest[key_of(&self.entries, &self.blobs, id)] == id {
                kept.push((id, before));
                before = id;
            } else {
                self.unneeded.superseded += 1;
                self.remove_entry(before, id, RemovalCause::Unneeded);
            }
            id = next;
        }
        for (id, before) in kept {
            let key = key_of(&self.entries, &self.blobs, id);
            self.keys.insert(chain, key, id, before);
        }
        self.chains.get_mut(chain).latest = true;
    }
}
