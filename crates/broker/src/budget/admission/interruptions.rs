//! Interruptions of a node of a cluster: times in which it did not read the log. All homes of the node share this.

use crate::base::ids::ShardId;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bits of the count of homes. The number of the newest interruption is above them.
const HOMES_BITS: u32 = 16;

/// The newest interruption, and how many homes have read the log to its end since.
#[derive(Debug)]
pub struct Interruptions {
    newest: AtomicU64,
    /// The second in which the newest one was noticed.
    noticed_s: AtomicU32,
}

impl Default for Interruptions {
    /// A new process has not read the log to its end.
    fn default() -> Interruptions {
        Interruptions {
            newest: AtomicU64::new(1 << HOMES_BITS),
            noticed_s: AtomicU32::new(0),
        }
    }
}

impl Interruptions {
    /// Begins an interruption, because the node may have been interrupted before the second `now_s`: all homes must read to the end of the log. Changes
    /// nothing if another home has begun one in this second.
    pub fn begin(&self, now_s: u32) {
        if self.noticed_s.swap(now_s, Relaxed) == now_s {
            return;
        }
        let next = |it: u64| Some(((it >> HOMES_BITS) + 1) << HOMES_BITS);
        let _ = self.newest.fetch_update(Relaxed, Relaxed, next);
    }

    /// The number of the newest interruption.
    pub fn newest(&self) -> u64 {
        self.newest.load(Relaxed) >> HOMES_BITS
    }

    /// Counts a home that has read to the end of the log since interruption `number`. Each home calls this once for a number.
    pub fn count_read_to_end(&self, number: u64) {
        let counted = |it: u64| (it >> HOMES_BITS == number).then_some(it + 1);
        let _ = self.newest.fetch_update(Relaxed, Relaxed, counted);
    }

    /// Whether all homes have read to the end of the log since interruption `number`, which is the newest.
    pub fn is_over(&self, number: u64, homes: ShardId) -> bool {
        self.newest.load(Relaxed) == number << HOMES_BITS | u64::from(homes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_is_over_when_each_home_has_read_to_the_end_since() {
        let all = Interruptions::default();
        let first = all.newest();
        all.count_read_to_end(first);
        assert!(!all.is_over(first, 2));
        all.begin(7);
        all.begin(7);
        all.count_read_to_end(first);
        all.count_read_to_end(all.newest());
        assert!(!all.is_over(all.newest(), 2));
        all.count_read_to_end(all.newest());
        assert!(all.is_over(all.newest(), 2) && !all.is_over(first, 2));
    }
}
