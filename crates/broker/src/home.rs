//! The home of topics: their names, positions, logs, and which carriers have subscribers.
//!
//! Invariants: a row lives while it has carriers, messages, or a position that is younger than its
//! rule allows, unless room is needed for a new topic; a row that is freed raises the floor of its slot, so
//! that a position of a forgotten topic is never believed wrongly. Live messages and pages to one
//! carrier go through one lane, in order.
//!
//! It knows no connections: it addresses a carrier by the carrier's row and that row's serial. Its parts own their data and do not know
//! the home; the files with an `impl Home` join them.

pub(crate) mod sessions;

mod admit;
mod ahead;
mod answers;
mod apply;
mod attach;
mod budget;
mod carriers;
mod change;
mod context;
mod elsewhere;
mod filters;
mod followers;
mod forgotten;
mod gaps;
mod groups;
mod idempotence;
mod idle_topics;
mod interest;
mod keepers;
mod kept;
mod operator;
mod pages;
mod partition;
mod planned_rules;
mod publish;
mod readings;
mod registered;
mod reservations;
mod retained;
mod row;
mod shadow;
mod shared;
mod sharing;
mod snapshot;
mod subscribers;
mod upkeep;
mod usage;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crore_wire::deflate::Compressor;
use crore_wire::topic;

use crate::base::ids::ShardId;
use crate::base::notices::Notices;
use crate::base::pace::Pace;
use crate::base::pace::WARMED;
use crate::base::placement::{Placement, SLOTS};
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::base::work::{FILTERS_PER_STEP, Steps};
use crate::budget::admission::shares::Holders;
use crate::budget::admission::{Admission, Client};
use crate::budget::stats::Stats;
use crate::budget::world::World;
use crate::filters::matching::Matching;
use crate::home::ahead::Ahead;
use crate::home::answers::Answers;
use crate::home::carriers::Carriers;
pub(crate) use crate::home::context::FactContext;
use crate::home::elsewhere::Elsewhere;
pub use crate::home::elsewhere::STREAMS;
use crate::home::followers::Followers;
use crate::home::groups::Groups;
use crate::home::idle_topics::IdleTopics;
use crate::home::keepers::Keepers;
use crate::home::partition::Partition;
use crate::home::planned_rules::PlannedRules;
use crate::home::readings::Readings;
use crate::home::registered::Registered;
pub use crate::home::registered::SEPARATOR;
use crate::home::reservations::Reservations;
pub(crate) use crate::home::reservations::Reserved;
use crate::home::row::HomeTopic;
use crate::log::{self, Log};
use crate::store::blobs::Names;
use crate::store::index::{Chained as _, Index};
use crate::store::slab::{NONE, Slab, Vacant as _};

/// Why a shard that is asked has a home.
pub(crate) const HERE: &str = "only homes are asked";

/// All topics of the partitions that this shard keeps.
pub struct Home {
    rows: Slab<HomeTopic>,
    index: Index,
    names: Names,
    carriers: Carriers,
    partitions: Vec<Partition>,
    /// The place in `partitions` of each slot of this home.
    places: [u8; SLOTS],
    /// By slot: the last offset of its forgotten topics.
    floors: Vec<u64>,
    placement: Placement,
    me: ShardId,
    /// Bytes that the messages of all partitions may occupy.
    log_bytes_max: usize,
    /// Bytes that they occupy at most (`budget.rs`).
    logs_bytes_most: usize,
    /// Steps of work done, those of the logs included.
    steps: Steps,
    /// Shared subscriptions.
    groups: Groups,
    /// Subscriptions that need messages kept.
    keepers: Keepers,
    /// The chain of each topic's retained message.
    retained: BTreeMap<u32, u32>,
    idle_topics: IdleTopics,
    filters: Registered,
    epoch: u32,
    /// Present while a change of the rules is prepared.
    planned_rules: Option<PlannedRules>,
    topics_max: usize,
    /// The clients that made the topics of the table's second half.
    makers: Holders,
    /// Topics that records under way are about.
    reservations: Reservations,
    /// Records under way are of this second or a later one.
    oldest_s: u32,
    admission: Admission,
    followers: Followers,
    /// Topics with interest at other nodes.
    elsewhere: Elsewhere,
    /// Pages that subscribers wait for.
    readings: Readings,
    answers: Option<Answers>,
    /// Present where the log has other writers, too.
    shared: Option<Box<Ahead>>,
    seed: u64,
    compressor: Compressor,
    compressed: Vec<u8>,
    /// How long a page is.
    pub pace: Pace,
    stats: Stats,
    notices: Notices,
}

impl Home {
    /// The home `me` of a world, without topics.
    pub(crate) fn of(world: &World, me: ShardId) -> Self {
        let mut home = Home::new(
            &world.settings,
            &world.rules,
            world.admission.clone(),
            world.epoch,
            (world.placement(), me),
            world.seed,
        );
        if world.is_shared() {
            home.share();
        }
        home
    }

    /// The home `me` without topics. `admission` counts the topics of each client; `epoch` names the life of its logs; the homes of
    /// `placement` share the budget of the logs; `seed` keys the hashes of messages and of their keys.
    pub fn new(
        settings: &Settings,
        rules: &Rules,
        admission: Admission,
        epoch: u32,
        (placement, me): (Placement, ShardId),
        seed: u64,
    ) -> Self {
        let steps = Steps::default();
        let count = placement.count_at(me);
        let partition = |_| {
            let (admission, steps) = (admission.clone(), steps.clone());
            Partition::new(rules, count, seed, admission, steps)
        };
        let homes = usize::from(placement.homes());
        let place = |slot: u8| placement.place_at_home(placement.of_slot(slot)) as u8;
        Home {
            rows: Slab::new(),
            index: Index::new(),
            names: Names::default(),
            carriers: Carriers::new(),
            partitions: (0..count).map(partition).collect(),
            places: core::array::from_fn(|slot| place(slot as u8)),
            floors: alloc::vec![0; SLOTS],
            placement,
            me,
            log_bytes_max: settings.limits.log_bytes / homes,
            logs_bytes_most: 0,
            groups: Groups::new(seed, count, &steps),
            keepers: Keepers::new(seed, &steps),
            retained: BTreeMap::new(),
            idle_topics: IdleTopics::new(rules.count()),
            filters: Registered::new(seed, &steps),
            steps,
            epoch,
            planned_rules: None,
            topics_max: settings.limits.topics_per_home(homes),
            makers: Holders::default(),
            reservations: Reservations::default(),
            oldest_s: 0,
            admission,
            followers: Followers::new(settings.interest.debounce_s),
            elsewhere: Elsewhere::default(),
            readings: Readings::default(),
            answers: None,
            shared: None,
            seed,
            compressor: Compressor::default(),
            compressed: Vec::new(),
            pace: Pace::default(),
            stats: Stats::default(),
            notices: Notices::default(),
        }
    }

    /// Whether it remembers no topic and has no subscriptions by filter or in groups.
    pub fn is_idle(&self) -> bool {
        self.rows.len() == 0 && self.filters.is_empty() && self.groups.is_empty()
    }

    /// Its counters.
    pub fn stats(&self) -> Stats {
        Stats {
            superseded: self.logs().map(|log| log.superseded).sum(),
            expired: self.logs().map(|log| log.expired).sum(),
            ..self.stats
        }
    }

    /// The keyed hash of a name.
    pub(crate) fn hash_of(&self, name: &[u8]) -> u32 {
        xxh3_64_with_seed(name, self.seed) as u32
    }

    fn find(&self, hash: u32, name: &[u8]) -> Option<u32> {
        self.index
            .find(&self.rows, hash, |row| self.names.get(row.name) == name)
    }

    /// Whether this home and the filters `here` are so large that the rows of the next topics are probably not cached
    /// by the CPU.
    pub fn is_large(&self, here: &Matching) -> bool {
        let rows = self.rows.len() + self.filters.len() + self.keepers.filters();
        rows as usize + here.len() >= self.pace.cold_rows
    }

    /// Touches the rows that these topics probably have, the ends of their logs, and what the search for their subscribers by filter reads,
    /// `here` included: at most [`WARMED`] of each, all at once, so that the cache misses overlap (a row is one, its
    /// name another).
    pub fn warm(&self, topics: &[(u32, &[u8])], here: &Matching) {
        let mut ids = [NONE; WARMED];
        for (id, (hash, _)) in ids.iter_mut().zip(topics) {
            *id = self.index.first(*hash).unwrap_or(NONE);
        }
        // A chain has one row or two, seldom more.
        for _ in 0..2 {
            for (id, (hash, _)) in ids.iter_mut().zip(topics) {
                if *id != NONE && self.rows.get(*id).hash != *hash {
                    *id = self.rows.get(*id).next();
                }
            }
        }
        let found = ids.iter().filter(|id| **id != NONE);
        // A row lies in two lines of the cache as often as in one.
        let touch = |sum, id: &u32| {
            let row = self.rows.get(*id);
            sum ^ self.names.get(row.name).len() ^ row.flags as usize
        };
        core::hint::black_box(found.clone().fold(0, touch));
        log::warm::appends(
            found.map(|id| (&self.partitions[self.at(*id)].log, self.rows.get(*id).log)),
        );
        let names = topics.iter().map(|(_, name)| *name);
        here.warm(names.clone());
        self.filters.warm(names.clone());
        self.groups.warm(names.clone());
        self.keepers.warm(names);
    }

    /// Makes a topic for a client, for which there is room.
    fn create(&mut self, hash: u32, name: &[u8], client: Client, rules: &Rules, now: Now) -> u32 {
        let mut row = HomeTopic::vacant(NONE);
        row.set_slot(topic::slot(name));
        row.hash = hash;
        row.name = self.names.insert(name);
        row.rule = rules.number_for(name);
        self.steps.add(usize::from(row.rule) / FILTERS_PER_STEP);
        row.touched_s = now.unix_s;
        row.set_last(self.floor_of(name, row.rule, rules));
        let id = self.rows.insert(row);
        self.index.insert(&mut self.rows, id);
        self.reservations.made(hash);
        let taken = self.rows.len() as usize;
        self.makers.took(id, client, taken, self.topics_max);
        if let Some(planned_rules) = &mut self.planned_rules {
            planned_rules.created(id, name);
        }
        id
    }

    /// The last offset that a topic of this name and rule may have had, which has no row.
    fn floor_of(&self, name: &[u8], rule: u8, rules: &Rules) -> u64 {
        let slot = usize::from(topic::slot(name));
        let place = usize::from(self.places[slot]);
        match rules.get(rule).durable {
            true => self.floors[slot],
            // What it had before a crash is lost.
            false => self.floors[slot].max(self.partitions[place].forgotten.lost_by(rule)),
        }
    }

    /// The place of a topic's partition.
    #[inline]
    fn place_of(&self, row: &HomeTopic) -> usize {
        self.places[usize::from(row.slot())].into()
    }

    /// The place of the partition of the topic in this row.
    #[inline]
    fn at(&self, id: u32) -> usize {
        self.place_of(self.rows.get(id))
    }

    fn logs(&self) -> impl Iterator<Item = &Log> {
        self.partitions.iter().map(|partition| &partition.log)
    }

    /// The offsets that all partitions have given; where the log gives them, the records that were applied.
    fn sequences(&self) -> u64 {
        if let Some(shared) = &self.shared {
            return shared.records;
        }
        let all = self.partitions.iter();
        all.fold(0, |sum, partition| sum.wrapping_add(partition.sequence))
    }
}
