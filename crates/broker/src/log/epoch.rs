//! A new epoch of the partition: all messages get new offsets, behind all that were given, so that no position of before seems to have seen one.
//!
//! Invariant: their order stays, and entries of one message (that of its topic's chain, and the retained one) go on to have one offset.

use super::*;

impl Log {
    /// Gives the messages the offsets behind this one, and returns the last of them. Everything before counts as lost.
    pub fn begin_epoch(&mut self, base: u64) -> u64 {
        let mut all = self.lists.all(&self.entries);
        all.sort_unstable();
        let (mut before, mut last) = (0, base);
        for (offset, id) in all {
            last += u64::from(offset != before);
            before = offset;
            self.entries.get_mut(id).offset = last;
        }
        for chain in 0..self.chains.end() {
            if self.chains.try_get(chain).is_none() {
                continue;
            }
            let row = self.chains.get_mut(chain);
            let mut id = match (row.topic, row.count) {
                (NONE, _) => continue,
                (_, 0) => {
                    row.set_lost(base);
                    continue;
                }
                _ => row.oldest(),
            };
            let mut previous = base;
            while id != NONE {
                let entry = self.entries.get_mut(id);
                (entry.previous, previous) = (previous, entry.offset);
                id = entry.next;
            }
        }
        self.lists.update_marks(&self.entries);
        self.cursors = Cursors::new();
        if let Some(count) = self.losses.counted() {
            self.losses.watch_from(count);
        }
        last
    }
}
