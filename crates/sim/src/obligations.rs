//! The server's obligations: which messages a subscriber must, may or must not receive. A message that may have expired or been superseded
//! need not come. A message that certainly has expired or been superseded must not come.
//!
//! Invariant: while the clients do not know something (an offset, the outcome of a publish), nothing that depends on it is required or
//! forbidden.

use crate::truth::{Message, Truth, Violation};

impl Truth {
    /// Whether a message may have expired by the second `by_s`. The server counts its time to live from the moment of sending or later.
    pub fn may_have_expired(&self, number: u32, by_s: u32) -> bool {
        let message = &self.messages[number as usize];
        message
            .ttl_s
            .is_some_and(|ttl_s| message.sent_s + ttl_s <= by_s)
    }

    /// Whether the limits of the topic's rule may have removed a message from the log by now.
    pub fn may_have_been_removed(&self, number: u32) -> bool {
        let message = &self.messages[number as usize];
        let rule = &self.topics[message.topic].rule;
        let (mut count, mut bytes) = (0, 0);
        let all = (0..).zip(&self.messages);
        for (other, _) in all.filter(|(_, other)| {
            other.topic == message.topic && !other.refused && !other.is_before(message)
        }) {
            let copies = self.copies_max(other);
            count += copies as u32;
            bytes += copies * self.bytes_of(other);
        }
        // `count` includes the message itself.
        count > rule.messages_max()
            || bytes > rule.log_bytes
            || self.may_have_expired(number, self.now_s)
            || self.now_s - message.sent_s >= rule.log_age_s
    }

    /// Whether a later message of the same key, sent in the step `by_step` or before, may have superseded this one.
    pub fn may_be_superseded(&self, number: u32, by_step: u32) -> bool {
        let message = &self.messages[number as usize];
        let topic = &self.topics[message.topic];
        topic.keeps_latest()
            && topic.by_key[usize::from(message.spec.key)]
                .iter()
                .any(|other| {
                    let other_message = &self.messages[*other as usize];
                    let is_after = match (message.offset, other_message.offset) {
                        (Some(one), Some(other)) => other > one,
                        _ => *other != number,
                    };
                    is_after && other_message.sent_step <= by_step
                })
    }

    /// Whether a delete of the topic, sent in the step `by_step` or before, may have removed the message.
    pub fn may_be_deleted(&self, number: u32, by_step: u32) -> bool {
        let message = &self.messages[number as usize];
        let mut deletes = self.topics[message.topic].deletes.iter();
        deletes.any(|(sent, done)| {
            *sent <= by_step && done.is_none_or(|done| done >= message.sent_step)
        })
    }

    /// Checks that a received message had neither expired nor been superseded when the subscriber sent the request for it, in the step
    /// `request_step` and the second `request_s`.
    pub fn check_not_stale(
        &self,
        number: u32,
        request_step: u32,
        request_s: u32,
    ) -> Result<(), Violation> {
        let message = &self.messages[number as usize];
        let topic = &self.topics[message.topic];
        if let (Some(acked), Some(ttl_s)) = (message.acked_step, message.ttl_s)
            && acked < request_step
            && message.acked_s + ttl_s <= request_s
        {
            return Err(format!(
                "message {number} had expired when it was asked for"
            ));
        }
        // A message that the disk has lost supersedes nothing.
        let still_exists = |acked| {
            topic
                .damage_step
                .is_none_or(|damage_step| acked > damage_step)
        };
        self.check_newest(number, "it was asked for", |other| {
            let acked = other.acked_step.filter(|acked| *acked < request_step);
            topic.keeps_latest() && acked.is_some_and(still_exists)
        })
    }

    /// Checks that a received message was the newest of its key among the messages for which `is_counted` is true.
    pub fn check_newest(
        &self,
        number: u32,
        when: &str,
        is_counted: impl Fn(&Message) -> bool,
    ) -> Result<(), Violation> {
        let message = &self.messages[number as usize];
        let topic = &self.topics[message.topic];
        let mut others = topic.by_key[usize::from(message.spec.key)].iter();
        let newer = others.find(|other| {
            let other = &self.messages[**other as usize];
            is_counted(other) && message.is_before(other)
        });
        match newer {
            Some(newer) => Err(format!(
                "message {number} had been superseded by {newer} when {when}"
            )),
            None => Ok(()),
        }
    }

    /// The newest message of each key that a subscriber to all messages must have received by now. Keys whose newest message is uncertain are
    /// left out. Empty if the log may have lost messages to a limit or a delete.
    pub fn newest_of_each_key(&self, topic: usize) -> Vec<u32> {
        let state = &self.topics[topic];
        let by_key = &state.by_key;
        let keys = by_key.iter().filter(|numbers| !numbers.is_empty());
        let bytes: usize = by_key.iter().flatten().map(|n| self.bytes_of(*n)).sum();
        if !state.keeps_latest()
            || !self.allowed.budgets_are_wide
            || !state.deletes.is_empty()
            || keys.count() > state.rule.keys_max as usize
            || bytes > state.rule.log_bytes
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
            let same_key = &by_key[usize::from(message.spec.key)];
            // If another message of this key has an unknown offset, it may be newer than this one.
            let is_newest = same_key.iter().all(|other| {
                let is_itself = other == number;
                let other = &self.messages[*other as usize];
                is_itself || other.refused || other.is_before(message)
            });
            message.offset.is_some()
                && is_newest
                && !self.crash_may_have_removed(topic, message.sent_step)
                && !self.may_have_expired(*number, self.now_s)
                && self.now_s - message.sent_s < state.rule.log_age_s
        };
        let numbers = by_key.iter().filter_map(newest);
        numbers.filter(is_due).collect()
    }
}
