//! Topics whose messages are kept although their rule keeps fewer, or none: those with a subscription of QoS 1 or 2,
//! whether its client is connected or away.
//!
//! Invariant: a topic stands in `keepers` exactly while it has such a subscription; such a topic is not forgotten.

use super::Home;
use super::row::KEEPS;
use crate::base::time::Now;

impl Home {
    /// One subscription more (`on`) or less needs the messages of a topic or of a filter's topics. It has subscribed to
    /// the topic just before: if the topic does not exist that was refused, and nothing is kept.
    pub fn keep_log(&mut self, hash: u32, name: &[u8], on: bool, now: Now) {
        if name.iter().any(|b| matches!(b, b'+' | b'#')) {
            return match on {
                true => self.keepers.add_filter(name),
                false => self.keepers.remove_filter(name),
            };
        }
        let Some(id) = self.find(hash, name) else {
            return;
        };
        if on {
            self.keepers.add_topic(id, 1);
            self.rows.get_mut(id).flags |= KEEPS;
        } else if self.keepers.remove_topic(id) {
            self.rows.get_mut(id).flags &= !KEEPS;
            self.queue_if_idle(id, now);
        }
    }
}
