//! Counts the QoS 1 and 2 subscriptions of each topic and each filter. Messages for these subscriptions are kept, whatever the topic's rule
//! says.
//!
//! The table never refuses a subscription, since no client could be told. The trie of filters has room for a limited number of shapes (sets of levels
//! that are `+`, see `crate::filters`). If it has no room for a filter, the messages for a wider filter are kept instead.
//!
//! Invariant: a topic or filter is listed exactly while it has a QoS 1 or 2 subscription. A filter is either in `filters` or in `overflow_filters`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::snapshot::{Block, kind};
use crate::base::work::Steps;
use crate::filters::{FREE_WILDCARDS, Filters, LEVELS_MAX, NO_PARTY};

/// Bytes of a tree entry of a topic.
const TOPIC_BYTES: usize = 16;
/// Bytes of a tree entry of `overflow_filters`; nodes may be half full.
const OVERFLOW_ENTRY_BYTES: usize = 2 * size_of::<(Box<[u8]>, u32)>();
/// In a snapshot, `overflow_filters` are numbered after the rows of `filters`.
const OVERFLOW_START: u64 = 1 << 32;

/// The counts of one home (the part of a shard that keeps topics).
pub(super) struct QosSubscriptions {
    /// By topic row: the count.
    topics: BTreeMap<u32, u32>,
    /// Filters with their counts. The value of a filter is its count minus 1; a filter that was just added has the value `NONE`.
    filters: Filters,
    /// Filters for which `filters` has no room, with their counts.
    overflow_filters: BTreeMap<Box<[u8]>, u32>,
    /// Bytes of the texts of `overflow_filters`.
    overflow_text_bytes: usize,
    /// The wider filters that replace those in `overflow_filters`. The value of a wider filter is the number of filters that it replaces, minus 1.
    wider_filters: Filters,
    /// The sum of all counts.
    subscription_count: u32,
}

/// Bytes that a filter takes if there is no other subscription with the same filter.
pub(crate) fn bytes_alone(filter: &[u8]) -> usize {
    let levels = filter.split(|b| *b == b'/');
    let other = match levels.filter(|level| *level == b"+").count() {
        count if count > FREE_WILDCARDS as usize => OVERFLOW_ENTRY_BYTES + filter.len(),
        _ => 0,
    };
    Filters::bytes_alone(filter) + other
}

/// A wider filter than `filter`, which has so few levels and so few `+` that the trie always has room for it.
fn widen(filter: &[u8]) -> Vec<u8> {
    let mut plus_count = 0;
    let levels = filter.split(|b| *b == b'/').take(LEVELS_MAX - 1);
    let kept_levels = levels.take_while(|level| {
        plus_count += u32::from(*level == b"+");
        plus_count <= FREE_WILDCARDS
    });
    let mut levels: Vec<&[u8]> = kept_levels.collect();
    levels.push(b"#");
    levels.join(&b'/')
}

impl QosSubscriptions {
    pub fn new(seed: u64, steps: &Steps) -> QosSubscriptions {
        QosSubscriptions {
            topics: BTreeMap::new(),
            filters: Filters::new(seed, steps),
            overflow_filters: BTreeMap::new(),
            overflow_text_bytes: 0,
            wider_filters: Filters::new(seed, steps),
            subscription_count: 0,
        }
    }

    pub fn len(&self) -> u32 {
        self.subscription_count
    }

    pub fn bytes(&self) -> usize {
        let others = self.overflow_filters.len() * OVERFLOW_ENTRY_BYTES + self.overflow_text_bytes;
        self.topics.len() * TOPIC_BYTES + self.filters.bytes() + others + self.wider_filters.bytes()
    }

    pub fn filter_count(&self) -> u32 {
        self.filters.len() + self.overflow_filters.len() as u32
    }

    /// Whether the messages of this topic are kept for a filter that matches it.
    pub fn has_match(&self, name: &[u8]) -> bool {
        self.filters.has_match(name) || self.wider_filters.has_match(name)
    }

    /// See [`Filters::prefetch`].
    pub fn prefetch<'a>(&self, topics: impl Iterator<Item = &'a [u8]> + Clone) {
        self.filters.prefetch(topics.clone());
        self.wider_filters.prefetch(topics);
    }

    /// The number of subscriptions to a topic.
    pub fn count_of_topic(&self, topic: u32) -> u32 {
        self.topics.get(&topic).copied().unwrap_or(0)
    }

    /// Adds `count` subscriptions to a topic.
    pub fn add_topic(&mut self, topic: u32, count: u32) {
        *self.topics.entry(topic).or_default() += count;
        self.subscription_count += count;
    }

    /// Removes a subscription to a topic; returns whether it was the last.
    pub fn remove_topic(&mut self, topic: u32) -> bool {
        let Some(count) = self.topics.get_mut(&topic) else {
            return false;
        };
        *count -= 1;
        self.subscription_count -= 1;
        if *count > 0 {
            return false;
        }
        self.topics.remove(&topic);
        true
    }

    /// The count of a filter.
    fn count_of_filter(&self, filter: &[u8]) -> u32 {
        let row = self.filters.find(filter);
        let count = row.map(|row| self.filters.value(row).wrapping_add(1));
        let other = || self.overflow_filters.get(filter).copied();
        count.or_else(other).unwrap_or(0)
    }

    /// Changes the count of a filter from `old_count` to `count`, which is at least 1.
    fn set_count(&mut self, filter: &[u8], old_count: u32, count: u32) {
        self.subscription_count = self.subscription_count + count - old_count;
        if let Some(before) = self.overflow_filters.get_mut(filter) {
            *before = count;
        } else if let Ok(row) = self.filters.open(filter, NO_PARTY) {
            self.filters.set_value(row, count - 1);
        } else {
            self.overflow_filters.insert(filter.into(), count);
            self.overflow_text_bytes += filter.len();
            let wider = self.wider_filters.open(&widen(filter), NO_PARTY);
            let row = wider.expect("it has few levels and few wildcards");
            let others = self.wider_filters.value(row).wrapping_add(1);
            self.wider_filters.set_value(row, others);
        }
    }

    /// Removes a filter that has no subscriptions left.
    fn drop_filter(&mut self, filter: &[u8]) {
        let (filters, filter) = match self.overflow_filters.remove(filter) {
            None => (&mut self.filters, filter.into()),
            Some(_) => {
                self.overflow_text_bytes -= filter.len();
                (&mut self.wider_filters, widen(filter))
            }
        };
        let Some(row) = filters.find(&filter) else {
            return;
        };
        match filters.value(row) {
            0 => filters.close(row),
            count => filters.set_value(row, count - 1),
        }
    }

    /// Adds a subscription to a filter.
    pub fn add_filter(&mut self, filter: &[u8]) {
        let old_count = self.count_of_filter(filter);
        self.set_count(filter, old_count, old_count + 1);
    }

    /// Restores a filter's count. Each home of the snapshot has the same count, so counts are not added up.
    pub fn restore_filter(&mut self, filter: &[u8], count: u32) {
        let old_count = self.count_of_filter(filter);
        self.set_count(filter, old_count, old_count.max(count).max(1));
    }

    /// Removes a subscription to a filter; returns whether there was one.
    pub fn remove_filter(&mut self, filter: &[u8]) -> bool {
        match self.count_of_filter(filter) {
            0 => return false,
            1 => {
                self.subscription_count -= 1;
                self.drop_filter(filter);
            }
            count => self.set_count(filter, count, count - 1),
        }
        true
    }

    /// Writes the filters from the cursor `from` on; returns where to continue, if any are left.
    pub fn save_filters(&self, from: u64, block: &mut Block<'_>) -> Option<u64> {
        if from < OVERFLOW_START
            && let Some(row) = self.save_rows(from as u32, block)
        {
            return Some(u64::from(row));
        }
        let saved_count = from.saturating_sub(OVERFLOW_START);
        for (n, (filter, count)) in self
            .overflow_filters
            .iter()
            .enumerate()
            .skip(saved_count as usize)
        {
            if block.is_full() {
                return Some(OVERFLOW_START + n as u64);
            }
            let mut out = block.record(kind::FILTER);
            out.number(u64::from(*count));
            out.field(filter);
        }
        None
    }

    fn save_rows(&self, mut from: u32, block: &mut Block<'_>) -> Option<u32> {
        while let Some(row) = self.filters.next_open(from) {
            if block.is_full() {
                return Some(row);
            }
            let mut out = block.record(kind::FILTER);
            out.number(u64::from(self.filters.value(row)) + 1);
            out.field(&self.filters.name(row));
            from = row + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn messages_are_kept_until_the_last_subscription_ends() {
        let mut qos = QosSubscriptions::new(7, &Steps::default());
        qos.add_topic(3, 2);
        qos.add_filter(b"a/+");
        qos.add_filter(b"a/+");
        assert_eq!((qos.len(), qos.count_of_topic(3)), (4, 2));
        assert!(!qos.remove_topic(3) && qos.remove_topic(3));
        assert!(!qos.remove_topic(3));
        assert!(qos.remove_filter(b"a/+"));
        assert!(qos.has_match(b"a/b"));
        assert!(qos.remove_filter(b"a/+") && !qos.remove_filter(b"a/+"));
        assert!(!qos.has_match(b"a/b"));
        assert_eq!(qos.len(), 0);
    }
    /// Filters with `+` at three or more levels. Each has another shape, the set of levels that are `+`.
    fn shapes(count: usize) -> Vec<String> {
        let shapes = (0_u32..1 << 12).filter(|shape| shape.count_ones() > 2);
        let level = |shape: u32, n: u32| if shape >> n & 1 == 1 { "+" } else { "x" };
        let text = |shape| (0..12).map(|n| level(shape, n)).collect::<Vec<_>>();
        shapes
            .map(|shape| text(shape).join("/"))
            .take(count)
            .collect()
    }

    #[test]
    fn every_filter_keeps_its_messages_however_many_shapes_there_are() {
        let mut qos = QosSubscriptions::new(7, &Steps::default());
        let all = shapes(600);
        let topic = |filter: &str| filter.replace('+', "y").into_bytes();
        for filter in all.iter().chain(all.iter().rev()) {
            qos.add_filter(filter.as_bytes());
        }
        assert_eq!(qos.len(), 1200);
        for filter in &all {
            assert!(qos.remove_filter(filter.as_bytes()));
            assert!(qos.has_match(&topic(filter)), "{filter}");
        }
        for filter in &all {
            assert!(qos.has_match(&topic(filter)), "{filter}");
            assert!(qos.remove_filter(filter.as_bytes()));
            assert!(!qos.remove_filter(filter.as_bytes()));
        }
        assert_eq!((qos.len(), qos.bytes()), (0, 0));
    }

    #[test]
    fn topic_with_many_levels_is_counted_like_any_other() {
        let mut qos = QosSubscriptions::new(7, &Steps::default());
        let deep = "x/".repeat(30) + "y";
        qos.add_filter(deep.as_bytes());
        assert!(qos.has_match(deep.as_bytes()));
        assert!(qos.remove_filter(deep.as_bytes()));
        assert!(!qos.has_match(deep.as_bytes()));
    }
}
