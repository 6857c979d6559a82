//! Which messages must, may or must not be delivered: an expired or superseded message need not come, and must not come once it is
//! certain that it has expired or was superseded.
//!
//! Invariant: if something is uncertain (an unknown offset, an unanswered publish), nothing is required and nothing is forbidden.

use crate::truth::{Message, Truth, Violation};

impl Truth {
    /// Whether a message may have expired at this second. Its time to live starts when the client sent it, or later.
    pub fn may_have_expired(&self, number: u32, at_s: u32) -> bool {
        let message = &self.messages[number as usize];
        message
            .ttl_s
            .is_some_and(|ttl_s| message.sent_s + ttl_s <= at_s)
    }

    /// Whether the log may have dropped a message by now under the limits of its rule.
    pub fn may_have_run_out(&self, number: u32) -> bool {
        let message = &self.messages[number as usize];
        let rule = &self.topics[message.topic].rule;
        let (mut count, mut bytes) = (0, 0);
        let all = (0..).zip(&self.messages);
        for (other, _) in all.filter(|(_, other)| {
            other.topic == message.topic && !other.refused && !other.is_before(message)
        }) {
            count += 1;
            bytes += self.bytes_of(other);
        }
        // The count includes the message itself.
        count > rule.messages_max()
            || bytes > rule.log_bytes
            || self.may_have_expired(number, self.now_s)
            || self.now_s - message.sent_s >= rule.log_age_s
    }

    /// Whether a message of the same key, sent up to this step, may have superseded this one.
    pub fn may_be_superseded(&self, number: u32, at: u32) -> bool {
        let message = &self.messages[number as usize];
        let topic = &self.topics[message.topic];
        topic.keeps_latest()
            && topic.by_key[usize::from(message.spec.key)]
                .iter()
                .any(|other| {
                    let other_message = &self.messages[*other as usize];
                    let behind = match (message.offset, other_message.offset) {
                        (Some(one), Some(other)) => other > one,
                        _ => *other != number,
                    };
                    behind && other_message.sent <= at
                })
    }

    /// Whether a delete of the topic, sent up to this step, may have removed the message.
    pub fn may_be_deleted(&self, number: u32, at: u32) -> bool {
        let message = &self.messages[number as usize];
        let mut deletes = self.topics[message.topic].deletes.iter();
        deletes.any(|(sent, done)| *sent <= at && done.is_none_or(|done| done >= message.sent))
    }

    /// Checks that the message had neither expired nor been superseded when its subscriber asked, at this step and second.
    pub fn check_not_stale(&self, number: u32, asked: u32, asked_s: u32) -> Result<(), Violation> {
        let message = &self.messages[number as usize];
        let topic = &self.topics[message.topic];
        if let (Some(acked), Some(ttl_s)) = (message.acked, message.ttl_s)
            && acked < asked
            && message.acked_s + ttl_s <= asked_s
        {
            return Err(format!(
                "message {number} had expired when it was asked for"
            ));
        }
        // A message that the disk has lost supersedes nothing.
        let is_there = |acked| topic.damaged.is_none_or(|at| acked > at);
        self.check_newest(number, "it was asked for", |other| {
            let acked = other.acked.filter(|acked| *acked < asked);
            topic.keeps_latest() && acked.is_some_and(is_there)
        })
    }

    /// Checks that no later message of the same key exists among those that `counts` accepts.
    pub fn check_newest(
        &self,
        number: u32,
        when: &str,
        counts: impl Fn(&Message) -> bool,
    ) -> Result<(), Violation> {
        let message = &self.messages[number as usize];
        let topic = &self.topics[message.topic];
        let mut others = topic.by_key[usize::from(message.spec.key)].iter();
        let newer = others.find(|other| {
            let other = &self.messages[**other as usize];
            counts(other) && message.is_before(other)
        });
        match newer {
            Some(newer) => Err(format!(
                "message {number} had been superseded by {newer} when {when}"
            )),
            None => Ok(()),
        }
    }

    /// The newest message of each key. A subscriber that asked for everything must have received these by now. Empty if that is uncertain.
    pub fn snapshot(&self, topic: usize) -> Vec<u32> {
        let of = &self.topics[topic];
        let keys = of.by_key.iter().filter(|numbers| !numbers.is_empty());
        let bytes: usize = of.by_key.iter().flatten().map(|n| self.bytes_of(*n)).sum();
        if !of.keeps_latest()
            || !self.allowed.budgets_are_wide
            || !of.deletes.is_empty()
            || keys.count() > of.rule.keys_max as usize
            || bytes > of.rule.log_bytes
        {
            return Vec::new();
        }
        let newest = |numbers: &Vec<u32>| {
            let number = numbers
                .iter()
                .max_by_key(|n| self.messages[**n as usize].offset);
            number.copied()
        };
        let is_due = |number: &u32| {
            let message = &self.messages[*number as usize];
            let all = &of.by_key[usize::from(message.spec.key)];
            // If any message of the key has no known offset, the newest is unknown.
            let is_newest = all.iter().all(|other| {
                let is_it = other == number;
                let other = &self.messages[*other as usize];
                is_it || other.refused || other.is_before(message)
            });
            message.offset.is_some()
                && is_newest
                && !self.may_have_crashed(topic, message.sent)
                && !self.may_have_expired(*number, self.now_s)
                && self.now_s - message.sent_s < of.rule.log_age_s
        };
        let numbers = of.by_key.iter().filter_map(newest);
        numbers.filter(is_due).collect()
    }
}
