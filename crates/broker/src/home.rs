//! The home of topics: their names, positions, logs, and which carriers have subscribers.
//!
//! Invariants: a row lives while it has carriers, messages, or a position that is younger than its
//! rule allows; rows are freed only by [`Home::forget`], which raises the partition's floor, so
//! that a position of a forgotten topic is never believed wrongly. Live messages and pages to one
//! carrier go through one lane, in order.
//!
//! It knows no connections: it addresses a carrier by the carrier's row and that row's serial.

pub(crate) mod sessions;

mod attach;
mod carriers;
mod change;
mod filters;
mod groups;
mod held;
mod idempotence;
mod interest;
mod kept;
mod operator;
mod readings;
mod retained;
mod snapshot;
mod upkeep;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crore_wire::deflate::Compressor;
use crore_wire::topic;
use crore_wire::websocket::frame::{self, Opcode};

use crate::base::ids::ShardId;
use crate::base::pace::Pace;
use crate::base::pace::WARMED;
use crate::base::planted::{self, Fault};
use crate::base::rules::Rules;
use crate::base::settings::{Keep, Settings};
use crate::base::time::Now;
use crate::base::work::STEP_BYTES;
use crate::budget::admission::{Admission, Client, Party, Reached};
use crate::budget::stats::Stats;
use crate::filters::Filters;
use crate::filters::matching::Matching;
use crate::home::carriers::Carrier;
use crate::home::change::Foresight;
use crate::home::filters::Registered;
pub use crate::home::filters::SEPARATOR;
use crate::home::groups::Groups;
use crate::home::idempotence::Answers;
use crate::home::interest::Followers;
use crate::home::readings::Readings;
use crate::home::upkeep::Forgetting;
use crate::log::Log;
use crate::mail::lanes::Lanes;
use crate::mail::new::New;
use crate::mail::{Frames, Info, Outcome, Record, Tell};
use crate::store::blobs::{Blob, Names};
use crate::store::index::{Chained, Index};
use crate::store::shared::SHARED_MIN;
use crate::store::slab::{NONE, Side, Slab, Vacant};

/// Partitions of the whole name space.
pub const PARTITIONS: usize = 256;

const CREATED: u8 = 1;
const DELETED: u8 = 2;
const SET: u8 = 4;
const WANTS_DEFLATE: u8 = 8;
const QUEUED: u8 = 16;
const REQUESTED: u8 = 32;
const RETAINS: u8 = 64;
const KEEPS: u8 = 128;

/// A topic at its home.
pub struct HomeTopic {
    hash: u32,
    next: u32,
    name: Blob,
    last: [u32; 2],
    log: u32,
    /// The carrier's row, or the set of carriers.
    carrier: u32,
    touched_s: u32,
    shard: ShardId,
    serial: u16,
    subscribers: u16,
    rule: u8,
    flags: u8,
}

const _: () = assert!(size_of::<HomeTopic>() == 40);

impl Vacant for HomeTopic {
    fn vacant(next: u32) -> Self {
        HomeTopic {
            hash: 0,
            next,
            name: Blob::NONE,
            last: [0; 2],
            log: NONE,
            carrier: NONE,
            touched_s: 0,
            shard: 0,
            serial: 0,
            subscribers: 0,
            rule: 0,
            flags: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

impl Chained for HomeTopic {
    fn hash(&self) -> u32 {
        self.hash
    }
    fn next(&self) -> u32 {
        self.next
    }
    fn set_next(&mut self, next: u32) {
        self.next = next;
    }
}

impl HomeTopic {
    fn last(&self) -> u64 {
        u64::from(self.last[0]) | u64::from(self.last[1]) << 32
    }
    fn set_last(&mut self, offset: u64) {
        self.last = [offset as u32, (offset >> 32) as u32];
    }
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

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

/// The recipients of a message.
struct Whom {
    /// Carriers with subscribers of its topic.
    carriers: bool,
    /// Shards with a filter that matches.
    shards: u32,
    /// Groups that share a subscription to it.
    groups: bool,
    /// A session or a group needs it kept, whatever the rule says.
    needs_log: bool,
}

impl Whom {
    fn is_anybody(&self) -> bool {
        self.carriers || self.shards > 0 || self.groups
    }
}

fn opcode_of(binary: bool) -> Opcode {
    match binary {
        true => Opcode::Binary,
        false => Opcode::Text,
    }
}

/// All topics whose partitions this shard keeps.
pub struct Home {
    rows: Slab<HomeTopic>,
    index: Index,
    names: Names,
    sets: Side<Vec<Carrier>>,
    log: Log,
    /// Shared subscriptions.
    groups: Groups,
    /// Filters of which the topics' messages must be kept, and how many subscriptions need that.
    kept: Filters,
    /// By topic: how many subscriptions need its messages kept.
    keepers: BTreeMap<u32, u32>,
    /// The chain of each topic's retained message.
    retained: BTreeMap<u32, u32>,
    /// The last offset that was given. One count for all topics: an offset is the order of arrival.
    sequence: u64,
    forgetting: Forgetting,
    floor: Vec<u64>,
    filters: Registered,
    epoch: u32,
    /// Idle rows by rule, in the order in which they may be forgotten.
    idle: Vec<VecDeque<(u32, u32)>>,
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
            sets: Side::new(),
            log: Log::new(
                rules,
                settings.limits.log_bytes / homes,
                seed,
                admission.clone(),
            ),
            groups: Groups::new(seed),
            kept: Filters::new(seed),
            keepers: BTreeMap::new(),
            retained: BTreeMap::new(),
            sequence: 0,
            forgetting: Forgetting::default(),
            floor: alloc::vec![0; PARTITIONS],
            filters: Registered::new(rules.count(), seed),
            epoch,
            idle: (0..rules.count()).map(|_| VecDeque::new()).collect(),
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
        let rows = self.rows.len() + self.filters.len() + self.kept.len();
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
                    *id = self.rows.get(*id).next;
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
        self.kept.warm(names);
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

    /// Appends a message, unless its client has no room left for kept messages, and sends it to all its subscribers;
    /// `here` are the filters of this shard.
    fn publish(
        &mut self,
        message: &Publish<'_>,
        settings: &Settings,
        rules: &Rules,
        here: &Matching,
        now: Now,
        lanes: &mut Lanes,
    ) -> Outcome {
        let (name, client) = (message.name, message.client);
        // One step for the message, and one for an older message that it displaces.
        self.log.steps.add(2 + message.data.len() / STEP_BYTES);
        if let Err(reached) = self.admission.may_keep(client, message.data.len())
            && self.would_keep(message, settings, rules)
        {
            return Outcome::Full(reached);
        }
        let id = match self.find_or_create(message.hash, name, client, rules, now) {
            Ok(id) => id,
            Err(reached) => return Outcome::Full(reached),
        };
        self.sequence += 1;
        let offset = self.sequence;
        let row = self.rows.get_mut(id);
        let previous = row.last();
        row.set_last(offset);
        row.flags = (row.flags | CREATED) & !DELETED;
        let rule = rules.get(row.rule);
        let new = New {
            topic: id,
            offset,
            previous,
            owner: self.admission.log_owner(client),
            time_s: now.unix_s,
            ttl_s: message.ttl_s,
            key: message.key,
            content_type: message.content_type,
            event: message.event,
            attributes: message.attributes,
            qos: message.qos,
            retain: message.retain,
            binary: message.binary,
            latest: rule.keep == Keep::Latest,
            frame: &[],
            whole: None,
        };
        let whom = self.find_subscribers(id, message.name, here, lanes.me);
        let most = match whom.needs_log {
            true => rule.messages_max().max(settings.mqtt.session_messages),
            false => rule.messages_max(),
        };
        let keep = most > 0;
        if !keep {
            // A log left from a subscriber that needed it is dropped: without this message it would have a hole.
            let log = core::mem::replace(&mut self.rows.get_mut(id).log, NONE);
            let before = self.log.abandon(log, now.unix_s).unwrap_or(previous);
            self.log.losses.add(id, before, offset);
        }
        if keep || message.retain || whom.is_anybody() {
            let read_at = lanes.read_at;
            let frames = lanes.frames();
            let opcode = opcode_of(message.binary);
            let (header, header_len) = frame::header(opcode, false, message.data.len());
            let header = &header[..header_len];
            let large = header_len + message.data.len() >= SHARED_MIN;
            let whole = large.then(|| Log::lay_out(&new, [header, message.data], &self.admission));
            let span = match &whole {
                Some(frame) => frames.share(frame.clone()),
                None => frames.begin(header, message.data),
            };
            let kept = New {
                frame: frames.frame_at(span),
                whole,
                ..new
            };
            if keep {
                let row = self.rows.get_mut(id);
                row.log = self.log.append(row.log, row.rule, rule, most, &kept);
            }
            if message.retain {
                self.retain(id, &kept, message.data.is_empty(), rules);
            }
            if whom.is_anybody() {
                frames.read_at(read_at);
                let record = self.record(id, frames, span, &new, settings);
                self.tell(id, message.name, record, &whom, lanes);
            }
        }
        if keep || message.retain {
            self.enforce_budget(rules, now);
        }
        if !keep || message.retain {
            self.queue_if_idle(id, now);
        }
        let mut info = self.info(id, now);
        info.subscribers += whom.shards + u32::from(whom.groups);
        info.wanted = whom.needs_log;
        Outcome::Done(info)
    }

    /// Whether a message is to be kept, in its topic's log or as the retained one.
    fn would_keep(&mut self, message: &Publish<'_>, settings: &Settings, rules: &Rules) -> bool {
        let name = message.name;
        let found = self.find(message.hash, name).map(|id| self.rows.get(id));
        let number = found.map_or_else(|| rules.number_for(name), |row| row.rule);
        if message.retain && message.data.is_empty() {
            // An empty message removes the retained one and is not kept itself.
            let takes = found.is_some_and(|row| row.has(RETAINS));
            if takes || rules.get(number).keep == Keep::Latest {
                return false;
            }
        }
        let needed = found.is_some_and(|row| row.has(KEEPS))
            || !self.groups.is_empty() && self.groups.find(name)
            || self.kept.has_match(name);
        message.retain
            || needed && settings.mqtt.session_messages > 0
            || rules.get(number).messages_max() > 0
    }

    /// The recipients of a message to this topic.
    fn find_subscribers(&mut self, id: u32, name: &[u8], here: &Matching, me: ShardId) -> Whom {
        let shards = self.filters.find_with(name, here, me);
        let groups = !self.groups.is_empty() && self.groups.find(name);
        let row = self.rows.get(id);
        Whom {
            carriers: row.carrier != NONE,
            shards,
            groups,
            needs_log: row.has(KEEPS) || groups || self.kept.has_match(name),
        }
    }

    /// The message as the carriers get it.
    fn record(
        &mut self,
        id: u32,
        frames: &mut Frames,
        span: (u32, u32),
        new: &New<'_>,
        settings: &Settings,
    ) -> Record {
        let mut record = frames.finish(span, new);
        let deflate = &settings.deflate;
        if self.rows.get(id).has(WANTS_DEFLATE) {
            let data = frames.data(&record);
            if data.len() >= deflate.min_bytes {
                self.compressed.clear();
                self.compressor
                    .compress(data, deflate.level, &mut self.compressed);
                let opcode = opcode_of(new.binary);
                let (header, len) = frame::header(opcode, true, self.compressed.len());
                frames.pack(
                    &mut record,
                    &header[..len],
                    &self.compressed,
                    &self.admission,
                );
            }
        }
        record
    }

    fn tell(&mut self, id: u32, name: &[u8], record: Record, whom: &Whom, lanes: &mut Lanes) {
        if whom.groups {
            self.tell_groups(name, record, lanes);
        }
        if whom.shards > 0 {
            return self.tell_matched(id, name, record, lanes);
        }
        self.each_carrier(id, |carrier| {
            let tell = Tell::Live {
                topic: carrier.topic,
                serial: carrier.serial,
                record,
            };
            lanes.tell(carrier.shard, tell);
        });
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
