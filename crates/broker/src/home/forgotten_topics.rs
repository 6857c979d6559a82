//! Remembers the losses of a partition's forgotten topics (topics whose rows were freed), so that subscribers by filter still get a gap,
//! the notice that messages are lost.
//!
//! The newest losses are remembered with the topic's name, so that only subscribers whose filter matches the name get a gap. Older losses are
//! remembered with the topic's rule only: every subscriber whose position is before the loss, and whose filter may match topics of that rule, gets a gap.
//! Losses are numbered in the order in which they happened.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::rules::Rules;

/// The last loss of a topic, or the highest loss of a rule.
#[derive(Clone, Copy, Default)]
pub(super) struct Loss {
    /// The highest offset that is lost.
    pub offset: u64,
    /// The number of the loss; 0 if it was not numbered.
    pub number: u64,
}

/// A forgotten topic, and its last loss of messages.
pub(super) struct NamedLoss {
    pub loss: Loss,
    rule: u8,
    pub name: Box<[u8]>,
}

/// The losses of a partition's forgotten topics.
pub(super) struct ForgottenTopics {
    /// In the order in which the topics were forgotten.
    named: VecDeque<NamedLoss>,
    /// By rule: the highest offset and number of the losses that are remembered without a name.
    by_rule: Vec<Loss>,
    named_max: usize,
}

impl ForgottenTopics {
    pub fn new(rules: usize, named_max: usize) -> Self {
        ForgottenTopics {
            named: VecDeque::new(),
            by_rule: alloc::vec![Loss::default(); rules],
            named_max,
        }
    }

    /// Adds a forgotten topic whose last loss has this offset and number.
    pub fn add(&mut self, rule: u8, offset: u64, number: u64, name: &[u8]) {
        if self.named.len() >= self.named_max
            && let Some(NamedLoss { loss, rule, .. }) = self.named.pop_front()
        {
            self.add_for_rule(rule, loss.offset, loss.number);
        }
        self.named.push_back(NamedLoss {
            loss: Loss { offset, number },
            rule,
            name: name.into(),
        });
    }

    /// Remembers a loss with a rule only.
    pub fn add_for_rule(&mut self, rule: u8, offset: u64, number: u64) {
        let highest = &mut self.by_rule[rule as usize];
        highest.offset = highest.offset.max(offset);
        highest.number = highest.number.max(number);
    }

    /// The highest offset of the losses that are remembered with this rule only.
    pub fn last_lost_of_rule(&self, rule: u8) -> u64 {
        self.by_rule[usize::from(rule)].offset
    }

    /// The topics whose losses are remembered with the topic's name.
    pub fn named_losses(&self) -> impl Iterator<Item = &NamedLoss> {
        self.named.iter()
    }

    /// The rules with losses, each with the highest offset.
    pub fn losses_by_rule(&self) -> impl Iterator<Item = (u8, u64)> {
        let offsets = (0..).zip(self.by_rule.iter().map(|loss| loss.offset));
        offsets.filter(|(_, offset)| *offset > 0)
    }

    /// Remembers a loss with the rule that has this filter, or with all rules if no rule has that filter.
    pub fn add_for_filter(&mut self, filter: &[u8], offset: u64, rules: &Rules) {
        self.add_loss_for_filter(filter, Loss { offset, number: 0 }, rules);
    }

    fn add_loss_for_filter(&mut self, filter: &[u8], loss: Loss, rules: &Rules) {
        let rule_with_filter = rules.number_with_filter(filter);
        for rule in 0..self.by_rule.len() as u8 {
            if rule_with_filter.is_none_or(|it| it == rule) {
                self.add_for_rule(rule, loss.offset, loss.number);
            }
        }
    }

    /// Changes the rules. A loss of a rule that no longer exists counts for all rules from now on.
    pub fn change_rules(&mut self, old_rules: &Rules, rules: &Rules) {
        for topic in &mut self.named {
            topic.rule = rules.number_for(&topic.name);
        }
        let new_losses = alloc::vec![Loss::default(); rules.count()];
        let old_losses = core::mem::replace(&mut self.by_rule, new_losses);
        for (rule, loss) in (0..).zip(old_losses).filter(|(_, loss)| loss.offset > 0) {
            self.add_loss_for_filter(old_rules.get(rule).filter.as_bytes(), loss, rules);
        }
    }

    /// The offsets of losses that may have hit messages of these filters, in ascending order: losses after `offset` whose number is above `losses_before`.
    /// `rules` are the rules that may govern topics which match the filters.
    pub fn losses_after(
        &self,
        offset: u64,
        losses_before: u64,
        rules: &[u8],
        filters: &[&[u8]],
    ) -> VecDeque<u64> {
        let matches = |name: &[u8]| filters.iter().any(|filter| topic::matches(filter, name));
        let of_rules = rules.iter().map(|rule| self.by_rule[*rule as usize]);
        // A loss without a number counts only for subscribers that gave a position (their `losses_before` is 0).
        let of_rules = of_rules.filter(|loss| losses_before == 0 || loss.number > losses_before);
        let named = self.named.iter();
        let of_names = named.filter(|it| it.loss.number > losses_before && matches(&it.name));
        let mut offsets: Vec<u64> = of_rules
            .chain(of_names.map(|it| it.loss))
            .map(|loss| loss.offset)
            .filter(|lost| *lost > offset)
            .collect();
        offsets.sort_unstable();
        offsets.into()
    }
}
