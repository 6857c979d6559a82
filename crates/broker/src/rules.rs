//! Which rule governs a topic: the first whose filter matches, else the default rule. Topics keep
//! the rule's number in their row.

use alloc::vec::Vec;

use crore_wire::topic;

use crate::settings::Rule;

/// Rules are numbered in a byte of the topic's row.
pub const RULES_MAX: usize = 255;

/// The rules of a server, with the default rule at the end.
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Takes at most [`RULES_MAX`] rules.
    pub fn new(rules: &[Rule]) -> Self {
        assert!(rules.len() <= RULES_MAX, "the configuration refuses more");
        let mut all = rules.to_vec();
        all.push(Rule::default());
        Rules(all)
    }

    /// The number of the rule that governs this topic.
    pub fn number_for(&self, name: &[u8]) -> u8 {
        let last = self.0.len() - 1;
        // A lone `#` is how a configuration says "all", `$` topics among them.
        let governs =
            |rule: &Rule| rule.filter == "#" || topic::matches(rule.filter.as_bytes(), name);
        self.0[..last].iter().position(governs).unwrap_or(last) as u8
    }

    /// The rule of this number.
    #[inline]
    pub fn get(&self, number: u8) -> &Rule {
        &self.0[number as usize]
    }

    /// How many there are, the default rule included.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
