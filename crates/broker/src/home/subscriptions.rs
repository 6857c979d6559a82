//! The subscriptions of a home that stand in no topic's row: those of shards by filter, those of groups, and those that need messages kept.

use super::groups::Groups;
use super::qos_subscriptions::QosSubscriptions;
use super::shard_filters::ShardFilters;
use crate::base::work::Steps;

/// All of them.
pub(crate) struct Subscriptions {
    /// Filters that other shards have subscribers of.
    pub(super) filters: ShardFilters,
    /// Shared subscriptions.
    pub(super) groups: Groups,
    /// Subscriptions that need messages kept.
    pub(super) qos: QosSubscriptions,
}

impl Subscriptions {
    /// None yet, at a home with so many partitions.
    pub(super) fn new(seed: u64, partitions: usize, steps: &Steps) -> Subscriptions {
        Subscriptions {
            filters: ShardFilters::new(seed, steps),
            groups: Groups::new(seed, partitions, steps),
            qos: QosSubscriptions::new(seed, steps),
        }
    }
}
