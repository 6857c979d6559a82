//! The home of topics: their names, positions, logs, and which carriers have subscribers.
//!
//! Invariants: a row lives while it has carriers, messages, or a position that is younger than its
//! rule allows, unless room is needed for a new topic; a row that is freed raises its partition's floor, so
//! that a position of a forgotten topic is never believed wrongly. Live messages and pages to one
//! carrier go through one lane, in order.
//!
//! It knows no connections: it addresses a carrier by the carrier's row and that row's serial. Its parts own their data and do not know
//! the home; the files with an `impl Home` join them.

pub(crate) mod sessions;

mod answers;
mod attach;
mod carriers;
mod change;
mod filters;
mod followers;
mod foresight;
mod forgetting;
mod groups;
mod held;
mod idempotence;
mod interest;
mod keepers;
mod kept;
mod operator;
mod owed;
mod publish;
mod readings;
mod registered;
mod retained;
mod row;
mod sharing;
mod snapshot;
mod subscribers;
mod upkeep;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crore_wire::deflate::Compressor;
use crore_wire::topic;

use crate::base::pace::Pace;
use crate::base::pace::WARMED;
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::budget::admission::{Admission, Client, Party, Reached};
use crate::budget::stats::Stats;
use crate::filters::matching::Matching;
use crate::home::answers::Answers;
use crate::home::carriers::Carriers;
use crate::home::followers::Followers;
use crate::home::foresight::Foresight;
use crate::home::forgetting::Forgetting;
use crate::home::groups::Groups;
use crate::home::keepers::Keepers;
use crate::home::readings::Readings;
use crate::home::registered::Registered;
pub use crate::home::registered::SEPARATOR;
use crate::home::row::HomeTopic;
use crate::log::Log;
use crate::store::blobs::Names;
use crate::store::index::{Chained as _, Index};
use crate::store::slab::{NONE, Slab, Vacant as _};

/// Partitions of the whole name space.
pub const PARTITIONS: usize = 256;

/// A message as a publisher gives it.
pub struct Publish<'a> {
    /// The keyed hash of the name.
    pub hash: u32,
    /// The topic, checked.
    pub name: &'a [u8],
    /// The message.
    pub data: &'a [u8],
    /// Its content type, checked, at most 255 bytes.
    pub content_type: &'a [u8],
    /// Its event name, checked, at most 255 bytes.
    pub event: &'a [u8],
    /// Its key, checked, at most 255 bytes.
    pub key: &'a [u8],
    /// Given by MQTT only: the publisher's number ([`ORIGIN_BYTES`](crate::mail::ORIGIN_BYTES), little
    /// endian), then the properties that no field here holds, encoded as in a packet; at most 65,535 bytes. Empty for
    /// other protocols.
    pub attributes: &'a [u8],
    /// MQTT's quality of service.
    pub qos: u8,
    /// Whether it replaces the topic's retained message; an empty one only removes it.
    pub retain: bool,
    /// Its time to live in seconds, if it has one.
    pub ttl_s: Option<u32>,
    /// Whether WebSocket clients get a binary frame.
    pub binary: bool,
    /// Its idempotency key, by which a retry is recognised, if it has one.
    pub retry: Option<Retry<'a>>,
    /// The client that the topic, if it is made, and the message, while it is kept, are counted for.
    pub client: Client,
}

/// The key and the publisher that identify a retry.
#[derive(Clone, Copy)]
pub struct Retry<'a> {
    /// The idempotency key, checked, 1 to 255 bytes.
    pub key: &'a [u8],
    /// The publisher that the key belongs to.
    pub publisher: Party,
}

/// All topics whose partitions this shard keeps.
pub struct Home {
    rows: Slab<HomeTopic>,
    index: Index,
    names: Names,
    carriers: Carriers,
    log: Log,
    /// Shared subscriptions.
    groups: Groups,
    /// Subscriptions that need messages kept.
    keepers: Keepers,
    /// The chain of each topic's retained message.
    retained: BTreeMap<u32, u32>,
    /// The last offset that was given. One count for all topics: an offset is the order of arrival.
    sequence: u64,
    forgetting: Forgetting,
    floor: Vec<u64>,
    filters: Registered,
    epoch: u32,
    /// Present while a change of the rules is prepared.
    foresight: Option<Foresight>,
    topics_max: usize,
    admission: Admission,
    followers: Followers,
    /// Pages that are owed.
    readings: Readings,
    answers: Option<Answers>,
    homes: usize,
    seed: u64,
    compressor: Compressor,
    compressed: Vec<u8>,
    /// How long a page is.
    pub pace: Pace,
    stats: Stats,
}

impl Home {
    /// A home without topics. `admission` counts the topics of each client; `epoch` names the life of its logs; `homes` share the
    /// log's budget; `seed` keys the hashes of messages and of their keys.
    pub fn new(
        settings: &Settings,
        rules: &Rules,
        admission: Admission,
        epoch: u32,
        homes: usize,
        seed: u64,
    ) -> Self {
        Home {
            rows: Slab::new(),
            index: Index::new(),
            names: Names::default(),
            carriers: Carriers::new(),
            log: Log::new(
                rules,
                settings.limits.log_bytes / homes,
                seed,
                admission.clone(),
            ),
            groups: Groups::new(seed),
            keepers: Keepers::new(seed),
            retained: BTreeMap::new(),
            sequence: 0,
            forgetting: Forgetting::new(rules.count()),
            floor: alloc::vec![0; PARTITIONS],
            filters: Registered::new(rules.count(), seed),
            epoch,
            foresight: None,
            topics_max: settings.limits.topics_per_home(homes),
            admission,
            followers: Followers::new(settings.interest.debounce_s),
            readings: Readings::default(),
            answers: None,
            homes,
            seed,
            compressor: Compressor::default(),
            compressed: Vec::new(),
            pace: Pace::default(),
            stats: Stats::default(),
        }
    }

    /// Whether it remembers no topic and has no subscriptions by filter or in groups.
    pub fn is_idle(&self) -> bool {
        self.rows.len() == 0 && self.filters.is_empty() && self.groups.is_empty()
    }

    /// Its counters.
    pub fn stats(&self) -> Stats {
        Stats {
            superseded: self.log.superseded,
            expired: self.log.expired,
            ..self.stats
        }
    }

    fn hash_of(&self, name: &[u8]) -> u32 {
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

    /// Touches the rows that these topics probably have, and what the search for their subscribers by filter reads,
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
        core::hint::black_box(found.fold(0, touch));
        let names = topics.iter().map(|(_, name)| *name);
        here.warm(names.clone());
        self.filters.warm(names.clone());
        self.groups.warm(names.clone());
        self.keepers.warm(names);
    }

    /// The topic's row, which is made for this client if there is none.
    fn find_or_create(
        &mut self,
        hash: u32,
        name: &[u8],
        client: Client,
        rules: &Rules,
        now: Now,
    ) -> Result<u32, Reached> {
        match self.find(hash, name) {
            Some(id) => Ok(id),
            None => self.create(hash, name, client, rules, now),
        }
    }

    fn create(
        &mut self,
        hash: u32,
        name: &[u8],
        client: Client,
        rules: &Rules,
        now: Now,
    ) -> Result<u32, Reached> {
        // First: a client that makes too many topics must not cause others to be forgotten.
        self.admission.make_topic(client, now.unix_s)?;
        if self.rows.len() as usize >= self.topics_max && !self.forget_one(rules) {
            return Err(Reached::Topics);
        }
        let floor = self.floor[topic::partition(name) as usize];
        let mut row = HomeTopic::vacant(NONE);
        row.hash = hash;
        row.name = self.names.insert(name);
        row.rule = rules.number_for(name);
        row.touched_s = now.unix_s;
        row.set_last(floor);
        let id = self.rows.insert(row);
        self.index.insert(&mut self.rows, id);
        if let Some(foresight) = &mut self.foresight {
            foresight.created(id, name);
        }
        Ok(id)
    }

    /// Drops messages until the log is within its budget of bytes.
    fn enforce_budget(&mut self, rules: &Rules, now: Now) {
        let mut emptied = Vec::new();
        let retained = rules.retained();
        self.log
            .enforce_budget(now.unix_s, retained, |topic, number, left| {
                emptied.push((topic, number, left));
            });
        for (topic, number, left) in emptied {
            self.chain_emptied(topic, number, left, rules, now);
        }
    }
}
