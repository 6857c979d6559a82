//! Reservations for records in flight to the engine, which writes the log. A home (the part of a shard that keeps topics) does not forget a topic while
//! one of its records is in flight. If the record will create the topic, room for the topic is reserved. A topic is identified by the hash of its name.

use alloc::collections::BTreeMap;

use crate::budget::admission::Client;

/// The reservation for a record in flight: its topic, bytes and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// The hash of the topic's name.
    pub topic_hash: u32,
    /// The client that is charged.
    pub client: Client,
    /// The bytes of the message if it will be kept, otherwise 0.
    pub kept_bytes: usize,
    /// The group of the message's idempotency key.
    pub key_group: Option<u8>,
}

/// The records in flight for one topic.
#[derive(Default)]
struct RecordsOfTopic {
    count: u32,
    /// Whether room for the topic is reserved, because it does not exist yet.
    creates_topic: bool,
}

/// The topics of records in flight.
#[derive(Default)]
pub(super) struct Reservations {
    topics: BTreeMap<u32, RecordsOfTopic>,
    topics_to_create: usize,
}

impl Reservations {
    /// The number of topics for which room is reserved.
    #[inline]
    pub fn topics_to_create(&self) -> usize {
        self.topics_to_create
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Whether a record of the topic is in flight.
    #[inline]
    pub fn has(&self, hash: u32) -> bool {
        !self.topics.is_empty() && self.topics.contains_key(&hash)
    }

    /// Whether room is reserved for the topic.
    pub fn has_room_for(&self, hash: u32) -> bool {
        self.topics_to_create > 0
            && self
                .topics
                .get(&hash)
                .is_some_and(|records| records.creates_topic)
    }

    /// Adds a record. `creates_topic`: the record will create the topic.
    pub fn add(&mut self, hash: u32, creates_topic: bool) {
        let records = self.topics.entry(hash).or_default();
        records.count += 1;
        self.topics_to_create += usize::from(creates_topic && !records.creates_topic);
        records.creates_topic |= creates_topic;
    }

    /// Releases the room that was reserved for a topic, because the topic was created.
    pub fn release_created(&mut self, hash: u32) {
        if self.topics_to_create > 0
            && let Some(records) = self.topics.get_mut(&hash)
        {
            self.topics_to_create -= usize::from(core::mem::take(&mut records.creates_topic));
        }
    }

    /// Removes a record; returns whether it was the last one of its topic.
    pub fn remove(&mut self, hash: u32) -> bool {
        let Some(records) = self.topics.get_mut(&hash) else {
            return false;
        };
        records.count -= 1;
        let is_last = records.count == 0;
        if is_last {
            self.topics_to_create -= usize::from(records.creates_topic);
            self.topics.remove(&hash);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_reserved_once_for_each_topic_until_its_last_record() {
        let mut reservations = Reservations::default();
        reservations.add(1, false);
        assert!(reservations.has(1) && !reservations.has_room_for(1) && !reservations.has(2));
        assert_eq!(reservations.topics_to_create(), 0);
        reservations.add(1, true);
        reservations.add(1, true);
        reservations.add(2, true);
        assert!(reservations.has_room_for(1) && reservations.has_room_for(2));
        assert_eq!(reservations.topics_to_create(), 2);
        assert!(!reservations.remove(1) && !reservations.remove(1));
        assert_eq!(
            (
                reservations.topics_to_create(),
                reservations.has_room_for(1)
            ),
            (2, true)
        );
        reservations.release_created(3);
        reservations.release_created(1);
        assert_eq!(
            (
                reservations.topics_to_create(),
                reservations.has_room_for(1)
            ),
            (1, false)
        );
        assert!(reservations.has(1) && reservations.remove(1) && !reservations.has(1));
        assert!(reservations.remove(2) && !reservations.remove(2));
        assert_eq!(reservations.topics_to_create(), 0);
    }
}
