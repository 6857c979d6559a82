//! The idle topics of a home (the part of a shard that keeps topics), in the order in which they may be forgotten, and the progress of
//! forgetting.
//!
//! Not here: when a topic becomes idle, and when it is forgotten (`expiry.rs`).

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::budget::admission::Client;

/// A home's idle topics: a queue for each rule and each client.
pub(super) struct IdleTopics {
    /// By client and rule: a queue of topics, each with the second in which its idle time began. No queue is empty.
    queues: BTreeMap<(u32, u8), VecDeque<(u32, u32)>>,
    /// For each queue: its rule, the second in which the idle time of its first topic began, and its client.
    queue_heads: BTreeSet<(u8, u32, u32)>,
    rule_count: usize,
    /// Whether there may be expired state to drop. Each tick of the clock sets it.
    pub may_have_expired: bool,
    /// The rule at which the next turn continues.
    next_rule: u8,
    /// Messages published in this turn.
    pub published_in_turn: usize,
}

impl IdleTopics {
    /// No idle topics, under this number of rules.
    pub fn new(rules: usize) -> IdleTopics {
        IdleTopics {
            queues: BTreeMap::new(),
            queue_heads: BTreeSet::new(),
            rule_count: rules,
            may_have_expired: false,
            next_rule: 0,
            published_in_turn: 0,
        }
    }

    /// Queues a topic of this client that is idle since `since_s`.
    pub fn queue(&mut self, rule: u8, client: Client, topic: u32, since_s: u32) {
        let client = client.number();
        let queue = self.queues.entry((client, rule)).or_default();
        if queue.is_empty() {
            self.queue_heads.insert((rule, since_s, client));
        }
        queue.push_back((topic, since_s));
    }

    /// Takes the longest idle topic of this client, of the first rule that has one.
    pub fn take_of_client(&mut self, client: Client) -> Option<u32> {
        let client = client.number();
        let mut queues = self.queues.range((client, 0)..=(client, u8::MAX));
        let (_, rule) = *queues.next()?.0;
        self.take_first(client, rule)
    }

    /// Takes the topic of this rule that has been idle for the longest time, if it is idle since `idle_since_s` or earlier.
    pub fn take_of_rule(&mut self, rule: u8, idle_since_s: u32) -> Option<u32> {
        let mut firsts = self
            .queue_heads
            .range((rule, 0, 0)..=(rule, idle_since_s, u32::MAX));
        let (_, _, client) = *firsts.next()?;
        self.take_first(client, rule)
    }

    /// Takes the longest idle topic that is idle since `idle_since_s` or earlier, of the first rule that has one.
    pub fn take_any(&mut self, idle_since_s: u32) -> Option<u32> {
        (0..self.rule_count as u8).find_map(|rule| self.take_of_rule(rule, idle_since_s))
    }

    fn take_first(&mut self, client: u32, rule: u8) -> Option<u32> {
        let queue = self.queues.get_mut(&(client, rule))?;
        let (topic, since_s) = queue.pop_front()?;
        self.queue_heads.remove(&(rule, since_s, client));
        match queue.front() {
            Some((_, next_s)) => drop(self.queue_heads.insert((rule, *next_s, client))),
            None => drop(self.queues.remove(&(client, rule))),
        }
        Some(topic)
    }

    /// The rule to continue with.
    pub fn rule(&self) -> u8 {
        self.next_rule
    }

    pub fn go_to_next_rule(&mut self) {
        let next = usize::from(self.next_rule) + 1;
        self.next_rule = (next % self.rule_count) as u8;
    }

    /// Changes the number of rules; `rule_of` gives each topic's new rule.
    pub fn change_rules(&mut self, rules: usize, rule_of: impl Fn(u32) -> u8) {
        let mut idle: Vec<_> = core::mem::replace(
            self,
            IdleTopics {
                published_in_turn: self.published_in_turn,
                may_have_expired: self.may_have_expired,
                ..IdleTopics::new(rules)
            },
        )
        .queues
        .into_iter()
        .flat_map(|((client, _), queue)| queue.into_iter().map(move |idle| (client, idle)))
        .collect();
        idle.sort_by_key(|(_, (_, since_s))| *since_s);
        for (client, (topic, since_s)) in idle {
            self.queue(rule_of(topic), Client::from_number(client), topic, since_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Client = Client::NOBODY;

    #[test]
    fn topics_go_in_the_order_of_their_idleness_whatever_their_rules_were() {
        let mut idle_topics = IdleTopics::new(3);
        for (rule, topic, since_s) in [(0, 1, 10), (1, 2, 20), (2, 3, 15), (0, 4, 30)] {
            idle_topics.queue(rule, NOBODY, topic, since_s);
        }
        idle_topics.go_to_next_rule();
        idle_topics.change_rules(2, |topic| u8::from(topic == 4));
        assert_eq!(idle_topics.rule(), 0);
        assert_eq!(idle_topics.take_of_rule(0, 15), Some(1));
        assert_eq!(idle_topics.take_of_rule(0, 15), Some(3));
        assert_eq!(idle_topics.take_of_rule(0, 15), None);
        assert_eq!(idle_topics.take_any(29), Some(2));
        assert_eq!(idle_topics.take_any(29), None);
        assert_eq!(idle_topics.take_any(30), Some(4));
    }

    #[test]
    fn the_topics_of_one_client_go_alone_and_those_of_all_in_order() {
        let [one, other] = [6, 8].map(Client::from_number);
        let mut idle_topics = IdleTopics::new(2);
        for (rule, client, topic, since_s) in [
            (1, one, 1, 10),
            (0, other, 2, 20),
            (0, one, 3, 30),
            (0, NOBODY, 4, 40),
            (0, one, 5, 50),
        ] {
            idle_topics.queue(rule, client, topic, since_s);
        }
        idle_topics.change_rules(2, |topic| u8::from(topic == 1));
        assert_eq!(idle_topics.take_of_client(one), Some(3));
        assert_eq!(idle_topics.take_any(45), Some(2));
        assert_eq!(idle_topics.take_of_client(other), None);
        assert_eq!(idle_topics.take_any(45), Some(4));
        assert_eq!(idle_topics.take_any(45), Some(1));
        assert_eq!(idle_topics.take_of_client(one), Some(5));
        assert_eq!(
            (
                idle_topics.take_of_client(one),
                idle_topics.take_any(u32::MAX)
            ),
            (None, None)
        );
        assert!(idle_topics.queues.is_empty() && idle_topics.queue_heads.is_empty());
    }
}
