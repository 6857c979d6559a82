//! Remembers the losses of a partition's forgotten topics (topics whose rows were freed), so that subscribers by filter still get a gap,
//! the notice that messages are lost.
//!
//! The newest losses are remembered with the topic's name, so that only subscribers whose filter matches the name get a gap. Older losses are
//! remembered with the topic's rule only: then every subscriber whose filter may match topics of that rule gets a gap, if its position is older than
//! the loss. Losses are numbered in the order in which they happened.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::rules::Rules;

/// The losses of a partition's forgotten topics.
pub(super) struct ForgottenTopics {
    /// For each topic: offset and number of its last loss, its rule and its name. In the order in which the topics were forgotten.
    named: VecDeque<(u64, u64, u8, Box<[u8]>)>,
    /// By rule: the highest offset and number of a loss that is remembered without a name.
    by_rule: Vec<(u64, u64)>,
    named_max: usize,
}

impl ForgottenTopics {
    pub fn new(rules: usize, named_max: usize) -> Self {
        ForgottenTopics {
            named: VecDeque::new(),
            by_rule: alloc::vec![(0, 0); rules],
            named_max,
        }
    }

    /// Adds a forgotten topic that had lost messages.
    pub fn add(&mut self, rule: u8, lost: u64, number: u64, name: &[u8]) {
        if self.named.len() >= self.named_max
            && let Some((lost, number, rule, _)) = self.named.pop_front()
        {
            self.note(rule, lost, number);
        }
        self.named.push_back((lost, number, rule, name.into()));
    }

    /// Notes a loss for a rule, by offset and number.
    pub fn note(&mut self, rule: u8, lost: u64, number: u64) {
        let of = &mut self.by_rule[rule as usize];
        *of = (lost.max(of.0), number.max(of.1));
    }

    /// The highest offset of the losses that are noted for a rule.
    pub fn lost_by(&self, rule: u8) -> u64 {
        self.by_rule[usize::from(rule)].0
    }

    /// Offset and number of the last loss of each topic remembered by name, and the name.
    pub fn topics(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let named = self.named.iter();
        named.map(|(lost, number, _, name)| (*lost, *number, &name[..]))
    }

    /// The rules with losses, each with the highest offset.
    pub fn losses_by_rule(&self) -> impl Iterator<Item = (u8, u64)> {
        let all = (0..).zip(self.by_rule.iter().map(|of| of.0));
        all.filter(|(_, lost)| *lost > 0)
    }

    /// Notes a loss for the rule with this filter, or for all rules if no rule has that filter.
    pub fn note_for_filter(&mut self, filter: &[u8], lost: u64, rules: &Rules) {
        self.note_numbered_for_filter(filter, lost, 0, rules);
    }

    fn note_numbered_for_filter(&mut self, filter: &[u8], lost: u64, number: u64, rules: &Rules) {
        let one = rules.with_filter(filter);
        for rule in 0..self.by_rule.len() as u8 {
            if one.is_none_or(|one| one == rule) {
                self.note(rule, lost, number);
            }
        }
    }

    /// Renumbers the rules. A loss noted for a rule that is gone is noted for all rules.
    pub fn change_rules(&mut self, former: &Rules, rules: &Rules) {
        let ForgottenTopics { named, by_rule, .. } = self;
        for (_, _, rule, name) in named {
            *rule = rules.number_for(name);
        }
        let blamed = core::mem::replace(by_rule, alloc::vec![(0, 0); rules.count()]);
        for (rule, (lost, number)) in (0..).zip(blamed).filter(|(_, of)| of.0 > 0) {
            self.note_numbered_for_filter(former.get(rule).filter.as_bytes(), lost, number, rules);
        }
    }

    /// The offsets of losses that may concern these filters, in ascending order. Only losses after `offset` and with a number above
    /// `losses_before` are returned.
    pub fn lost_behind(
        &self,
        offset: u64,
        losses_before: u64,
        rules: &[u8],
        filters: &[&[u8]],
    ) -> VecDeque<u64> {
        let of_rules = rules.iter().map(|n| self.by_rule[*n as usize]);
        let matches = |name: &[u8]| filters.iter().any(|filter| topic::matches(filter, name));
        let named = self.named.iter();
        let of_names = named
            .filter(|(lost, number, _, name)| {
                *lost > offset && *number > losses_before && matches(name)
            })
            .map(|(lost, ..)| *lost);
        let mut all: Vec<u64> = of_rules
            .filter(|(lost, number)| {
                *lost > offset && (losses_before == 0 || *number > losses_before)
            })
            .map(|(lost, _)| lost)
            .chain(of_names)
            .collect();
        all.sort_unstable();
        all.into()
    }
}
