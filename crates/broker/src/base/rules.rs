//! Which rule governs a topic: the first whose filter matches, else the default rule. Topics keep
//! the rule's number in their row.
//!
//! The server's own topics, below `$SYS/`, are kept by a rule of their own, whatever the operator's say: the newest
//! message of each. The rest of that rule is taken from the rule that governs `$SYS/broker`.

use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::access::Right;
use crate::base::settings::{Keep, Rule};
use crate::base::work::{FILTERS_PER_STEP, Steps};

/// Rules are numbered in a byte of the topic's row; `BUILT_IN` of them are not the operator's.
pub const RULES_MAX: usize = 256 - BUILT_IN;
/// The default rule, that of the server's own topics, and that of retained messages.
const BUILT_IN: usize = 3;
/// Where the server's own topics are.
const SYS: &[u8] = b"$SYS/";

/// The rules of a server, then the default rule, the one of the server's own topics, and the one that retained messages
/// are kept by.
#[derive(Clone, Debug)]
pub struct Rules {
    all: Vec<Rule>,
    bound_outboxes: bool,
    count_waiting: bool,
    name_publishers: bool,
}

impl Rules {
    /// Takes at most [`RULES_MAX`] rules.
    pub fn new(rules: &[Rule]) -> Self {
        assert!(rules.len() <= RULES_MAX, "the configuration refuses more");
        let mut all: Vec<_> = rules.iter().map(without_history).collect();
        all.push(Rule::default());
        let newest = |of: &Rule| {
            without_history(&Rule {
                keep: Keep::Latest,
                keys_max: 1,
                ttl_s: 0,
                ..of.clone()
            })
        };
        let sys = newest(&all[governing(rules, b"$SYS/broker")]);
        // They are said again whenever somebody asks for them.
        all.push(Rule {
            durable: false,
            ..sys
        });
        all.push(newest(&Rule::default()));
        Rules {
            bound_outboxes: all.iter().any(|rule| rule.bounds_outboxes()),
            count_waiting: all.iter().any(|rule| rule.outbox_messages > 0),
            name_publishers: all.iter().any(|rule| rule.publisher),
            all,
        }
    }

    /// Whether any rule bounds the bytes or messages that wait for a connection.
    pub fn bound_outboxes(&self) -> bool {
        self.bound_outboxes
    }

    /// Whether any rule bounds how many messages wait for a connection.
    pub fn count_waiting(&self) -> bool {
        self.count_waiting
    }

    /// Whether any rule has messages name the user who published them.
    pub fn name_publishers(&self) -> bool {
        self.name_publishers
    }

    /// Whether messages of this topic name the user who published them. Each rule that is compared is work, which `steps` count.
    pub fn names_publisher(&self, name: &[u8], steps: &Steps) -> bool {
        let number = self.number_for(name);
        steps.add(usize::from(number) / FILTERS_PER_STEP);
        self.get(number).publisher
    }

    /// The number of the rule that governs this topic.
    pub fn number_for(&self, name: &[u8]) -> u8 {
        match name.starts_with(SYS) {
            true => self.retained() - 1,
            false => governing(self.of_operator(), name) as u8,
        }
    }

    /// Whether messages of this topic stand in the log of the engine.
    pub fn is_durable(&self, name: &[u8]) -> bool {
        self.get(self.number_for(name)).durable
    }

    /// The operator's rules whose topics stand in no log.
    pub fn unlogged(&self) -> impl Iterator<Item = u8> {
        let rules = (0..).zip(self.of_operator());
        rules
            .filter(|(_, rule)| !rule.durable)
            .map(|(number, _)| number)
    }

    /// The operator's rules, and the default one, whose topics stand in the log.
    pub fn logged(&self) -> impl Iterator<Item = u8> {
        let rules = (0..).zip(&self.all[..=self.of_operator().len()]);
        rules
            .filter(|(_, rule)| rule.durable)
            .map(|(number, _)| number)
    }

    /// Which topics stand in the log of the engine, as a text; empty where all do. Rules with the same text agree about every topic.
    pub fn durability(&self) -> String {
        if self.unlogged().next().is_none() {
            return String::new();
        }
        let rules = self.of_operator().iter();
        rules
            .map(|rule| alloc::format!("{} {}\n", rule.durable, rule.filter))
            .collect()
    }

    /// Those that the operator wrote.
    fn of_operator(&self) -> &[Rule] {
        &self.all[..self.all.len() - BUILT_IN]
    }

    /// Whether every topic is governed by the same rule in both and kept in the same form.
    pub fn govern_alike(&self, others: &Rules) -> bool {
        let forms = |rule: &Rule| (rule.filter.clone(), rule.keep);
        self.all.iter().map(forms).eq(others.all.iter().map(forms))
    }

    /// The number of the rule that has this filter, among the operator's and the default.
    pub fn with_filter(&self, filter: &[u8]) -> Option<u8> {
        let all = &self.all[..=self.of_operator().len()];
        let is = |rule: &Rule| rule.filter.as_bytes() == filter;
        Some(all.iter().position(is)? as u8)
    }

    /// The number of the rule of retained messages: the newest of a topic, however old.
    pub fn retained(&self) -> u8 {
        (self.all.len() - 1) as u8
    }

    /// Whether everybody has this right on all that `filter` matches (a topic, too): the first rule that governs any of
    /// it must govern all of it and grant the right. Each rule that is compared is work, which `steps` count.
    pub fn opens(&self, right: Right, filter: &[u8], steps: &Steps) -> bool {
        let governs =
            |rule: &Rule| rule.filter == "#" || topic::overlaps(rule.filter.as_bytes(), filter);
        let rules = self.of_operator();
        let found = rules.iter().position(governs);
        steps.add(found.unwrap_or(rules.len()) / FILTERS_PER_STEP);
        found.is_some_and(|at| {
            let rule = &rules[at];
            let all = rule.filter == "#" || topic::covers(rule.filter.as_bytes(), filter);
            all && rule.open.has(right)
        })
    }

    /// Whether everybody has this right on some topics.
    pub fn open(&self, right: Right) -> bool {
        self.all.iter().any(|rule| rule.open.has(right))
    }

    /// The rule of this number.
    #[inline]
    pub fn get(&self, number: u8) -> &Rule {
        &self.all[number as usize]
    }

    /// How many there are, with those that are not the operator's.
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

/// The rule, without the bounds of a history where it keeps none: the latest value of a key is state, which stays until it is replaced or
/// removed, or its time to live ends.
fn without_history(rule: &Rule) -> Rule {
    match rule.keep {
        Keep::Log => rule.clone(),
        Keep::Latest => Rule {
            log_bytes: usize::MAX,
            log_age_s: u32::MAX,
            ..rule.clone()
        },
    }
}

/// The first of these rules that governs a topic, or the number behind the last one: the default rule.
fn governing(rules: &[Rule], name: &[u8]) -> usize {
    // A lone `#` is how a configuration says "all", `$` topics among them.
    let governs = |rule: &Rule| rule.filter == "#" || topic::matches(rule.filter.as_bytes(), name);
    rules.iter().position(governs).unwrap_or(rules.len())
}
