//! Keeps the messages of topics that have a QoS 1 or 2 subscription, whether its client is connected or not, even if the topic's rule keeps
//! fewer or none.
//!
//! Invariant: a topic is in `Subscriptions::qos` exactly while it has such a subscription, and the topic is not forgotten meanwhile. A
//! subscription to a topic that could not be created is listed by name, like a filter, until the subscription ends.
//!
//! A *home* is the part of a shard that keeps topics.

use crore_wire::topic;

use super::Home;
use super::topic_row::HAS_QOS_SUBSCRIPTION;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::store::slab::NONE;

/// The maximum number of topics that one call of [`Home::drop_some_unneeded`] visits.
const ROWS_PER_CALL: u32 = 64;
/// The maximum number of messages that one call of [`Home::drop_some_unneeded`] removes.
const MESSAGES_PER_CALL: u32 = 256;

/// The filter of all topics.
pub(crate) const ALL_TOPICS: &[u8] = b"#";

impl Home {
    /// Adds (`is_added`) or removes a subscription for which the messages of a topic, or of all topics that match a filter, must be kept. Each shard with
    /// subscribers removes exactly the subscriptions that it added, even if the home refused the subscription itself.
    pub(crate) fn count_qos_subscription(
        &mut self,
        hash: u32,
        name: &[u8],
        is_added: bool,
        now: Now,
    ) {
        let is_filter = topic::has_wildcard(name);
        let found = (!is_filter).then(|| self.topics.find(hash, name)).flatten();
        match (found, is_added) {
            (Some(id), true) => {
                self.subscriptions.qos.add_topic(id, 1);
                self.topics.rows.get_mut(id).flags |= HAS_QOS_SUBSCRIPTION;
            }
            (None, true) => self.subscriptions.qos.add_filter(name),
            // An entry by name is removed first: it was made while the topic could not be created. If the topic exists now, its row counts later
            // subscriptions.
            (found, false) => {
                if self.subscriptions.qos.remove_filter(name) {
                    return;
                }
                let Some(id) = found else { return };
                if self.subscriptions.qos.remove_topic(id) {
                    self.topics.rows.get_mut(id).flags &= !HAS_QOS_SUBSCRIPTION;
                    self.queue_if_idle(id, now);
                }
            }
        }
    }

    /// Whether a QoS 1 or 2 subscription or a group needs the messages of this topic.
    pub(super) fn is_needed(&mut self, id: u32) -> bool {
        let row = self.topics.rows.get(id);
        let name = self.topics.names.get(row.name);
        row.has(HAS_QOS_SUBSCRIPTION)
            || self.subscriptions.qos.has_match(name)
            || !self.subscriptions.groups.is_empty() && self.subscriptions.groups.find_due(name)
    }

    /// Removes the messages that neither a rule nor a subscription keeps. Called after a log was read: until then the subscriptions are unknown, and
    /// each topic keeps as many messages as a subscription may need.
    pub(crate) fn drop_unneeded(&mut self, rules: &Rules, now: Now) {
        let mut next_row = Some(0);
        while let Some(row) = next_row {
            next_row = self.drop_some_unneeded(row, rules, now);
        }
    }

    /// Does a bounded part of [`drop_unneeded`](Self::drop_unneeded), from this row of the topics on. Returns the row to continue with, if any are left.
    pub(crate) fn drop_some_unneeded(&mut self, from: u32, rules: &Rules, now: Now) -> Option<u32> {
        let end = self.topics.rows.end();
        let call_end = end.min(from.saturating_add(ROWS_PER_CALL));
        let mut removals_left = MESSAGES_PER_CALL;
        for id in from..call_end {
            self.steps.add(1);
            let row = self.topics.rows.get(id);
            let (chain, messages_max) = (row.chain, rules.get(row.rule).messages_max());
            if chain == NONE || self.is_needed(id) {
                continue;
            }
            let partition_index = self.topic_partition_index(id);
            let log = &mut self.logs.partitions[partition_index].log;
            let count = log.count(chain);
            let limit = match (count.saturating_sub(messages_max), messages_max) {
                (0, _) => continue,
                (excess, 0) if excess <= removals_left => u32::MAX,
                (excess, _) => excess.min(removals_left),
            };
            let (chain, dropped) = log.drop_until(chain, u64::MAX, limit, now.unix_s);
            let is_empty = log.count(chain) == 0;
            // If its newest messages have expired, an empty chain (list of messages) stays, since it stores the last lost offset.
            self.topics.rows.get_mut(id).chain = chain;
            if is_empty {
                self.begin_idle_time(id, now);
            }
            self.steps.add(dropped as usize);
            removals_left -= dropped.min(removals_left);
            if removals_left == 0 {
                // More messages of this topic may be left.
                return Some(id);
            }
        }
        (call_end < end).then_some(call_end)
    }
}
