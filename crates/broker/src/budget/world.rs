//! The state that all shards of a process share.

use crate::base::ids::{PartitionId, ShardId};
use crate::base::placement::Placement;
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::budget::admission::Admission;

/// The source of records' offsets and seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offsets {
    /// The one process that writes.
    #[default]
    ByWriter,
    /// The log, which other processes write, too: a cluster.
    ByLog,
}

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
    /// The number of partitions of the topics and sessions.
    pub partitions: PartitionId,
    /// The epoch of the logs.
    pub epoch: u32,
    /// The number of this process among the writers of its engine's log. Without an engine (none) homes apply at once what they write.
    pub writer: Option<u64>,
    /// The source of records' offsets.
    pub offsets: Offsets,
    /// Seed of the hash of topic names, against floods of collisions.
    pub seed: u64,
    /// The counts of all shards together.
    pub admission: Admission,
}

impl World {
    /// Where topics and sessions are kept.
    pub fn placement(&self) -> Placement {
        Placement::new(self.partitions, self.homes)
    }

    /// Whether homes append what they write to the log of an engine, and apply it once it is committed.
    #[inline]
    pub fn appends(&self) -> bool {
        self.writer.is_some()
    }

    /// Whether other processes write to the engine's log, too: this one is a node of a cluster.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.offsets == Offsets::ByLog
    }
}

#[cfg(test)]
impl World {
    /// With these settings, for tests: all shards are homes.
    pub(crate) fn for_tests(settings: Settings, shards: ShardId) -> alloc::sync::Arc<World> {
        alloc::sync::Arc::new(World {
            rules: Rules::new(&settings.rules),
            admission: Admission::new(&settings, 9),
            settings,
            shards,
            homes: shards,
            partitions: shards,
            epoch: 7,
            writer: None,
            offsets: Offsets::ByWriter,
            seed: 42,
        })
    }
}
