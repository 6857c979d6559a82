//! Idle topics in the order in which they may be forgotten, and how far forgetting has come.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The queues of a home's idle topics.
pub(super) struct Forgetting {
    /// By rule: topics, and since when they are idle.
    idle: Vec<VecDeque<(u32, u32)>>,
    /// The clock has ticked, and not all that has expired since is dropped yet.
    pub due: bool,
    /// The rule with which it goes on.
    rule: u8,
    /// The sequence number at the end of the last turn.
    came: u64,
}

impl Forgetting {
    /// Empty queues of so many rules.
    pub fn new(rules: usize) -> Forgetting {
        Forgetting {
            idle: (0..rules).map(|_| VecDeque::new()).collect(),
            due: false,
            rule: 0,
            came: 0,
        }
    }

    /// A topic is idle since this second.
    pub fn queue(&mut self, rule: u8, topic: u32, since_s: u32) {
        self.idle[rule as usize].push_back((topic, since_s));
    }

    /// A topic that was taken may go next after all.
    pub fn put_back(&mut self, rule: u8, topic: u32) {
        self.idle[rule as usize].push_front((topic, 0));
    }

    /// Takes the topic that may be forgotten first, if `may_go` says so of the second since which it is idle.
    pub fn take_until(&mut self, rule: u8, may_go: impl Fn(u32) -> bool) -> Option<u32> {
        let queue = &mut self.idle[rule as usize];
        let (topic, _) = queue.front().filter(|(_, since_s)| may_go(*since_s))?;
        let topic = *topic;
        queue.pop_front();
        Some(topic)
    }

    /// The rule with which it goes on.
    pub fn rule(&self) -> u8 {
        self.rule
    }

    /// Goes on with the next rule.
    pub fn next_rule(&mut self) {
        let next = usize::from(self.rule) + 1;
        self.rule = (next % self.idle.len()) as u8;
    }

    /// The turn ends at this sequence number; returns how many messages came in it.
    pub fn end_turn(&mut self, sequence: u64) -> u64 {
        sequence - core::mem::replace(&mut self.came, sequence)
    }

    /// The rules change: there are so many from now on, and topics have the number that `rule_of` gives.
    pub fn change_rules(&mut self, rules: usize, rule_of: impl Fn(u32) -> u8) {
        self.rule = 0;
        let mut idle: Vec<_> = self.idle.drain(..).flatten().collect();
        idle.sort_by_key(|(_, since_s)| *since_s);
        self.idle.resize_with(rules, Default::default);
        for (topic, since_s) in idle {
            self.queue(rule_of(topic), topic, since_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_go_in_the_order_of_their_idleness_whatever_their_rules_were() {
        let mut forgetting = Forgetting::new(3);
        for (rule, topic, since_s) in [(0, 1, 10), (1, 2, 20), (2, 3, 15), (0, 4, 30)] {
            forgetting.queue(rule, topic, since_s);
        }
        forgetting.next_rule();
        forgetting.change_rules(2, |topic| u8::from(topic == 4));
        assert_eq!(forgetting.rule(), 0);
        let old = |since_s| since_s <= 15;
        assert_eq!(forgetting.take_until(0, old), Some(1));
        assert_eq!(forgetting.take_until(0, old), Some(3));
        assert_eq!(forgetting.take_until(0, old), None);
        assert_eq!(forgetting.take_until(0, |_| true), Some(2));
        forgetting.put_back(0, 2);
        assert_eq!(forgetting.take_until(0, old), Some(2));
        assert_eq!(
            (
                forgetting.take_until(0, |_| true),
                forgetting.take_until(1, |_| true)
            ),
            (None, Some(4))
        );
    }
}
