//! The worth of messages: expired or superseded ones need not come, and must not when that is certain.
//!
//! Invariant: in doubt (an unknown offset, an unanswered publish) nothing is demanded and nothing is forbidden.

use crate::truth::{Message, Truth, Violation};

impl Truth {
    /// Whether it may have expired at this second: it was published when it was sent, or later.
    pub fn may_have_expired(&self, number: u32, at_s: u32) -> bool {
        let message = &self.messages[number as usize];
        message
            .ttl_s
            .is_some_and(|ttl_s| message.sent_s + ttl_s <= at_s)
    }

    /// Whether a log that keeps what its rule says may be without it by now.
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
        // It is one of them itself.
        count > rule.messages_max()
            || bytes > rule.log_bytes
            || self.may_have_expired(number, self.now_s)
            || self.now_s - message.sent_s >= rule.log_age_s
    }

    /// Whether a message that was sent up to this step may have taken its place.
    pub fn may_be_superseded(&self, number: u32, at: u32) -> bool {
        let message = &self.messages[number as usize];
        let topic = &self.topics[message.topic];
        topic.keeps_latest()
            && topic.by_key[usize::from(message.like.key)]
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

    /// Whether a delete of its topic that was sent up to this step may have taken it.
    pub fn may_be_deleted(&self, number: u32, at: u32) -> bool {
        let message = &self.messages[number as usize];
        let mut deletes = self.topics[message.topic].deletes.iter();
        deletes.any(|(sent, done)| *sent <= at && done.is_none_or(|done| done >= message.sent))
    }

    /// Checks that a subscriber that asked at this step could still get this message.
    pub fn check_worth(&self, number: u32, asked: u32, asked_s: u32) -> Result<(), Violation> {
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
        // One that the disk has lost supersedes nothing any more.
        let is_there = |acked| topic.harmed.is_none_or(|at| acked > at);
        self.check_newest(number, "it was asked for", |other| {
            let acked = other.acked.filter(|acked| *acked < asked);
            topic.keeps_latest() && acked.is_some_and(is_there)
        })
    }

    /// Checks that no later message of its key exists, among those that `counts` accepts.
    pub fn check_newest(
        &self,
        number: u32,
        when: &str,
        counts: impl Fn(&Message) -> bool,
    ) -> Result<(), Violation> {
        let message = &self.messages[number as usize];
        let topic = &self.topics[message.topic];
        let mut others = topic.by_key[usize::from(message.like.key)].iter();
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

    /// The newest message of each key, which a subscriber that asks for everything must have by now.
    pub fn snapshot(&self, topic: usize) -> Vec<u32> {
        let of = &self.topics[topic];
        let keys = of.by_key.iter().filter(|numbers| !numbers.is_empty());
        let bytes: usize = of.by_key.iter().flatten().map(|n| self.bytes_of(*n)).sum();
        if !of.keeps_latest()
            || !self.terms.budgets_are_wide
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
            let all = &of.by_key[usize::from(message.like.key)];
            // Where a message without a known offset exists, the newest is unknown.
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
