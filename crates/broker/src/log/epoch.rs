//! Begins a new epoch of the partition: all messages get new offsets, higher than all former offsets. So every position of the former epoch is before
//! all messages, and no message counts as already read.
//!
//! Invariant: the order of the messages does not change. If a message has two entries (in its topic's chain, and as the retained message), both
//! get the same offset.
//!
//! A *chain* is the list of a topic's messages.

use super::*;

impl Log {
    /// Gives all messages new offsets after `base`, and returns the last new offset. All offsets up to `base` count as lost.
    pub fn begin_epoch(&mut self, base: u64) -> u64 {
        let mut entries = self.lists.entries_by_offset(&self.entries);
        entries.sort_unstable();
        let (mut former_offset, mut last_offset) = (0, base);
        for (offset, id) in entries {
            last_offset += u64::from(offset != former_offset);
            former_offset = offset;
            self.entries.get_mut(id).offset = last_offset;
        }
        for chain in 0..self.chains.end() {
            if self.chains.try_get(chain).is_none() {
                continue;
            }
            let row = self.chains.get_mut(chain);
            let mut id = match (row.topic, row.count) {
                (NONE, _) => continue,
                (_, 0) => {
                    row.set_last_lost_offset(base);
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
        self.recently_read = RecentlyRead::new();
        if let Some(count) = self.losses.count_if_watched() {
            self.losses.watch_from(count);
        }
        last_offset
    }
}
