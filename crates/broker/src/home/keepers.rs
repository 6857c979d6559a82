//! Subscriptions that need messages kept, whatever the rules say: how many there are of each topic and of each filter.
//!
//! Invariant: a topic or a filter stands in here exactly while there is such a subscription to it.

use alloc::collections::BTreeMap;

use crate::base::snapshot::{Block, kind};
use crate::base::work::Steps;
use crate::filters::{Filters, NO_PARTY};

/// An entry of the tree of topics.
const TOPIC_BYTES: usize = 16;

/// The subscriptions of a home's topics.
pub(super) struct Keepers {
    /// By topic.
    topics: BTreeMap<u32, u32>,
    /// A filter's value is one less than its count; that of a new one is `NONE`.
    filters: Filters,
}

impl Keepers {
    pub fn new(seed: u64, steps: &Steps) -> Keepers {
        Keepers {
            topics: BTreeMap::new(),
            filters: Filters::new(seed, steps),
        }
    }

    /// Topics and filters.
    pub fn len(&self) -> u32 {
        self.topics.len() as u32 + self.filters.len()
    }

    /// Bytes of both.
    pub fn bytes(&self) -> usize {
        self.topics.len() * TOPIC_BYTES + self.filters.bytes()
    }

    pub fn filters(&self) -> u32 {
        self.filters.len()
    }

    /// Whether a filter of a subscription matches the topic.
    pub fn has_match(&self, name: &[u8]) -> bool {
        self.filters.has_match(name)
    }

    /// See [`Filters::warm`].
    pub fn warm<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        self.filters.warm(topics);
    }

    /// The subscriptions to a topic.
    pub fn of_topic(&self, topic: u32) -> u32 {
        self.topics.get(&topic).copied().unwrap_or(0)
    }

    /// So many subscriptions more to a topic.
    pub fn add_topic(&mut self, topic: u32, count: u32) {
        *self.topics.entry(topic).or_default() += count;
    }

    /// One subscription less to a topic; says whether it was the last.
    pub fn remove_topic(&mut self, topic: u32) -> bool {
        let Some(count) = self.topics.get_mut(&topic) else {
            return false;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.topics.remove(&topic);
        true
    }

    /// One subscription more to a filter.
    pub fn add_filter(&mut self, filter: &[u8]) {
        if let Ok(row) = self.filters.open(filter, NO_PARTY) {
            let count = self.filters.value(row).wrapping_add(1);
            self.filters.set_value(row, count);
        }
    }

    /// Restores a filter with its subscriptions, which each home counted alike.
    pub fn restore_filter(&mut self, filter: &[u8], count: u32) {
        if let Ok(row) = self.filters.open(filter, NO_PARTY) {
            let before = self.filters.value(row).wrapping_add(1);
            self.filters
                .set_value(row, count.max(before).saturating_sub(1));
        }
    }

    /// One subscription less to a filter; says whether there was one.
    pub fn remove_filter(&mut self, filter: &[u8]) -> bool {
        let Some(row) = self.filters.find(filter) else {
            return false;
        };
        match self.filters.value(row) {
            0 => self.filters.close(row),
            count => self.filters.set_value(row, count - 1),
        }
        true
    }

    /// Writes the filters from this row on; returns where to go on.
    pub fn save_filters(&self, from: u64, block: &mut Block<'_>) -> Option<u64> {
        let mut from = from as u32;
        while let Some(row) = self.filters.next_open(from) {
            if block.is_full() {
                return Some(u64::from(row));
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

    #[test]
    fn what_is_kept_for_goes_with_the_last_subscription() {
        let mut keepers = Keepers::new(7, &Steps::default());
        keepers.add_topic(3, 2);
        keepers.add_filter(b"a/+");
        keepers.add_filter(b"a/+");
        assert_eq!((keepers.len(), keepers.of_topic(3)), (2, 2));
        assert!(!keepers.remove_topic(3) && keepers.remove_topic(3));
        assert!(!keepers.remove_topic(3));
        assert!(keepers.remove_filter(b"a/+"));
        assert!(keepers.has_match(b"a/b"));
        assert!(keepers.remove_filter(b"a/+") && !keepers.remove_filter(b"a/+"));
        assert!(!keepers.has_match(b"a/b"));
        assert_eq!(keepers.len(), 0);
    }
}
