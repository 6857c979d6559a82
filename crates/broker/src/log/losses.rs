//! Remembers the last loss of each topic by its offset, so that readers by filter are told of a loss at its place in the order of arrival. Each loss
//! gets a number.
//!
//! If an engine keeps the log, earlier losses of a topic are remembered too, at most [`EARLIER_MAX`]. The reason: nodes drop messages at different
//! moments, so a reader may move to a node that still has messages which the first node has dropped. The same happens if a process reads the log
//! after a crash. If the reader's position is between two lost messages of a topic, the second process does not report the earlier loss. So the first
//! process must report each loss before any later message.
//!
//! Invariant: from the first reader by filter on, this table contains the last loss of each topic, except losses that the home (the part of a shard
//! that keeps topics) has removed ([`Losses::pop_first`]) to limit the table.

use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::collections::vec_deque::VecDeque;
use core::ops::Bound;

use crate::base::tally::Tally;

/// The approximate bytes of a topic's loss in the tree. New offsets are always the highest, so the leaves are half full.
pub const LOSS_BYTES: usize = 52;

/// The maximum number of earlier losses that a log remembers.
const EARLIER_MAX: usize = 1024;

/// The losses of a log's topics.
#[derive(Default)]
pub struct Losses {
    /// Topic and number of each loss, by offset; absent before the first reader by filter.
    last_by_offset: Option<BTreeMap<u64, (u32, u64)>>,
    /// The losses that are no longer the last of their topics; absent without an engine.
    earlier: Option<EarlierLosses>,
    /// The number of the last loss.
    newest_number: u64,
    /// The number of topics whose losses the logs of the home remember.
    home_topics: Tally,
}

/// At most [`EARLIER_MAX`] losses: offset, topic and number, sorted by offset. Nearly each new one has the highest offset, so a queue is faster than a tree.
#[derive(Default)]
struct EarlierLosses(VecDeque<(u64, u32, u64)>);

impl EarlierLosses {
    fn insert(&mut self, offset: u64, (topic, number): (u32, u64)) {
        let index = self.index_after(offset);
        self.0.insert(index, (offset, topic, number));
        if self.0.len() > EARLIER_MAX {
            self.0.pop_front();
        }
    }

    fn next_after(&self, offset: u64) -> Option<(u64, u32, u64)> {
        self.0.get(self.index_after(offset)).copied()
    }

    /// The index of the first loss after this offset.
    fn index_after(&self, offset: u64) -> usize {
        match self.0.back() {
            Some((last, ..)) if *last > offset => self.0.partition_point(|loss| loss.0 <= offset),
            _ => self.0.len(),
        }
    }
}

impl Losses {
    /// No losses. `home_topics` counts the topics of all logs of the home.
    pub fn new(home_topics: Tally) -> Losses {
        Losses {
            home_topics,
            ..Losses::default()
        }
    }

    fn insert(&mut self, offset: u64, loss: (u32, u64)) {
        if let Some(losses) = &mut self.last_by_offset
            && losses.insert(offset, loss).is_none()
        {
            self.home_topics.add(1);
        }
    }

    fn remove(&mut self, offset: u64) -> Option<(u32, u64)> {
        let loss = self.last_by_offset.as_mut()?.remove(&offset)?;
        self.home_topics.subtract(1);
        Some(loss)
    }

    /// Begins to remember losses.
    pub fn watch(&mut self) {
        self.last_by_offset.get_or_insert_default();
    }

    /// From now on remembers earlier losses too, if losses are remembered at all.
    pub fn keep_earlier(&mut self) {
        self.earlier.get_or_insert_default();
    }

    /// Forgets all losses and begins to remember new ones, which are numbered after `count`.
    pub fn watch_from(&mut self, count: u64) {
        self.home_topics.subtract(self.topics());
        (self.last_by_offset, self.newest_number) = (Some(BTreeMap::new()), count);
        if let Some(earlier) = &mut self.earlier {
            earlier.0.clear();
        }
    }

    /// The number of the last loss; at least 1.
    pub fn watched_count(&mut self) -> u64 {
        self.newest_number = self.newest_number.max(1);
        self.newest_number
    }

    /// The number of the last loss, if losses are remembered.
    pub fn count_if_watched(&self) -> Option<u64> {
        self.last_by_offset.as_ref().map(|_| self.newest_number)
    }

    /// Topics whose losses are remembered.
    pub fn topics(&self) -> usize {
        self.last_by_offset.as_ref().map_or(0, BTreeMap::len)
    }

    /// Removes the first loss and returns its offset, topic and number.
    pub fn pop_first(&mut self) -> Option<(u64, u32, u64)> {
        let (offset, (topic, number)) = self.last_by_offset.as_mut()?.pop_first()?;
        self.home_topics.subtract(1);
        Some((offset, topic, number))
    }

    /// Records that a topic loses the message at `offset`. `before` is the last offset that the topic had lost until now.
    #[inline]
    pub fn add(&mut self, topic: u32, previous_lost: u64, offset: u64) {
        self.add_all(topic, previous_lost, offset, 1);
    }

    /// Records that a topic loses `count` messages, the last of them at `offset`. Each counts as one loss.
    #[inline]
    pub(super) fn add_all(&mut self, topic: u32, previous_lost: u64, offset: u64, count: u32) {
        if let Some(losses) = &mut self.last_by_offset {
            if let Entry::Occupied(previous) = losses.entry(previous_lost)
                && previous.get().0 == topic
            {
                let loss = previous.remove();
                self.home_topics.subtract(1);
                if let Some(earlier) = &mut self.earlier {
                    earlier.insert(previous_lost, loss);
                }
            }
            self.newest_number += u64::from(count);
            self.insert(offset, (topic, self.newest_number));
        }
    }

    /// Forgets the losses of a topic that is removed. The topic's last lost offset is `offset`. Returns the number of that loss, if it is remembered.
    pub fn forget_topic(&mut self, topic: u32, offset: u64) -> Option<u64> {
        if let Some(earlier) = &mut self.earlier {
            earlier.0.retain(|loss| loss.1 != topic);
        }
        let losses = self.last_by_offset.as_ref()?;
        losses.get(&offset).filter(|loss| loss.0 == topic)?;
        self.remove(offset).map(|(_, number)| number)
    }

    /// The first loss after this offset: offset, topic, number. With an engine, earlier losses of a topic are included.
    pub(super) fn next_after(&self, offset: u64) -> Option<(u64, u32, u64)> {
        let last = self.last_by_offset.as_ref().and_then(|losses| {
            let after = (Bound::Excluded(offset), Bound::Unbounded);
            let (offset, (topic, number)) = losses.range(after).next()?;
            Some((*offset, *topic, *number))
        });
        let earlier = self.earlier.as_ref();
        let earlier = earlier.and_then(|it| it.next_after(offset));
        [last, earlier].into_iter().flatten().min()
    }

    /// The last loss of each topic from this offset on: offset, topic, number.
    pub fn last_losses_from(&self, offset: u64) -> impl Iterator<Item = (u64, u32, u64)> {
        let all = self.last_by_offset.iter();
        let all = all.flat_map(move |losses| losses.range(offset..));
        all.map(|(offset, (topic, number))| (*offset, *topic, *number))
    }

    /// Restores a remembered loss.
    pub fn restore(&mut self, offset: u64, topic: u32, number: u64) {
        self.insert(offset, (topic, number));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn topic_has_its_last_loss_only_and_none_once_it_is_forgotten() {
        let mut losses = Losses::default();
        losses.add(1, 0, 5);
        assert_eq!(
            (losses.count_if_watched(), losses.next_after(0)),
            (None, None)
        );
        losses.watch();
        losses.add(1, 5, 6);
        losses.add(2, 0, 7);
        losses.add_all(1, 6, 9, 3);
        assert_eq!(
            losses.last_losses_from(0).collect::<Vec<_>>(),
            [(7, 2, 2), (9, 1, 5)]
        );
        assert_eq!(losses.next_after(7), Some((9, 1, 5)));
        // The loss at that offset belongs to another topic, so it stays.
        assert_eq!(losses.forget_topic(1, 7), None);
        assert_eq!(losses.forget_topic(1, 9), Some(5));
        assert_eq!((losses.topics(), losses.watched_count()), (1, 5));
        // The home's count has changed too.
        assert_eq!(losses.home_topics.get(), 1);
        losses.restore(12, 3, 6);
        assert_eq!(
            (losses.pop_first(), losses.home_topics.get()),
            (Some((7, 2, 2)), 1)
        );
        losses.watch_from(6);
        assert_eq!((losses.topics(), losses.home_topics.get()), (0, 0));
    }

    #[test]
    fn each_loss_of_a_topic_is_found_in_a_cluster_until_the_topic_goes() {
        let mut losses = Losses::default();
        losses.keep_earlier();
        losses.watch();
        losses.add(1, 0, 67);
        losses.add(1, 67, 68);
        losses.add(2, 0, 69);
        losses.add(1, 68, 70);
        let all_losses = |losses: &Losses| {
            let next =
                |last: &Option<(u64, u32, u64)>| losses.next_after(last.map_or(0, |loss| loss.0));
            let all = core::iter::successors(Some(None), |last| next(last).map(Some)).flatten();
            all.map(|(offset, topic, _)| (offset, topic))
                .collect::<Vec<_>>()
        };
        assert_eq!(all_losses(&losses), [(67, 1), (68, 1), (69, 2), (70, 1)]);
        losses.forget_topic(1, 70);
        assert_eq!(all_losses(&losses), [(69, 2)]);
        for offset in 70..80 + EARLIER_MAX as u64 {
            losses.add(2, offset - 1, offset);
        }
        assert_eq!(
            all_losses(&losses).len(),
            EARLIER_MAX + 1,
            "a bounded number"
        );
        assert_eq!(losses.topics(), 1);
    }
}
