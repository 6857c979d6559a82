//! Counts the subscribers of topics, finds the recipients of a message, and sends it to their carriers, the shards with subscribers.

#[cfg(test)]
mod tests;

use super::Home;
use super::carriers::Carrier;
use super::topic_row::HAS_QOS_SUBSCRIPTION;
use super::topics::TopicTable;
use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::filters::matching::Matching;
use crate::mail::lanes::Lanes;
use crate::mail::{Record, Tell};
use crate::store::slab::NONE;

/// The recipients of a message.
pub(super) struct Recipients {
    /// Whether carriers have subscribers of the message's topic.
    has_carriers: bool,
    /// The number of shards with a matching filter.
    pub matching_shards: u32,
    /// Whether groups with a matching filter exist.
    pub has_groups: bool,
    /// Whether the message must be kept for a session or group, whatever the topic's rule says.
    pub needs_log: bool,
}

impl Recipients {
    pub fn is_empty(&self) -> bool {
        !self.has_carriers && self.matching_shards == 0 && !self.has_groups
    }
}

impl Home {
    /// Counts a subscriber at a carrier.
    pub(super) fn add_subscriber(&mut self, id: u32, carrier: Carrier) {
        self.topics.carriers.attaches += 1;
        let is_first = self
            .topics
            .carriers
            .add_subscriber(self.topics.rows.get_mut(id), carrier);
        if is_first && !self.interest.followers.is_empty() {
            self.begin_interest(id);
        }
    }

    /// Removes a subscriber at a carrier.
    pub(crate) fn remove_subscriber(
        &mut self,
        from: ShardId,
        hash: u32,
        carrier_row: u32,
        serial: u16,
        now: Now,
    ) {
        let carriers = &self.topics.carriers;
        let topic_id = self
            .topics
            .index
            .find(&self.topics.rows, hash, |row| {
                carriers.has(row, from, carrier_row, serial)
            })
            .expect("a subscriber that leaves was counted when it came");
        let row = self.topics.rows.get_mut(topic_id);
        row.last_used_s = now.unix_s;
        self.topics.carriers.detaches += 1;
        self.topics
            .carriers
            .remove_subscriber(row, from, carrier_row, serial);
        if row.carrier == NONE && !self.interest.followers.is_empty() {
            self.end_interest(topic_id, now);
        }
        self.queue_if_idle(topic_id, now);
    }

    /// Whether a topic has a subscriber: by name, by filter, or as a member of a group.
    pub(crate) fn has_any_subscriber(
        &mut self,
        hash: u32,
        name: &[u8],
        local_filters: &Matching,
    ) -> bool {
        let has_subscriber = self
            .topics
            .find(hash, name)
            .is_some_and(|id| self.topics.rows.get(id).carrier != NONE);
        has_subscriber
            || local_filters.has_match(name)
            || self.subscriptions.filters.find_matching(name) > 0
            || self.subscriptions.groups.find_due(name)
    }

    pub(super) fn find_subscribers(
        &mut self,
        id: u32,
        name: &[u8],
        local_filters: &Matching,
        own_shard: ShardId,
    ) -> Recipients {
        let matching_shards =
            self.subscriptions
                .filters
                .find_matching_with_local(name, local_filters, own_shard);
        let has_groups =
            !self.subscriptions.groups.is_empty() && self.subscriptions.groups.find_due(name);
        let row = self.topics.rows.get(id);
        Recipients {
            has_carriers: row.carrier != NONE,
            matching_shards,
            has_groups,
            needs_log: row.has(HAS_QOS_SUBSCRIPTION)
                || has_groups
                || self.subscriptions.qos.has_match(name),
        }
    }

    pub(super) fn send_to_subscribers(
        &mut self,
        id: u32,
        name: &[u8],
        record: Record,
        recipients: &Recipients,
        lanes: &mut Lanes,
    ) {
        if recipients.has_groups {
            self.give_to_groups(self.topic_partition_index(id), name, record, lanes);
        }
        if recipients.matching_shards > 0 {
            return self.send_to_matching_shards(id, name, record, lanes);
        }
        self.topics.for_each_carrier(id, |carrier| {
            let tell = Tell::Live {
                topic: carrier.carrier_row,
                serial: carrier.serial,
                record,
            };
            lanes.tell(carrier.shard, tell);
        });
    }

    /// Sends the message to each shard with subscribers of the topic or of a matching filter.
    fn send_to_matching_shards(&mut self, id: u32, name: &[u8], record: Record, lanes: &mut Lanes) {
        let mut shards_left = self.subscriptions.filters.take_matching();
        let partition = self
            .logs
            .placement
            .partition_of_slot(self.topics.rows.get(id).slot());
        let name = lanes.frames().push_name(name);
        self.topics.for_each_carrier(id, |carrier: &Carrier| {
            let (carrier_row, serial) = (carrier.carrier_row, carrier.serial);
            // A shard with both kinds of subscribers gets the message once, and finds all of them.
            let tell = match shards_left.iter().position(|shard| *shard == carrier.shard) {
                Some(index) => {
                    shards_left.swap_remove(index);
                    Tell::Match {
                        topic: carrier_row,
                        serial,
                        partition,
                        name,
                        record,
                    }
                }
                None => Tell::Live {
                    topic: carrier_row,
                    serial,
                    record,
                },
            };
            lanes.tell(carrier.shard, tell);
        });
        for shard in shards_left.drain(..) {
            let tell = Tell::Match {
                topic: NONE,
                serial: 0,
                partition,
                name,
                record,
            };
            lanes.tell(shard, tell);
        }
        self.subscriptions.filters.return_list(shards_left);
    }
}

impl TopicTable {
    pub(super) fn for_each_carrier(&self, id: u32, visit: impl FnMut(&Carrier)) {
        self.carriers.for_each(self.rows.get(id), visit);
    }

    pub(super) fn subscriber_count(&self, id: u32) -> u32 {
        self.carriers.subscribers(self.rows.get(id))
    }
}
