//! Topics whose messages are kept although their rule keeps fewer, or none: those with a subscription of QoS 1 or 2,
//! whether its client is connected or away.
//!
//! Invariant: a topic stands in `keepers` exactly while it has such a subscription; such a topic is not forgotten.

use super::{Home, KEEPS};
use crate::base::time::Now;

impl Home {
    /// One subscription more (`on`) or less needs the messages of a topic or of a filter's topics. It has subscribed to
    /// the topic just before: if the topic does not exist that was refused, and nothing is kept.
    pub fn keep_log(&mut self, hash: u32, name: &[u8], on: bool, now: Now) {
        if name.iter().any(|b| matches!(b, b'+' | b'#')) {
            return self.keep_filter(name, on);
        }
        let found = self.find(hash, name);
        if on {
            if let Some(id) = found {
                *self.keepers.entry(id).or_default() += 1;
                self.rows.get_mut(id).flags |= KEEPS;
            }
            return;
        }
        let Some(id) = found else { return };
        let Some(count) = self.keepers.get_mut(&id) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.keepers.remove(&id);
            self.rows.get_mut(id).flags &= !KEEPS;
            self.queue_if_idle(id, now);
        }
    }

    fn keep_filter(&mut self, filter: &[u8], on: bool) {
        if on {
            if let Ok(row) = self.kept.open(filter) {
                // A filter's value is one less than its count; that of a new one is `NONE` and becomes 0.
                let count = self.kept.value(row).wrapping_add(1);
                self.kept.set_value(row, count);
            }
            return;
        }
        let Some(row) = self.kept.find(filter) else {
            return;
        };
        match self.kept.value(row) {
            0 => self.kept.close(row),
            count => self.kept.set_value(row, count - 1),
        }
    }
}
