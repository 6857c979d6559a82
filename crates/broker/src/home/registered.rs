//! The filters that other shards have subscribers of, and the losses of topics that are forgotten.
//!
//! Invariant: a shard's filter is registered from its first attach to its leave.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::ids::ShardId;
use crate::base::rules::Rules;
use crate::filters::matching::Matching;
use crate::filters::{Filters, Refused};
use crate::store::slab::{NONE, Side};

/// A filter's value is a shard; with this bit it is a set of shards.
const SET: u32 = 1 << 31;
/// Forgotten topics that are remembered by name, so that only filters that match are told their losses. Of earlier ones
/// the rule is remembered: every filter that may have topics of that rule is told a gap, if its position is older than
/// the loss.
const NAMED_MAX: usize = 1024;
/// Between the filters of one attach; a control character, which no filter has.
pub const SEPARATOR: u8 = b'\n';

/// The filters of all other shards.
pub(super) struct Registered {
    filters: Filters,
    sets: Side<Vec<ShardId>>,
    /// The shards that get the message at hand.
    due: Vec<ShardId>,
    forgotten: Forgotten,
}

/// Topics that are forgotten and had lost messages: of the most recent ones the name, of others the rule.
#[derive(Default)]
struct Forgotten {
    /// The last message that each had lost, the number of that loss, the rule and the name; in no order.
    named: VecDeque<(u64, u64, u8, Box<[u8]>)>,
    by_rule: Vec<u64>,
}

impl Registered {
    pub fn new(rules: usize, seed: u64) -> Self {
        Registered {
            filters: Filters::new(seed),
            sets: Side::new(),
            due: Vec::new(),
            forgotten: Forgotten {
                named: VecDeque::new(),
                by_rule: alloc::vec![0; rules],
            },
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    pub fn len(&self) -> u32 {
        self.filters.len()
    }

    pub fn bytes(&self) -> usize {
        self.filters.bytes()
    }

    /// A topic that lost messages is forgotten.
    pub fn forget(&mut self, rule: u8, lost: u64, number: u64, name: &[u8]) {
        let Forgotten { named, by_rule } = &mut self.forgotten;
        if named.len() == NAMED_MAX {
            let (lost, _, rule, _) = named.pop_front().expect("it is full");
            let of_rule = &mut by_rule[rule as usize];
            *of_rule = lost.max(*of_rule);
        }
        named.push_back((lost, number, rule, name.into()));
    }

    /// Forgotten topics that had lost messages: the last one, the number of that loss, the name.
    pub fn forgotten_topics(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let named = self.forgotten.named.iter();
        named.map(|(lost, number, _, name)| (*lost, *number, &name[..]))
    }

    /// The last losses of those that are remembered by rule.
    pub fn blamed_rules(&self) -> impl Iterator<Item = (u8, u64)> {
        let all = (0..).zip(self.forgotten.by_rule.iter().copied());
        all.filter(|(_, lost)| *lost > 0)
    }

    /// Notes for the rule with this filter that its forgotten topics lost a message at `lost`; if there is no such
    /// rule, for all rules.
    pub fn blame(&mut self, filter: &[u8], lost: u64, rules: &Rules) {
        let by_rule = &mut self.forgotten.by_rule;
        match rules.with_filter(filter) {
            Some(number) => by_rule[number as usize] = lost.max(by_rule[number as usize]),
            None => by_rule.iter_mut().for_each(|of| *of = lost.max(*of)),
        }
    }

    /// The rules get other numbers. Losses that were noted for a rule that is gone are noted for all rules.
    pub fn change_rules(&mut self, former: &Rules, rules: &Rules) {
        let Forgotten { named, by_rule } = &mut self.forgotten;
        for (_, _, rule, name) in named {
            *rule = rules.number_for(name);
        }
        let blamed = core::mem::replace(by_rule, alloc::vec![0; rules.count()]);
        for (number, lost) in (0..).zip(blamed).filter(|(_, lost)| *lost > 0) {
            self.blame(former.get(number).filter.as_bytes(), lost, rules);
        }
    }

    /// The last losses of forgotten topics that these filters may match, if behind `offset` and after loss `base`, in
    /// order.
    pub fn lost_behind(
        &self,
        offset: u64,
        base: u64,
        rules: &[u8],
        filters: &[&[u8]],
    ) -> VecDeque<u64> {
        let of_rules = rules.iter().map(|n| self.forgotten.by_rule[*n as usize]);
        let matches = |name: &[u8]| filters.iter().any(|filter| topic::matches(filter, name));
        let named = self.forgotten.named.iter();
        let of_names = named
            .filter(|(lost, number, _, name)| *lost > offset && *number > base && matches(name))
            .map(|(lost, ..)| *lost);
        let mut all: Vec<u64> = of_rules
            .filter(|lost| *lost > offset && base == 0)
            .chain(of_names)
            .collect();
        all.sort_unstable();
        all.into()
    }

    /// See [`Filters::warm`].
    pub fn warm<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        self.filters.warm(topics);
    }

    /// Finds the shards that get a message; returns how many there are.
    pub fn find(&mut self, name: &[u8]) -> u32 {
        self.due.clear();
        if self.filters.is_empty() {
            return 0;
        }
        let (sets, due) = (&self.sets, &mut self.due);
        self.filters.matches(name, |id| {
            let value = self.filters.value(id);
            if value & SET == 0 {
                due.push(value as ShardId);
            } else {
                due.extend_from_slice(sets.get(value & !SET));
            }
        });
        due.sort_unstable();
        due.dedup();
        due.len() as u32
    }

    /// The shards that [`Registered::find_with`] found last; they must be [put back](Registered::put_due).
    pub fn take_due(&mut self) -> Vec<ShardId> {
        core::mem::take(&mut self.due)
    }

    pub fn put_due(&mut self, due: Vec<ShardId>) {
        self.due = due;
    }

    /// The same as [`Registered::find`], with the home's own shard.
    pub fn find_with(&mut self, name: &[u8], here: &Matching, me: ShardId) -> u32 {
        let others = self.find(name);
        if !here.has_match(name) {
            return others;
        }
        self.due.push(me);
        others + 1
    }

    /// A shard has a subscriber of this filter.
    pub fn add(&mut self, filter: &[u8], shard: ShardId) -> Result<(), Refused> {
        let id = self.filters.open(filter)?;
        let value = self.filters.value(id);
        if value == NONE {
            self.filters.set_value(id, u32::from(shard));
        } else if value & SET != 0 {
            let set = self.sets.get_mut(value & !SET);
            if !set.contains(&shard) {
                set.push(shard);
            }
        } else if value != u32::from(shard) {
            let set = self.sets.insert(alloc::vec![value as ShardId, shard]);
            self.filters.set_value(id, SET | set);
        }
        Ok(())
    }

    /// A shard has no subscriber of this filter any more.
    pub fn remove(&mut self, filter: &[u8], shard: ShardId) {
        let Some(id) = self.filters.find(filter) else {
            return;
        };
        let value = self.filters.value(id);
        if value & SET != 0 {
            let set = self.sets.get_mut(value & !SET);
            set.retain(|other| *other != shard);
            if !set.is_empty() {
                return;
            }
            self.sets.remove(value & !SET);
        } else if value != u32::from(shard) {
            return;
        }
        self.filters.close(id);
    }
}

/// The filters of one attach.
pub(super) fn split(names: &[u8]) -> Vec<&[u8]> {
    names.split(|b| *b == SEPARATOR).collect()
}
