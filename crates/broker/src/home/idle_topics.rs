//! The idle topics of a home (the part of a shard that keeps topics), in the order in which they may be forgotten.
//!
//! Not here: when a topic becomes idle, and when it is forgotten (`expiry.rs`).

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::budget::admission::Client;

/// The key of a queue: the queue has the idle topics that this client has created and that this rule governs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueueKey {
    client: u32,
    rule: u8,
}

struct IdleTopic {
    topic: u32,
    /// The second in which the idle time began.
    since_s: u32,
}

/// The first topic of a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueueHead {
    rule: u8,
    since_s: u32,
    client: u32,
}

/// A home's idle topics: a queue for each rule and each client.
pub(super) struct IdleTopics {
    /// No queue is empty.
    queues: BTreeMap<QueueKey, VecDeque<IdleTopic>>,
    queue_heads: BTreeSet<QueueHead>,
    rule_count: usize,
    /// Whether the home may have something that has expired. Set once a second.
    pub may_have_expired: bool,
    /// The rule whose expired state the home removes next.
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

    /// Adds a topic that is idle since `since_s`. `client` has created it, and `rule` governs it.
    pub fn push(&mut self, rule: u8, client: Client, topic: u32, since_s: u32) {
        let client = client.number();
        let queue = self.queues.entry(QueueKey { client, rule }).or_default();
        if queue.is_empty() {
            self.queue_heads.insert(QueueHead {
                rule,
                since_s,
                client,
            });
        }
        queue.push_back(IdleTopic { topic, since_s });
    }

    /// Removes and returns a topic of this client: of the first rule with such topics, the one that has been idle for the longest time.
    pub fn pop_of_client(&mut self, client: Client) -> Option<u32> {
        let client = client.number();
        let key = |rule| QueueKey { client, rule };
        let mut queues = self.queues.range(key(0)..=key(u8::MAX));
        let first = *queues.next()?.0;
        self.pop_first(first)
    }

    /// Removes and returns the topic of this rule that has been idle for the longest time, if it is idle since `idle_since_s` or earlier.
    pub fn pop_of_rule(&mut self, rule: u8, idle_since_s: u32) -> Option<u32> {
        let head = |since_s, client| QueueHead {
            rule,
            since_s,
            client,
        };
        let mut heads = self
            .queue_heads
            .range(head(0, 0)..=head(idle_since_s, u32::MAX));
        let client = heads.next()?.client;
        self.pop_first(QueueKey { client, rule })
    }

    /// Removes and returns a topic that is idle since `idle_since_s` or earlier: of the first rule with such topics, the one that has been idle for the
    /// longest time.
    pub fn pop_any(&mut self, idle_since_s: u32) -> Option<u32> {
        (0..self.rule_count as u8).find_map(|rule| self.pop_of_rule(rule, idle_since_s))
    }

    fn pop_first(&mut self, key: QueueKey) -> Option<u32> {
        let queue = self.queues.get_mut(&key)?;
        let first = queue.pop_front()?;
        let QueueKey { client, rule } = key;
        let head = |topic: &IdleTopic| QueueHead {
            rule,
            since_s: topic.since_s,
            client,
        };
        self.queue_heads.remove(&head(&first));
        match queue.front() {
            Some(next) => drop(self.queue_heads.insert(head(next))),
            None => drop(self.queues.remove(&key)),
        }
        Some(first.topic)
    }

    pub fn next_rule(&self) -> u8 {
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
        .flat_map(|(key, queue)| queue.into_iter().map(move |idle| (key.client, idle)))
        .collect();
        idle.sort_by_key(|(_, idle)| idle.since_s);
        for (client, IdleTopic { topic, since_s }) in idle {
            self.push(rule_of(topic), Client::from_number(client), topic, since_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Client = Client::NOBODY;

    #[test]
    fn topic_that_is_idle_longest_is_forgotten_first_also_after_a_change_of_rules() {
        let mut idle_topics = IdleTopics::new(3);
        for (rule, topic, since_s) in [(0, 1, 10), (1, 2, 20), (2, 3, 15), (0, 4, 30)] {
            idle_topics.push(rule, NOBODY, topic, since_s);
        }
        idle_topics.go_to_next_rule();
        idle_topics.change_rules(2, |topic| u8::from(topic == 4));
        assert_eq!(idle_topics.next_rule(), 0);
        assert_eq!(idle_topics.pop_of_rule(0, 15), Some(1));
        assert_eq!(idle_topics.pop_of_rule(0, 15), Some(3));
        assert_eq!(idle_topics.pop_of_rule(0, 15), None);
        assert_eq!(idle_topics.pop_any(29), Some(2));
        assert_eq!(idle_topics.pop_any(29), None);
        assert_eq!(idle_topics.pop_any(30), Some(4));
    }

    #[test]
    fn topics_are_taken_of_one_client_or_of_all_clients_in_the_order_of_rules() {
        let [one, other] = [6, 8].map(Client::from_number);
        let mut idle_topics = IdleTopics::new(2);
        for (rule, client, topic, since_s) in [
            (1, one, 1, 10),
            (0, other, 2, 20),
            (0, one, 3, 30),
            (0, NOBODY, 4, 40),
            (0, one, 5, 50),
        ] {
            idle_topics.push(rule, client, topic, since_s);
        }
        idle_topics.change_rules(2, |topic| u8::from(topic == 1));
        assert_eq!(idle_topics.pop_of_client(one), Some(3));
        assert_eq!(idle_topics.pop_any(45), Some(2));
        assert_eq!(idle_topics.pop_of_client(other), None);
        assert_eq!(idle_topics.pop_any(45), Some(4));
        assert_eq!(idle_topics.pop_any(45), Some(1));
        assert_eq!(idle_topics.pop_of_client(one), Some(5));
        assert_eq!(
            (
                idle_topics.pop_of_client(one),
                idle_topics.pop_any(u32::MAX)
            ),
            (None, None)
        );
        assert!(idle_topics.queues.is_empty() && idle_topics.queue_heads.is_empty());
    }
}
