//! A change of rules: the entries move to the lists of their new rules, and chains that begin or cease to keep the
//! latest change their form. A list whose entries stay together only changes its number.
//!
//! Invariant: afterwards each list is in the order of arrival again. Nothing is trimmed here: the topic's next message,
//! or the clock, does that.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Ages, Gone, Log, MARKED, Marks};
use crate::base::rules::Rules;
use crate::base::settings::Keep;
use crate::log::doomed::DOOMED;
use crate::log::entry::Entry;
use crate::store::slab::NONE;

/// Lists without entries, one for each rule.
pub(super) fn lists(rules: &Rules) -> Vec<Ages> {
    let ages = |number| Ages {
        oldest: NONE,
        youngest: NONE,
        ttl_s: rules.get(number as u8).ttl_s,
        marks: Marks::default(),
    };
    (0..rules.count()).map(ages).collect()
}

/// The lists that entries move from and to.
struct Ways {
    lists: usize,
    /// Whether entries move from list `n / lists` to list `n % lists`.
    some: Vec<bool>,
}

impl Ways {
    fn new(former: usize, lists: usize) -> Ways {
        let some = alloc::vec![false; former * lists];
        Ways { lists, some }
    }

    fn add(&mut self, from: u8, to: u8) {
        self.some[usize::from(from) * self.lists + usize::from(to)] = true;
    }

    /// The new list of all entries of a list, if no others move there.
    fn alone(&self, from: usize) -> Option<usize> {
        let row = &self.some[from * self.lists..][..self.lists];
        let mut ways = (0..self.lists).filter(|to| row[*to]);
        let to = ways.next()?;
        let sources = self.some.chunks(self.lists).filter(|row| row[to]);
        (ways.next().is_none() && sources.count() == 1).then_some(to)
    }
}

impl Log {
    /// Changes the times to live to those of these rules, which govern the same topics as before.
    pub fn change_times(&mut self, rules: &Rules) {
        for (number, ages) in self.ages.iter_mut().enumerate() {
            ages.ttl_s = rules.get(number as u8).ttl_s;
        }
    }

    /// Applies these rules to all messages; `number_of` gives the new rule of a topic's row. The cost grows with the
    /// chains, and with the messages in lists that are split or merged.
    pub fn change_rules(&mut self, rules: &Rules, number_of: impl Fn(u32) -> u8) {
        let retained = (self.ages.len() - 1) as u8;
        let mut ways = Ways::new(self.ages.len(), rules.count());
        for chain in 0..self.chains.end() {
            let row = self.chains.get(chain);
            if row.topic == NONE {
                continue;
            }
            let (former, doomed) = (row.rule, row.topic == DOOMED);
            let number = match former == retained {
                true => rules.retained(),
                // A doomed chain may go into any list.
                false if doomed => 0,
                false => number_of(row.topic),
            };
            let latest = rules.get(number).keep == Keep::Latest;
            if latest != row.latest && !doomed {
                self.change_form(chain, latest);
            }
            let row = self.chains.get_mut(chain);
            row.rule = number;
            if row.count > 0 {
                ways.add(former, number);
            }
        }
        let former = core::mem::replace(&mut self.ages, lists(rules));
        let mut rest = Vec::new();
        for (from, ages) in former.into_iter().enumerate() {
            match ways.alone(from) {
                Some(to) => {
                    let ttl_s = self.ages[to].ttl_s;
                    self.ages[to] = Ages { ttl_s, ..ages };
                }
                None => self.gather(ages.oldest, &mut rest),
            }
        }
        rest.sort_unstable();
        for (_, id) in rest {
            self.entries.get_mut(id).form &= !MARKED;
            self.append_to_list(id);
        }
    }

    /// The entries of a list, from this one on, with their offsets.
    fn gather(&self, oldest: u32, all: &mut Vec<(u64, u32)>) {
        let mut id = oldest;
        while id != NONE {
            let entry = self.entries.get(id);
            all.push((entry.offset, id));
            id = entry.younger;
        }
    }

    /// Puts an entry at the end of its rule's list.
    pub(super) fn append_to_list(&mut self, id: u32) {
        let entry = self.entries.get(id);
        let (offset, number) = (entry.offset, self.chains.get(entry.chain).rule);
        let ages = &mut self.ages[number as usize];
        let marked = if ages.marks.add(offset, id) {
            MARKED
        } else {
            0
        };
        let elder = core::mem::replace(&mut ages.youngest, id);
        if elder == NONE {
            ages.oldest = id;
        } else {
            self.entries.get_mut(elder).younger = id;
        }
        let entry = self.entries.get_mut(id);
        entry.form |= marked;
        (entry.older, entry.younger) = (elder, NONE);
    }

    /// A chain begins or ceases to keep only the newest message of each key.
    fn change_form(&mut self, chain: u32, latest: bool) {
        if !latest {
            let mut id = self.chains.get(chain).oldest();
            while id != NONE {
                self.keys.remove(self.key_row_of(id));
                id = self.entries.get(id).next;
            }
            self.chains.get_mut(chain).latest = false;
            return;
        }
        let mut newest = BTreeMap::new();
        let mut id = self.chains.get(chain).oldest();
        while id != NONE {
            newest.insert(self.key_of(id).to_vec(), id);
            id = self.entries.get(id).next;
        }
        let (mut before, mut id) = (NONE, self.chains.get(chain).oldest());
        let mut kept = Vec::with_capacity(newest.len());
        while id != NONE {
            let next = self.entries.get(id).next;
            if newest[self.key_of(id)] == id {
                kept.push((id, before));
                before = id;
            } else {
                self.superseded += 1;
                self.take(before, id, Gone::Unneeded);
            }
            id = next;
        }
        for (id, before) in kept {
            let key = Entry::parts(
                self.entries.get(id),
                self.blobs.get(self.entries.get(id).blob),
            );
            self.keys.insert(chain, key.key, id, before);
        }
        self.chains.get_mut(chain).latest = true;
    }

    fn key_of(&self, id: u32) -> &[u8] {
        let entry = self.entries.get(id);
        entry.parts(self.blobs.get(entry.blob)).key
    }
}
