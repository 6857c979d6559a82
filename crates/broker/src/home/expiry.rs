//! Removes expired messages and idle topics from a home, the part of a shard that keeps topics.
//!
//! A *follower* is a client that is told which topics have subscribers.

use alloc::vec::Vec;

use super::Home;
use super::partition::Partition;
use super::topic_row::{HAS_QOS_SUBSCRIPTION, HAS_RETAINED, IN_IDLE_QUEUE};
use crate::base::planted::{self, Fault};
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::store::slab::NONE;

/// A search for an idle topic gives up after this many topics that are in use again. This takes some hundred microseconds.
const EVICTION_TRIES: usize = 1024;

impl Home {
    /// Whether the topic has no subscribers, no messages and no record in flight.
    fn is_unused(&self, id: u32) -> bool {
        let row = self.topics.rows.get(id);
        row.carrier == NONE
            && row.flags & (HAS_RETAINED | HAS_QOS_SUBSCRIPTION) == 0
            && self.logs.message_count(row) == 0
            && !self.topics.reservations.has(row.hash)
    }

    /// Adds the topic to the queue of idle topics, if it is unused and not in the queue already.
    pub(super) fn queue_if_idle(&mut self, id: u32, now: Now) {
        if self.is_unused(id) && !self.topics.rows.get(id).has(IN_IDLE_QUEUE) {
            let row = self.topics.rows.get_mut(id);
            row.flags |= IN_IDLE_QUEUE;
            row.last_used_s = now.unix_s;
            let client = self.topics.creators.holder(id);
            self.topics
                .idle_topics
                .push(row.rule, client, id, now.unix_s);
        }
    }

    /// Begins the idle time of a topic whose last message was removed. If the topic stays unused, it is forgotten after `position_age_s`.
    pub(super) fn begin_idle_time(&mut self, id: u32, now: Now) {
        self.topics.rows.get_mut(id).last_used_s = now.unix_s;
        self.queue_if_idle(id, now);
    }

    /// Forgets the topics that this rule governs and that have been idle for the rule's `position_age_s`. Examines at most `topics_max` topics; returns
    /// how many it has examined.
    fn forget_idle(
        &mut self,
        rule_number: u8,
        rules: &Rules,
        now: Now,
        topics_max: usize,
    ) -> usize {
        let age_s = rules.get(rule_number).position_age_s;
        for examined in 0..topics_max {
            let Some(idle_since_s) = now.unix_s.checked_sub(age_s) else {
                return examined;
            };
            let Some(id) = self
                .topics
                .idle_topics
                .pop_of_rule(rule_number, idle_since_s)
            else {
                return examined;
            };
            self.steps.add(1);
            let row = self.topics.rows.get_mut(id);
            row.flags &= !IN_IDLE_QUEUE;
            if !self.is_unused(id) {
                continue;
            }
            let row = self.topics.rows.get_mut(id);
            let since_s = match self.interest.followers.has_lingering_interest(id) {
                false if row.last_used_s.saturating_add(age_s) <= now.unix_s => {
                    self.forget_topic(id);
                    continue;
                }
                false => row.last_used_s,
                // Followers have not been told yet that the last subscriber has left, so the topic is examined again in the next second.
                true => (now.unix_s + 1).saturating_sub(age_s),
            };
            row.flags |= IN_IDLE_QUEUE;
            let client = self.topics.creators.holder(id);
            self.topics
                .idle_topics
                .push(rule_number, client, id, since_s);
        }
        topics_max
    }

    /// Evicts an idle topic to make room for a new one: preferably a topic of this client, otherwise a topic of any client that has been idle since
    /// `idle_since_s` or earlier. Chooses the first rule with such topics, and of these topics the one that has been idle for the longest time. Returns
    /// whether a topic was evicted.
    pub(super) fn evict_idle_topic(&mut self, client: Client, idle_since_s: u32) -> bool {
        // The loop removes the topics that it examines from the queue, so the next call continues the search.
        for _ in 0..EVICTION_TRIES {
            let own_topic = match client {
                Client::NOBODY => None,
                client => self.topics.idle_topics.pop_of_client(client),
            };
            let Some(id) = own_topic.or_else(|| self.topics.idle_topics.pop_any(idle_since_s))
            else {
                return false;
            };
            self.steps.add(1);
            self.topics.rows.get_mut(id).flags &= !IN_IDLE_QUEUE;
            if self.is_unused(id) {
                self.forget_topic(id);
                return true;
            }
        }
        false
    }

    /// Frees the topic's row. Remembers the topic's last offset, and the loss of its messages, for subscribers that come back with an old position.
    pub(super) fn forget_topic(&mut self, id: u32) {
        if !self.interest.followers.is_empty() {
            self.end_lingering_interest(id);
        }
        self.topics.index.remove(&mut self.topics.rows, id);
        let row = self.topics.rows.remove(id);
        self.topics.creators.forget_row(id);
        let partition_index = self.logs.partition_index_of(&row);
        let Partition { log, forgotten, .. } = &mut self.logs.partitions[partition_index];
        let last_lost = log.last_lost_offset(row.chain).unwrap_or(row.last_offset());
        if let Some(number) = log.losses.forget_topic(id, last_lost) {
            forgotten.add(row.rule, last_lost, number, self.topics.names.get(row.name));
        }
        log.clear(row.chain);
        let floor = &mut self.logs.forgotten_max_by_slot[usize::from(row.slot())];
        if !planted::is(Fault::NoFloor) {
            *floor = (*floor).max(row.last_offset());
        }
        self.topics.names.remove(row.name);
    }

    /// Handles a chain (list of messages) of this topic that has become empty: that of the retained message if `rule_number` is the number for retained
    /// messages, otherwise that of the topic's log. `empty_chain` is the chain, or `NONE`.
    pub(super) fn handle_emptied_chain(
        &mut self,
        id: u32,
        rule_number: u8,
        empty_chain: u32,
        rules: &Rules,
        now: Now,
    ) {
        if rule_number == rules.retained() {
            self.logs.retained_chains.insert(id, empty_chain);
            self.remove_retained(id);
        } else {
            self.topics.rows.get_mut(id).chain = empty_chain;
        }
        self.begin_idle_time(id, now);
    }

    /// Removes expired messages of the topics that this rule governs in this partition, at most `limit`. Returns how many were removed.
    pub(super) fn expire_rule(
        &mut self,
        partition_index: usize,
        rule_number: u8,
        rules: &Rules,
        now: Now,
        limit: usize,
    ) -> usize {
        let mut emptied = Vec::new();
        let age_s = rules.get(rule_number).log_age_s;
        let log = &mut self.logs.partitions[partition_index].log;
        let expired = log.expire(
            rule_number,
            age_s,
            now.unix_s,
            limit,
            |topic, empty_chain| {
                emptied.push((topic, empty_chain));
            },
        );
        // The idle time of these topics begins now, even if they are in the queue of idle topics already. So this must come before topics are forgotten.
        for (topic, empty_chain) in emptied {
            self.handle_emptied_chain(topic, rule_number, empty_chain, rules, now);
        }
        expired
    }

    /// Called at least once a second, so that what has expired meanwhile is removed. No record in flight is older than second `oldest_s`.
    pub fn tick(&mut self, oldest_s: u32) {
        self.retries.oldest_s = self.logs.log_time_s().unwrap_or(oldest_s);
        self.retries.expire_answers(self.retries.oldest_s);
        for (partition_index, partition) in self.logs.partitions.iter().enumerate() {
            let claims = &mut self.retries.newest_claims;
            claims.change_claims(partition_index, |claims| {
                claims.forget_old(partition.newest_time_s)
            });
        }
        self.topics.idle_topics.may_have_expired = true;
    }

    /// Removes expired messages, and forgets topics that have been idle for long enough. Called once in each turn (a pass of the shard's loop).
    /// Removes at most a fixed number plus the number of messages published in the turn, so that removal keeps up with publishes. Returns whether more are
    /// left.
    pub fn remove_expired(&mut self, rules: &Rules, now: Now) -> bool {
        let published = core::mem::take(&mut self.topics.idle_topics.published_in_turn);
        let mut limit = self.turn_limits.removals_per_turn + published;
        let has_orphans = self.logs.counts.orphans.get() > 0;
        if has_orphans {
            for partition in &mut self.logs.partitions {
                limit -= partition.log.clear_orphans(limit);
            }
        }
        if !self.topics.idle_topics.may_have_expired {
            return has_orphans && self.logs.counts.orphans.get() > 0;
        }
        for _ in 0..rules.count() {
            let rule_number = self.topics.idle_topics.next_rule();
            for partition_index in 0..self.logs.partitions.len() {
                limit -= self.expire_rule(partition_index, rule_number, rules, now, limit);
            }
            limit -= self.forget_idle(rule_number, rules, now, limit);
            if limit == 0 {
                return true;
            }
            self.topics.idle_topics.go_to_next_rule();
        }
        self.topics.idle_topics.may_have_expired = false;
        self.logs.counts.orphans.get() > 0
    }
}
