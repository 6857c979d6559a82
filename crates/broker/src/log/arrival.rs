//! Reads the log in the order of arrival, over all topics, for readers by filter.
//!
//! Offsets increase over all messages of the partition, so the reader merges the lists of all rules by offset. Losses are merged too, each at the
//! offset of the lost message.
//!
//! A *home* is the part of a shard that keeps topics.

use alloc::vec::Vec;

use super::*;
use crate::log::entry::ORPHANED;
use crate::mail::{Frames, Record};

impl Arrival {
    /// The offset of the item.
    pub fn offset(&self) -> u64 {
        match self {
            Arrival::Kept { offset, .. }
            | Arrival::Lost { offset, .. }
            | Arrival::Orphaned { offset } => *offset,
        }
    }
}

/// The position of a reader: the next entry of each list with its offset, and the next loss (offset, topic row, number). The log must not
/// change while a cursor exists.
pub struct ArrivalCursor {
    next_entries: Vec<(u64, u32)>,
    next_loss: Option<(u64, u32, u64)>,
}

/// An item in the order of arrival.
pub enum Arrival {
    /// A kept message.
    Kept {
        /// The entry.
        id: u32,
        /// The offset.
        offset: u64,
        /// The home's topic row.
        topic: u32,
        /// The number of the message's rule.
        rule: u8,
        /// When the message was published, in Unix seconds.
        time_s: u32,
    },
    /// A lost message of a topic.
    Lost {
        /// The offset.
        offset: u64,
        /// The home's topic row.
        topic: u32,
        /// The number of the loss, see [`Losses::watched_count`].
        number: u64,
    },
    /// A message of an orphaned chain (of a topic that was deleted or emptied). The message is sent to no reader.
    Orphaned {
        /// The offset.
        offset: u64,
    },
}

impl Log {
    /// Begins to read lists and losses. `lists` gives the number of each list, and the offset after which to begin. Losses begin after the offset
    /// `lost_after`.
    pub fn arrivals(
        &self,
        lists: impl Iterator<Item = (u8, u64)>,
        lost_after: u64,
    ) -> ArrivalCursor {
        let next_entries = lists.filter_map(|(number, offset)| {
            let (entries, steps) = (&self.entries, &self.steps);
            let id = self.lists.first_after(entries, number, offset, steps);
            (id != NONE).then(|| (self.entries.get(id).offset, id))
        });
        ArrivalCursor {
            next_entries: next_entries.collect(),
            next_loss: self.losses.next_after(lost_after),
        }
    }

    /// The next item, if there is one.
    pub fn next_arrival(&self, cursor: &mut ArrivalCursor) -> Option<Arrival> {
        // A message may be in two lists. Then the copy of the first list is returned first.
        let list = (0..cursor.next_entries.len()).min_by_key(|n| cursor.next_entries[*n].0);
        if let Some((offset, topic, number)) = cursor.next_loss
            && list.is_none_or(|n| offset < cursor.next_entries[n].0)
        {
            cursor.next_loss = self.losses.next_after(offset);
            return Some(Arrival::Lost {
                offset,
                topic,
                number,
            });
        }
        let next_entry = &mut cursor.next_entries[list?];
        let (offset, id) = *next_entry;
        let entry = self.entries.get(id);
        if entry.younger == NONE {
            cursor.next_entries.remove(list?);
        } else {
            *next_entry = (self.entries.get(entry.younger).offset, entry.younger);
        }
        let chain = self.chains.get(entry.chain);
        if chain.topic == ORPHANED {
            return Some(Arrival::Orphaned { offset });
        }
        Some(Arrival::Kept {
            id,
            offset,
            topic: chain.topic,
            rule: chain.rule,
            time_s: entry.time_s,
        })
    }

    /// The last offset that arrived by this second. A reader that begins after this offset gets all later messages.
    pub fn last_arrived_by(&self, time_s: u32) -> u64 {
        let lists = 0..=self.lists.retained();
        let (entries, steps) = (&self.entries, &self.steps);
        let all = lists.map(|number| self.lists.last_arrived_by(entries, number, time_s, steps));
        all.max().unwrap_or(0)
    }

    /// Whether this message is among the `newest_max` newest of its topic.
    pub fn is_among_newest(&self, id: u32, newest_max: u32) -> bool {
        let entry = self.entries.get(id);
        if self.count(entry.chain) <= newest_max {
            return true;
        }
        let mut next = entry.next;
        for _ in 0..newest_max {
            if next == NONE {
                return true;
            }
            self.steps.add(1);
            next = self.entries.get(next).next;
        }
        false
    }

    /// The bytes of a message.
    pub fn bytes_of(&self, id: u32) -> usize {
        self.entries.get(id).bytes()
    }

    /// Copies a message into `frames`.
    pub fn copy(&self, id: u32, frames: &mut Frames) -> Record {
        self.record(id, self.entries.get(id).previous, frames)
    }
}
