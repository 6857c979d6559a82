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
use crate::base::time::Now;

impl Home {
    /// Adds (`on`) or removes a subscription that needs the messages of a topic, or of all topics that match a filter, to be kept. Each
    /// shard with subscribers removes exactly the subscriptions that it added, even if the home refused the subscription itself.
    pub(crate) fn count_qos_subscription(&mut self, hash: u32, name: &[u8], on: bool, now: Now) {
        let is_filter = topic::has_wildcard(name);
        let found = (!is_filter).then(|| self.topics.find(hash, name)).flatten();
        match (found, on) {
            (Some(id), true) => {
                self.subscriptions.qos.add_topic(id, 1);
                self.topics.rows.get_mut(id).flags |= HAS_QOS_SUBSCRIPTION;
            }
            (None, true) => self.subscriptions.qos.add_filter(name),
            // Entries by name are removed first: if the topic exists by now, it was created for another subscription that is counted in its
            // row.
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
}
