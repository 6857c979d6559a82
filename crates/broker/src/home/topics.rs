//! The table of the topics of a home (the part of a shard that keeps topics): rows, names, shards with subscribers, and the queue of idle
//! topics.
//!
//! Invariants: a row in use has a name and is in the index; rows never move. Not here: the logs of topics
//! ([`Logs`](super::logs::Logs)).

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::carriers::Carriers;
use super::idle_topics::IdleTopics;
use super::planned_rules::PlannedRules;
use super::reservations::Reservations;
use super::topic_row::TopicRow;
use crate::budget::admission::Admission;
use crate::budget::admission::shares::Holders;
use crate::store::index::Index;
use crate::store::names::Names;
use crate::store::slab::Slab;

pub(crate) struct TopicTable {
    pub(super) rows: Slab<TopicRow>,
    pub(super) index: Index,
    pub(super) names: Names,
    pub(super) carriers: Carriers,
    pub(super) idle_topics: IdleTopics,
    /// Present while a change of the rules is prepared.
    pub(super) planned_rules: Option<PlannedRules>,
    /// The maximum number of topics of this home.
    pub(super) topics_max: usize,
    /// By row: the client that created the topic, if the table was more than half full at that time.
    pub(super) creators: Holders,
    /// The topics of records in flight.
    pub(super) reservations: Reservations,
    pub(super) admission: Admission,
    /// The key of the names' hashes.
    pub(super) seed: u64,
}

impl TopicTable {
    /// An empty table. `rules` is the number of rules.
    pub(super) fn new(
        topics_max: usize,
        rules: usize,
        admission: Admission,
        seed: u64,
    ) -> TopicTable {
        TopicTable {
            rows: Slab::default(),
            index: Index::default(),
            names: Names::default(),
            carriers: Carriers::default(),
            idle_topics: IdleTopics::new(rules),
            planned_rules: None,
            topics_max,
            creators: Holders::default(),
            reservations: Reservations::default(),
            admission,
            seed,
        }
    }

    /// The key of all hashes.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// The keyed hash of a name.
    pub(super) fn hash_of(&self, name: &[u8]) -> u32 {
        xxh3_64_with_seed(name, self.seed) as u32
    }

    pub(super) fn find(&self, hash: u32, name: &[u8]) -> Option<u32> {
        self.index
            .find(&self.rows, hash, |row| self.names.get(row.name) == name)
    }
}
