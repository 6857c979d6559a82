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
        self.lists.change_ttls(rules);
    }

    /// Applies these rules to all messages; `number_of` returns the new rule of a topic's row. The cost is proportional to the number of chains, and
    /// of messages in lists that are split or merged.
    pub fn change_rules(&mut self, rules: &Rules, new_rule_of: impl Fn(u32) -> u8) {
        let retained = self.lists.retained();
        let mut moves = ListMoves::new(self.lists.len(), rules.count());
        for chain in 0..self.chains.end() {
            let row = self.chains.try_get(chain);
            let Some(row) = row.filter(|row| row.topic != NONE) else {
                continue;
            };
            let (former_rule, is_orphaned) = (row.rule, row.topic == ORPHANED);
            let new_rule = match former_rule == retained {
                true => rules.retained(),
                // An orphaned chain may go into any list.
                false if is_orphaned => 0,
                false => new_rule_of(row.topic),
            };
            let keeps_latest = rules.get(new_rule).keep == RetentionMode::Latest;
            if keeps_latest != row.keeps_latest && !is_orphaned {
                self.set_keeps_latest(chain, keeps_latest);
            }
            let row = self.chains.get_mut(chain);
            row.rule = new_rule;
            if row.count > 0 {
                moves.add(former_rule, new_rule);
            }
        }
        self.lists
            .move_entries(&mut self.entries, &self.chains, rules, &moves);
    }

    /// Lets a chain begin or cease to keep only the newest message of each key.
    fn set_keeps_latest(&mut self, chain: u32, keeps_latest: bool) {
        if !keeps_latest {
            let mut id = self.chains.get(chain).oldest();
            while id != NONE {
                self.keys
                    .remove(self.keys.row_of(&self.entries, &self.blobs, id));
                id = self.entries.get(id).next;
            }
            self.chains.get_mut(chain).keeps_latest = false;
            return;
        }
        let mut newest = BTreeMap::new();
        let mut id = self.chains.get(chain).oldest();
        while id != NONE {
            newest.insert(key_of(&self.entries, &self.blobs, id).to_vec(), id);
            id = self.entries.get(id).next;
        }
        let (mut previous, mut id) = (NONE, self.chains.get(chain).oldest());
        let mut kept = Vec::with_capacity(newest.len());
        while id != NONE {
            let next = self.entries.get(id).next;
            if newest[key_of(&self.entries, &self.blobs, id)] == id {
                kept.push((id, previous));
                previous = id;
            } else {
                self.removal_counts.superseded += 1;
                self.remove_entry(previous, id, RemovalCause::Unneeded);
            }
            id = next;
        }
        for (id, before) in kept {
            let key = key_of(&self.entries, &self.blobs, id);
            self.keys.insert(chain, key, id, before);
        }
        self.chains.get_mut(chain).keeps_latest = true;
    }
}
