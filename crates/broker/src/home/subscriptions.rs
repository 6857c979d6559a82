//! The subscriptions at a home (the part of a shard that keeps topics) that are not in topics' rows: filters of shards, groups, and the
//! counts of QoS 1 and 2.

use super::groups::Groups;
use super::qos_subscriptions::QosSubscriptions;
use super::shard_filters::ShardFilters;
use crate::base::work::Steps;

/// The subscriptions of one home.
pub(crate) struct Subscriptions {
    /// Filters with subscribers on other shards.
    pub(super) filters: ShardFilters,
    /// Shared subscriptions.
    pub(super) groups: Groups,
    /// Counts of the subscriptions for which messages are kept.
    pub(super) qos: QosSubscriptions,
}

impl Subscriptions {
    /// No subscriptions, at a home with this number of partitions. `has_records`: the positions of groups are recorded in the log.
    pub(super) fn new(
        seed: u64,
        partitions: usize,
        has_records: bool,
        steps: &Steps,
    ) -> Subscriptions {
        Subscriptions {
            filters: ShardFilters::new(seed, steps),
            groups: Groups::new(seed, partitions, has_records, steps),
            qos: QosSubscriptions::new(seed, steps),
        }
    }
}
