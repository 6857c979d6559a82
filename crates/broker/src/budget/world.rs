//! The world: the state that all shards of a process share.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::placement::Placement;
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::budget::admission::Admission;

/// Whether this process or a log assigns the offsets and times of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offsets {
    /// This process, which is the only writer of its log.
    #[default]
    ByWriter,
    /// The log of a cluster, to which several processes write.
    ByLog,
}

/// The state that all shards of a process share. Read-only, except the counters of `admission`.
#[derive(Debug)]
pub struct World {
    /// The operator's settings.
    pub settings: Settings,
    /// The rules, including the built-in ones.
    pub rules: Rules,
    /// The number of shards.
    pub shards: ShardId,
    /// The number of homes (parts of shards that keep topics). The first shards are homes.
    pub homes: ShardId,
    /// The number of partitions.
    pub partitions: PartitionId,
    /// The epoch of the logs, which identifies the present start of the server (`base/lives.rs`).
    pub epoch: u32,
    /// Identifies this process among the writers of the engine's log. `None` without an engine: then homes apply writes at once.
    pub writer: Option<u64>,
    /// Who assigns the offsets of records.
    pub offsets: Offsets,
    /// The seed of the hashes of names, against collision attacks.
    pub seed: u64,
    /// The limits and counters that all shards share.
    pub admission: Admission,
}

impl World {
    /// The number of this process in the ids of its clients. All nodes of a cluster have the same epoch, but each has another writer number.
    pub fn process_number(&self) -> u32 {
        self.process_number_of(self.writer.unwrap_or_default())
    }

    /// The same number of the process that began with this writer number.
    pub fn process_number_of(&self, writer: u64) -> u32 {
        self.epoch ^ writer as u32 ^ (writer >> 32) as u32
    }

    /// The hash of the name of a topic, a filter or a session: keyed, so that nobody can choose names with the same hash.
    #[inline]
    pub fn hash_of(&self, name: &[u8]) -> u32 {
        xxh3_64_with_seed(name, self.seed) as u32
    }

    /// The placement of topics and sessions.
    pub fn placement(&self) -> Placement {
        Placement::new(self.partitions, self.homes)
    }

    /// Whether there is an engine. Then homes append records to its log, and apply them once they are committed.
    #[inline]
    pub fn appends(&self) -> bool {
        self.writer.is_some()
    }

    /// Whether this process is a node of a cluster, whose nodes write to the same log.
    #[inline]
    pub fn is_replicated(&self) -> bool {
        self.offsets == Offsets::ByLog
    }

    /// Whether the log has records of MQTT sessions, so that a process that reads the log restores them.
    pub fn recovers_sessions(&self) -> bool {
        self.settings.mqtt.durable_sessions
    }

    /// Whether this process is a node of a cluster that has MQTT sessions: then each node has all of them.
    pub fn replicates_sessions(&self) -> bool {
        self.is_replicated() && self.recovers_sessions()
    }

    /// Whether an MQTT session can outlive its connection.
    pub fn keeps_sessions(&self) -> bool {
        self.recovers_sessions() || !self.is_replicated()
    }

    /// Whether homes append records of MQTT sessions to the log.
    pub fn records_sessions(&self) -> bool {
        self.appends() && self.recovers_sessions()
    }
}

#[cfg(test)]
impl World {
    /// A world for tests, in which all shards are homes.
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
