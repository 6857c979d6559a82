//! The state that all shards of a process share.

use crate::base::ids::ShardId;
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::budget::admission::Admission;

/// The state that all shards of a process share, read-only but for the counters of `admission`.
#[derive(Debug)]
pub struct World {
    /// The operator's settings.
    pub settings: Settings,
    /// The rules, with the default one.
    pub rules: Rules,
    /// The number of shards.
    pub shards: ShardId,
    /// The number of homes: the first shards, which keep topics.
    pub homes: ShardId,
    /// The epoch of the logs.
    pub epoch: u32,
    /// Seed of the hash of topic names, against floods of collisions.
    pub seed: u64,
    /// The counts of all shards together.
    pub admission: Admission,
}
