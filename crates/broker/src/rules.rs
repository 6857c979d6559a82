//! Which rule governs a topic: the first whose filter matches, else the default rule. Topics keep
//! the rule's number in their row.

use alloc::vec::Vec;

use crore_wire::topic;

use crate::access::Right;
use crate::settings::{Keep, Rule};

/// Rules are numbered in a byte of the topic's row, and two are not the operator's.
pub const RULES_MAX: usize = 254;

/// The rules of a server, then the default rule, then the one that retained messages are kept by.
#[derive(Clone, Debug)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Takes at most [`RULES_MAX`] rules.
    pub fn new(rules: &[Rule]) -> Self {
        assert!(rules.len() <= RULES_MAX, "the configuration refuses more");
        let mut all = rules.to_vec();
        all.push(Rule::default());
        all.push(Rule {
            keep: Keep::Latest,
            keys_max: 1,
            log_bytes: usize::MAX,
            log_age_s: u32::MAX,
            ..Rule::default()
        });
        Rules(all)
    }

    /// The number of the rule that governs this topic.
    pub fn number_for(&self, name: &[u8]) -> u8 {
        let last = self.0.len() - 2;
        // A lone `#` is how a configuration says "all", `$` topics among them.
        let governs =
            |rule: &Rule| rule.filter == "#" || topic::matches(rule.filter.as_bytes(), name);
        self.0[..last].iter().position(governs).unwrap_or(last) as u8
    }

    /// Whether the same rule of both governs each topic, and keeps it in the same form.
    pub fn govern_alike(&self, others: &Rules) -> bool {
        let forms = |rule: &Rule| (rule.filter.clone(), rule.keep);
        self.0.iter().map(forms).eq(others.0.iter().map(forms))
    }

    /// The number of the rule that has this filter, among the operator's and the default.
    pub fn with_filter(&self, filter: &[u8]) -> Option<u8> {
        let all = &self.0[..self.0.len() - 1];
        let is = |rule: &Rule| rule.filter.as_bytes() == filter;
        Some(all.iter().position(is)? as u8)
    }

    /// The number of the rule of retained messages: the newest of a topic, however old.
    pub fn retained(&self) -> u8 {
        (self.0.len() - 1) as u8
    }

    /// Whether everybody has this right on all that `filter` matches, a topic too: the first rule that governs any of it
    /// opens it, and governs all of it.
    pub fn opens(&self, right: Right, filter: &[u8]) -> bool {
        let governs =
            |rule: &&Rule| rule.filter == "#" || topic::overlaps(rule.filter.as_bytes(), filter);
        let last = self.0.len() - 2;
        self.0[..last].iter().find(governs).is_some_and(|rule| {
            let all = rule.filter == "#" || topic::covers(rule.filter.as_bytes(), filter);
            all && rule.open.has(right)
        })
    }

    /// Whether everybody has this right on some topics.
    pub fn open(&self, right: Right) -> bool {
        self.0.iter().any(|rule| rule.open.has(right))
    }

    /// The rule of this number.
    #[inline]
    pub fn get(&self, number: u8) -> &Rule {
        &self.0[number as usize]
    }

    /// How many there are, with the two that are not the operator's.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
