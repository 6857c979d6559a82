//! The table of a home's topics: a row for each, its name, and the carriers with subscribers of it; the topics that nobody uses, in the order in
//! which they may be forgotten.
//!
//! Invariants: a row that is in use stands in the index, and has a name; rows never move. Deliberately not here: the logs of topics
//! ([`Logs`](super::logs::Logs)), which a method that needs them is given.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::carriers::Carriers;
use super::idle_topics::IdleTopics;
use super::planned_rules::PlannedRules;
use super::reservations::Reservations;
use super::topic_row::TopicRow;
use crate::base::work::Steps;
use crate::budget::admission::Admission;
use crate::budget::admission::shares::Holders;
use crate::store::index::Index;
use crate::store::names::Names;
use crate::store::slab::Slab;

/// The topics.
pub(crate) struct TopicTable {
    pub(super) rows: Slab<TopicRow>,
    pub(super) index: Index,
    pub(super) names: Names,
    pub(super) carriers: Carriers,
    pub(super) idle_topics: IdleTopics,
    /// Present while a change of the rules is prepared.
    pub(super) planned_rules: Option<PlannedRules>,
    /// How many there may be.
    pub(super) topics_max: usize,
    /// The clients that made the topics of the table's second half.
    pub(super) makers: Holders,
    /// Topics that records under way are about.
    pub(super) reservations: Reservations,
    pub(super) admission: Admission,
    pub(super) steps: Steps,
    /// It keys the hashes of names.
    pub(super) seed: u64,
}

impl TopicTable {
    /// None yet, and at most `topics_max`; `rules` is the number of rules.
    pub(super) fn new(
        topics_max: usize,
        rules: usize,
        admission: Admission,
        steps: &Steps,
        seed: u64,
    ) -> TopicTable {
        TopicTable {
            rows: Slab::default(),
            index: Index::default(),
            names: FilterNames::default(),
            carriers: Carriers::default(),
            idle_topics: IdleTopics::new(rules),
            planned_rules: None,
            topics_max,
            makers: Holders::default(),
            reservations: Reservations::default(),
            admission,
            steps: steps.clone(),
            seed,
        }
    }
}

impl TopicTable {
    /// The keyed hash of a name.
    pub(super) fn hash_of(&self, name: &[u8]) -> u32 {
        xxh3_64_with_seed(name, self.seed) as u32
    }

    pub(super) fn find(&self, hash: u32, name: &[u8]) -> Option<u32> {
        self.index
            .find(&self.rows, hash, |row| self.names.get(row.name) == name)
    }
}
