//! The rules of topics: which messages the server keeps of a topic, and for how long. The first rule whose filter matches a topic governs it,
//! else the default rule. A topic's row (its entry in the table of topics) has the number of its rule.
//!
//! The server's own topics, below `$SYS/`, have a built-in rule that keeps the newest message of each topic. Its other fields are copied from the
//! operator's rule for `$SYS/broker`.

use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::access::Right;
use crate::base::settings::{RetentionMode, Rule};
use crate::base::work::{FILTERS_PER_STEP, Steps};

/// The maximum number of rules of the operator. A topic's row has one byte for the number of a rule.
pub const RULES_MAX: usize = 256 - BUILT_IN;
/// The number of built-in rules: the default rule, the rule of `$SYS/`, and the rule of retained messages.
const BUILT_IN: usize = 3;
/// Prefix of the server's own topics.
const SYS: &[u8] = b"$SYS/";

/// All rules: the operator's rules, the default rule, the rule of `$SYS/`, and the rule of retained messages, in this order.
#[derive(Clone, Debug)]
pub struct Rules {
    all: Vec<Rule>,
    any_bounds_outboxes: bool,
    any_counts_outbox_messages: bool,
    any_names_publisher: bool,
    has_presence: bool,
}

impl Rules {
    /// Adds the built-in rules to the operator's: at most [`RULES_MAX`].
    pub fn new(rules: &[Rule]) -> Self {
        assert!(rules.len() <= RULES_MAX, "the configuration refuses more");
        let mut all: Vec<_> = rules.iter().map(without_history).collect();
        all.push(Rule::default());
        let keep_newest = |rule: &Rule| {
            without_history(&Rule {
                keep: RetentionMode::Latest,
                keys_max: 1,
                ttl_s: 0,
                ..rule.clone()
            })
        };
        let sys = keep_newest(&all[first_matching(rules, b"$SYS/broker")]);
        // The server publishes these topics again after each start, so they need no log.
        all.push(Rule {
            durable: false,
            ..sys
        });
        all.push(keep_newest(&Rule::default()));
        Rules {
            any_bounds_outboxes: all.iter().any(|rule| rule.bounds_outboxes()),
            any_counts_outbox_messages: all.iter().any(|rule| rule.outbox_messages > 0),
            any_names_publisher: all.iter().any(|rule| rule.publisher),
            has_presence: all.iter().any(|rule| rule.presence),
            all,
        }
    }

    /// Whether any rule limits the bytes or messages in an outbox.
    pub fn any_bounds_outboxes(&self) -> bool {
        self.any_bounds_outboxes
    }

    /// Whether any rule limits the number of messages in an outbox.
    pub fn any_counts_outbox_messages(&self) -> bool {
        self.any_counts_outbox_messages
    }

    /// Whether any rule adds the publisher's user to messages.
    pub fn any_names_publisher(&self) -> bool {
        self.any_names_publisher
    }

    /// Whether subscribers of some topics are present.
    #[inline]
    pub fn has_presence(&self) -> bool {
        self.has_presence
    }

    /// Whether messages of this topic name the publisher's user. Adds the compared rules to `steps`.
    pub fn names_publisher(&self, name: &[u8], steps: &Steps) -> bool {
        let number = self.number_for(name);
        steps.add(usize::from(number) / FILTERS_PER_STEP);
        self.get(number).publisher
    }

    /// The number of the rule that governs this topic.
    pub fn number_for(&self, name: &[u8]) -> u8 {
        match name.starts_with(SYS) {
            true => self.retained() - 1,
            false => first_matching(self.operator_rules(), name) as u8,
        }
    }

    /// Whether messages of this topic are written to the engine's log.
    pub fn is_durable(&self, name: &[u8]) -> bool {
        self.get(self.number_for(name)).durable
    }

    /// The numbers of the operator's rules whose topics are not in the engine's log.
    pub fn unlogged_numbers(&self) -> impl Iterator<Item = u8> {
        let rules = (0..).zip(self.operator_rules());
        rules
            .filter(|(_, rule)| !rule.durable)
            .map(|(number, _)| number)
    }

    /// The numbers of the rules (the operator's and the default one) whose topics are written to the engine's log.
    pub fn logged_numbers(&self) -> impl Iterator<Item = u8> {
        let rules = (0..).zip(&self.all[..=self.operator_rules().len()]);
        rules
            .filter(|(_, rule)| rule.durable)
            .map(|(number, _)| number)
    }

    /// A text that says which topics are written to the engine's log; empty if all are. Two sets of rules with the same text agree about every topic.
    pub fn durability(&self) -> String {
        if self.unlogged_numbers().next().is_none() {
            return String::new();
        }
        let rules = self.operator_rules().iter();
        rules
            .map(|rule| alloc::format!("{} {}\n", rule.durable, rule.filter))
            .collect()
    }

    fn operator_rules(&self) -> &[Rule] {
        &self.all[..self.all.len() - BUILT_IN]
    }

    /// Whether both sets of rules assign the same rule number to every topic, and the same kind of log to every number.
    pub fn assigns_same_numbers(&self, others: &Rules) -> bool {
        let filter_and_log = |rule: &Rule| (rule.filter.clone(), rule.keep);
        self.all
            .iter()
            .map(filter_and_log)
            .eq(others.all.iter().map(filter_and_log))
    }

    /// Whether every topic lists the same members with these rules as with `others`.
    pub fn lists_same_members(&self, others: &Rules) -> bool {
        let members = |rule: &Rule| (rule.filter.clone(), rule.presence, rule.presence_max);
        (self.all.iter().map(members)).eq(others.all.iter().map(members))
    }

    /// The number of the first rule with this filter: an operator's or the default one.
    pub fn number_with_filter(&self, filter: &[u8]) -> Option<u8> {
        let all = &self.all[..=self.operator_rules().len()];
        let number = all
            .iter()
            .position(|rule| rule.filter.as_bytes() == filter)?;
        Some(number as u8)
    }

    /// The number of the rule of retained messages. This rule keeps the newest message of a topic, without a limit of age.
    pub fn retained(&self) -> u8 {
        (self.all.len() - 1) as u8
    }

    /// Whether everybody has this right on all topics that `filter` matches. `filter` may be a topic. The first rule that governs any of these topics must
    /// govern all of them and have the right in its `open`. Adds the compared rules to `steps`.
    pub fn grants_everybody(&self, right: Right, filter: &[u8], steps: &Steps) -> bool {
        let overlaps =
            |rule: &Rule| rule.filter == "#" || topic::overlaps(rule.filter.as_bytes(), filter);
        let rules = self.operator_rules();
        let first = rules.iter().position(overlaps);
        steps.add(first.unwrap_or(rules.len()) / FILTERS_PER_STEP);
        first.is_some_and(|number| {
            let rule = &rules[number];
            let governs_all = rule.filter == "#" || topic::covers(rule.filter.as_bytes(), filter);
            governs_all && rule.open.has(right)
        })
    }

    /// Whether any rule grants everybody this right.
    pub fn any_grants_everybody(&self, right: Right) -> bool {
        self.all.iter().any(|rule| rule.open.has(right))
    }

    /// The rule of this number.
    #[inline]
    pub fn get(&self, number: u8) -> &Rule {
        &self.all[number as usize]
    }

    /// The number of rules, including the built-in ones.
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

/// A copy of the rule as it is applied. If the rule keeps only the latest values, the copy has no limits of the log's bytes and
/// age. Latest values are state, which stays until it is replaced, is removed or expires.
fn without_history(rule: &Rule) -> Rule {
    match rule.keep {
        RetentionMode::Log => rule.clone(),
        RetentionMode::Latest => Rule {
            log_bytes: usize::MAX,
            log_age_s: u32::MAX,
            ..rule.clone()
        },
    }
}

/// The number of the first of these rules that governs a topic. If none does: the number after the last one, which is the default rule's.
fn first_matching(rules: &[Rule], name: &[u8]) -> usize {
    // A rule `#` means all topics, including those that begin with `$`.
    let governs = |rule: &Rule| rule.filter == "#" || topic::matches(rule.filter.as_bytes(), name);
    rules.iter().position(governs).unwrap_or(rules.len())
}
