//! ForgottenTopics topics of a partition that had lost messages, so that subscribers by filter are still told of these losses.
//!
//! The most recent ones are remembered by name, and only filters that match the name are told. Of earlier ones the rule is remembered:
//! every filter that may have topics of that rule is told a gap, if its position is older than the loss.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::rules::Rules;

/// The forgotten topics of a partition that had lost messages.
pub(super) struct ForgottenTopics {
    /// The last message that each had lost, the number of that loss, the rule and the name; in no order.
    named: VecDeque<(u64, u64, u8, Box<[u8]>)>,
    /// The last loss of those that are remembered by rule, and the highest number of one.
    by_rule: Vec<(u64, u64)>,
    named_max: usize,
}

impl ForgottenTopics {
    /// Nothing is forgotten yet. There are so many rules, and room for `named_max` names.
    pub fn new(rules: usize, named_max: usize) -> Self {
        ForgottenTopics {
            named: VecDeque::new(),
            by_rule: alloc::vec![(0, 0); rules],
            named_max,
        }
    }

    /// A topic that lost messages is forgotten.
    pub fn add(&mut self, rule: u8, lost: u64, number: u64, name: &[u8]) {
        if self.named.len() >= self.named_max
            && let Some((lost, number, rule, _)) = self.named.pop_front()
        {
            self.note(rule, lost, number);
        }
        self.named.push_back((lost, number, rule, name.into()));
    }

    /// Notes for a rule that some topic lost a message at `lost`, the loss with this number.
    pub fn note(&mut self, rule: u8, lost: u64, number: u64) {
        let of = &mut self.by_rule[rule as usize];
        *of = (lost.max(of.0), number.max(of.1));
    }

    /// The last loss that is noted for a rule.
    pub fn lost_by(&self, rule: u8) -> u64 {
        self.by_rule[usize::from(rule)].0
    }

    /// ForgottenTopics topics that had lost messages: the last one, the number of that loss, the name.
    pub fn topics(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let named = self.named.iter();
        named.map(|(lost, number, _, name)| (*lost, *number, &name[..]))
    }

    /// The last losses of those that are remembered by rule.
    pub fn blamed_rules(&self) -> impl Iterator<Item = (u8, u64)> {
        let all = (0..).zip(self.by_rule.iter().map(|of| of.0));
        all.filter(|(_, lost)| *lost > 0)
    }

    /// Notes for the rule with this filter that its forgotten topics lost a message at `lost`; if there is no such
    /// rule, for all rules.
    pub fn blame(&mut self, filter: &[u8], lost: u64, rules: &Rules) {
        self.blame_with(filter, (lost, 0), rules);
    }

    fn blame_with(&mut self, filter: &[u8], (lost, number): (u64, u64), rules: &Rules) {
        let one = rules.with_filter(filter);
        for rule in 0..self.by_rule.len() as u8 {
            if one.is_none_or(|one| one == rule) {
                self.note(rule, lost, number);
            }
        }
    }

    /// The rules get other numbers. Losses that were noted for a rule that is gone are noted for all rules.
    pub fn change_rules(&mut self, former: &Rules, rules: &Rules) {
        let ForgottenTopics { named, by_rule, .. } = self;
        for (_, _, rule, name) in named {
            *rule = rules.number_for(name);
        }
        let blamed = core::mem::replace(by_rule, alloc::vec![(0, 0); rules.count()]);
        for (number, of) in (0..).zip(blamed).filter(|(_, of)| of.0 > 0) {
            self.blame_with(former.get(number).filter.as_bytes(), of, rules);
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
        let of_rules = rules.iter().map(|n| self.by_rule[*n as usize]);
        let matches = |name: &[u8]| filters.iter().any(|filter| topic::matches(filter, name));
        let named = self.named.iter();
        let of_names = named
            .filter(|(lost, number, _, name)| *lost > offset && *number > base && matches(name))
            .map(|(lost, ..)| *lost);
        let mut all: Vec<u64> = of_rules
            .filter(|(lost, number)| *lost > offset && (base == 0 || *number > base))
            .map(|(lost, _)| lost)
            .chain(of_names)
            .collect();
        all.sort_unstable();
        all.into()
    }
}
