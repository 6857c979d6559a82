//! Keeps the messages of topics that have a QoS 1 or 2 subscription, whether its client is connected or away, even if the topic's rule
//! keeps fewer or none.
//!
//! Invariant: a topic is in `Subscriptions::qos` exactly while it has such a subscription, and is not forgotten meanwhile. A subscription
//! to a topic that could not be created is listed by name, like a filter, until it ends.

use crore_wire::topic;

use super::logs::Logs;
use super::subscriptions::Subscriptions;
use super::topic_row::KEEPS;
use super::topics::TopicTable;
use crate::base::time::Now;

impl Subscriptions {
    /// Counts a subscription that needs the messages of a topic or of a filter's topics: adds it (`on`) or removes it. Each carrier removes
    /// exactly the subscriptions that it added, even if the home refused the subscription itself.
    pub(crate) fn keep_log(
        &mut self,
        topics: &mut TopicTable,
        logs: &Logs,
        hash: u32,
        name: &[u8],
        on: bool,
        now: Now,
    ) {
        let is_filter = topic::has_wildcard(name);
        let found = (!is_filter).then(|| topics.find(hash, name)).flatten();
        match (found, on) {
            (Some(id), true) => {
                self.qos.add_topic(id, 1);
                topics.rows.get_mut(id).flags |= KEEPS;
            }
            (None, true) => self.qos.add_filter(name),
            // Entries by name are removed first: if the topic exists by now, it was created for another subscription that is counted in its
            // row.
            (found, false) => {
                if self.qos.remove_filter(name) {
                    return;
                }
                let Some(id) = found else { return };
                if self.qos.remove_topic(id) {
                    topics.rows.get_mut(id).flags &= !KEEPS;
                    topics.queue_if_idle(logs, id, now);
                }
            }
        }
    }
}
