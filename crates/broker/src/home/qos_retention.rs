//! Topics whose messages are kept although their rule keeps fewer, or none: those with a subscription of QoS 1 or 2,
//! whether its client is connected or away.
//!
//! Invariant: a topic stands in `qos` exactly while it has such a subscription; such a topic is not forgotten. A subscription
//! to a topic that could not be created stands there by its name, like a filter, until it is given up.

use crore_wire::topic;

use super::logs::Logs;
use super::subscriptions::Subscriptions;
use super::topic_row::KEEPS;
use super::topics::TopicTable;
use crate::base::time::Now;

impl Subscriptions {
    /// One subscription more (`on`) or less needs the messages of a topic or of a filter's topics. Each that was told with `on`
    /// is told once without, whether its home accepted the subscription or not.
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
            // Those by name go first: the topic, if it exists by now, was created for a subscription that counts on it.
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
