//! The log in the order of arrival, over all topics: for readers by filter.
//!
//! Offsets count all messages of the home, so the rules' lists, each in order of arrival, are merged by offset; with
//! them the losses, each at the offset of the lost message. Marks lead to any offset of a list in a few steps.
//!
//! Invariants: a mark is an entry of its list, and between two marks there are at most [`MARK_EVERY`] entries, whatever
//! was removed. From [`Log::watch`] on, each topic that has lost a message is in the losses, with its last one.

use alloc::collections::BTreeMap;
use alloc::collections::VecDeque;

use super::*;
use crate::mail::{Frames, Record};

/// Entries of a list from one mark to the next. In tests so few that short lists have several.
pub(super) const MARK_EVERY: u32 = if cfg!(test) { 4 } else { 64 };

/// Marks of one list.
#[derive(Default)]
pub(super) struct Marks {
    /// Offset and entry.
    all: VecDeque<(u64, u32)>,
    unmarked: u32,
}

impl Marks {
    /// Whether the added entry is to be marked.
    pub fn add(&mut self, offset: u64, id: u32) -> bool {
        self.unmarked += 1;
        let marks = self.unmarked == MARK_EVERY;
        if marks {
            self.unmarked = 0;
            self.all.push_back((offset, id));
        }
        marks
    }

    /// The marked entry at `offset` is removed: the one before it takes the mark, if it has none.
    pub fn pass_on(&mut self, offset: u64, older: Option<(u64, u32)>) {
        let at = self.all.partition_point(|mark| mark.0 < offset);
        debug_assert!(self.all[at].0 == offset);
        match older {
            Some(older) => self.all[at] = older,
            None => drop(self.all.remove(at)),
        }
    }

    /// The marked entries by offset.
    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = (u64, u32)> {
        self.all.iter().copied()
    }

    /// The last mark at or before `offset`.
    fn before(&self, offset: u64) -> Option<u32> {
        let at = self.all.partition_point(|mark| mark.0 <= offset);
        Some(self.all[at.checked_sub(1)?].1)
    }
}

/// The last lost message of each topic, by offset, with the number of the loss; kept from the first reader by filter
/// on.
#[derive(Default)]
pub(super) struct Losses(pub Option<BTreeMap<u64, (u32, u64)>>, pub u64);

impl Losses {
    /// A topic loses the message at `offset`; its last loss before that is at `before`.
    pub fn add(&mut self, topic: u32, before: u64, offset: u64) {
        if let Some(losses) = &mut self.0 {
            if losses.get(&before).is_some_and(|loss| loss.0 == topic) {
                losses.remove(&before);
            }
            self.1 += 1;
            losses.insert(offset, (topic, self.1));
        }
    }
}

impl Arrival {
    /// Its offset.
    pub fn offset(&self) -> u64 {
        match self {
            Arrival::Kept { offset, .. }
            | Arrival::Lost { offset, .. }
            | Arrival::Doomed { offset } => *offset,
        }
    }
}

/// A reader's place in the lists.
pub struct Arrivals {
    heads: Vec<(u64, u32)>,
    lost: u64,
}

/// The next item in the order of arrival.
pub enum Arrival {
    /// A kept message.
    Kept {
        /// Its entry.
        id: u32,
        /// Its offset.
        offset: u64,
        /// The home's topic row.
        topic: u32,
        /// The number of its rule.
        rule: u8,
        /// Unix seconds.
        time_s: u32,
    },
    /// The last lost message of a topic.
    Lost {
        /// Its offset.
        offset: u64,
        /// The home's topic row.
        topic: u32,
        /// The number of the loss, see [`Log::count_losses`].
        number: u64,
    },
    /// A message of a doomed chain, which no reader gets.
    Doomed {
        /// Its offset.
        offset: u64,
    },
}

impl Log {
    /// Begins to remember losses.
    pub fn watch(&mut self) {
        self.losses.0.get_or_insert_default();
    }

    /// The number of the last loss; at least 1.
    pub fn count_losses(&mut self) -> u64 {
        self.losses.1 = self.losses.1.max(1);
        self.losses.1
    }

    /// Topics whose losses are remembered.
    pub fn losses(&self) -> usize {
        self.losses.0.as_ref().map_or(0, BTreeMap::len)
    }

    /// Counts a message that its rule does not keep as lost; `before` is the topic's last offset before it.
    #[inline]
    pub fn lose(&mut self, topic: u32, before: u64, offset: u64) {
        self.losses.add(topic, before, offset);
    }

    /// Forgets the losses of a topic that goes, with the last one at `offset`; returns the number of that loss, if
    /// there is one.
    pub fn forgive(&mut self, topic: u32, offset: u64) -> Option<u64> {
        let losses = self.losses.0.as_mut()?;
        let loss = losses.get(&offset).filter(|loss| loss.0 == topic)?.1;
        losses.remove(&offset);
        Some(loss)
    }

    /// Begins to read: each of these lists behind its own offset, losses behind `lost`.
    pub fn arrivals(&self, lists: impl Iterator<Item = (u8, u64)>, lost: u64) -> Arrivals {
        let heads = lists.filter_map(|(number, offset)| {
            let id = self.first_behind(number, offset);
            (id != NONE).then(|| (self.entries.get(id).offset, id))
        });
        Arrivals {
            heads: heads.collect(),
            lost,
        }
    }

    /// The next item, if there is one.
    pub fn next_arrival(&self, at: &mut Arrivals) -> Option<Arrival> {
        // If a message is in two lists, the first list's copy comes first.
        let kept = (0..at.heads.len()).min_by_key(|n| at.heads[*n].0);
        let lost = self.losses.0.as_ref().and_then(|losses| {
            let behind = (
                core::ops::Bound::Excluded(at.lost),
                core::ops::Bound::Unbounded,
            );
            losses.range(behind).next()
        });
        if let Some((offset, (topic, number))) = lost
            && kept.is_none_or(|n| *offset < at.heads[n].0)
        {
            at.lost = *offset;
            return Some(Arrival::Lost {
                offset: *offset,
                topic: *topic,
                number: *number,
            });
        }
        let head = &mut at.heads[kept?];
        let (offset, id) = *head;
        let entry = self.entries.get(id);
        if entry.younger == NONE {
            at.heads.remove(kept?);
        } else {
            *head = (self.entries.get(entry.younger).offset, entry.younger);
        }
        let chain = self.chains.get(entry.chain);
        if chain.topic == DOOMED {
            return Some(Arrival::Doomed { offset });
        }
        Some(Arrival::Kept {
            id,
            offset,
            topic: chain.topic,
            rule: chain.rule,
            time_s: entry.time_s,
        })
    }

    /// The first entry of a rule behind an offset.
    pub(super) fn first_behind(&self, number: u8, offset: u64) -> u32 {
        let ages = &self.ages[number as usize];
        if ages.youngest == NONE || self.entries.get(ages.youngest).offset <= offset {
            return NONE;
        }
        let mut id = ages.marks.before(offset).unwrap_or(ages.oldest);
        self.steps.add(1);
        while self.entries.get(id).offset <= offset {
            self.steps.add(1);
            id = self.entries.get(id).younger;
        }
        id
    }

    /// The offset behind which to read all messages that came after this second.
    pub fn arrived_by(&self, time_s: u32) -> u64 {
        let lists = 0..self.ages.len() as u8;
        let all = lists.map(|number| self.arrived(number, time_s));
        all.max().unwrap_or(0)
    }

    /// The offset of the last entry of a rule that came by this second, or 0. If the clock was set back, there may be
    /// several candidates, and it is one of them.
    pub(super) fn arrived(&self, number: u8, time_s: u32) -> u64 {
        let ages = &self.ages[number as usize];
        let came = |id: u32| self.entries.get(id).time_s <= time_s;
        let marks = ages.marks.all.partition_point(|mark| came(mark.1));
        let mut last = 0;
        let mut id = match marks.checked_sub(1) {
            Some(mark) => ages.marks.all[mark].1,
            None => ages.oldest,
        };
        self.steps.add(1);
        while id != NONE && came(id) {
            self.steps.add(1);
            let entry = self.entries.get(id);
            (last, id) = (entry.offset, entry.younger);
        }
        last
    }

    /// Bytes of a message.
    pub fn bytes_of(&self, id: u32) -> usize {
        self.entries.get(id).bytes()
    }

    /// Copies a message.
    pub fn copy(&self, id: u32, frames: &mut Frames) -> Record {
        let entry = self.entries.get(id);
        self.steps.add_bytes(entry.bytes());
        self.record(id, entry.previous, frames)
    }
}
