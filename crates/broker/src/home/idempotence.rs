//! The first answers to publishes that bring an idempotency key, so that a retry publishes nothing and is
//! answered alike (draft-ietf-httpapi-idempotency-key-header).
//!
//! They are kept at the topic's home, where a publish is one step: no retry can come while the first is under way.
//! Topic and key are kept as one keyed hash of 64 bits, and the message as another. Two keys with one hash look like
//! one key: the later publish is refused as if the key had been used for another message (422, never in silence), which
//! with a million keys kept happens to one in 10^13. Only a publish with both hashes equal, 128 bits, would be taken
//! for a retry.
//!
//! Each user has keys of its own: the same key of another user is another key. Publishers without a name share theirs,
//! since a retry may come from another address.
//!
//! Users, and addresses of publishers without a name, fall into [`GROUPS`] by their hash. When there is no room, the
//! group with the most answers loses its oldest, so that the many keys of one publisher do not push out the few of
//! another group.
//!
//! Invariants: the rows of a group are chained from the oldest to the newest, and only the oldest is dropped; there is
//! no table before the first key comes and after the last has gone.

use alloc::boxed::Box;

use xxhash_rust::xxh3::Xxh3;

use super::{Home, Publish, Retry};
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::base::snapshot::Block;
use crate::base::snapshot::{Damaged, In, kind};
use crate::base::time::Now;
use crate::budget::admission::Party;
use crate::filters::matching::Matching;
use crate::mail::lanes::Lanes;
use crate::mail::{Info, Outcome};
use crate::store::index::{Chained, Index};
use crate::store::slab::{NONE, Slab, Vacant};

/// Expired answers that one publish drops: more than it adds, so that they never pile up.
const EXPIRED_PER_PUBLISH: usize = 4;
/// The same, each second: some hundred microseconds.
const EXPIRED_PER_TICK: usize = 4096;

/// Groups of publishers.
const GROUPS: usize = 64;

/// A first answer.
struct Kept {
    /// The keyed hash of topic and key.
    key: u64,
    /// The keyed hash of the message.
    message: u64,
    offset: u64,
    messages: u32,
    /// [`NONE`]: no subscriber ever asked.
    requested_s: u32,
    subscribers: u32,
    time_s: u32,
    next: u32,
    newer: u32,
}

const _: () = assert!(size_of::<Kept>() == 48);

impl Vacant for Kept {
    fn vacant(next: u32) -> Self {
        Kept {
            key: 0,
            message: 0,
            offset: 0,
            messages: 0,
            requested_s: NONE,
            subscribers: 0,
            time_s: 0,
            next,
            newer: NONE,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

impl Chained for Kept {
    fn hash(&self) -> u32 {
        self.key as u32
    }
    fn next(&self) -> u32 {
        self.next
    }
    fn set_next(&mut self, next: u32) {
        self.next = next;
    }
}

/// The answers to some publishers, in the order in which they were given.
#[derive(Clone, Copy)]
struct Group {
    oldest: u32,
    newest: u32,
    answers: u32,
}

impl Group {
    const EMPTY: Group = Group {
        oldest: NONE,
        newest: NONE,
        answers: 0,
    };
}

/// The group of a publisher.
fn group_of(publisher: Party) -> usize {
    publisher.number() as usize % GROUPS
}

/// All first answers of a home.
pub(super) struct Answers {
    rows: Slab<Kept>,
    index: Index,
    groups: Box<[Group; GROUPS]>,
    /// Seconds that each is kept.
    pub window_s: u32,
}

impl Answers {
    fn new(window_s: u32) -> Self {
        Answers {
            rows: Slab::new(),
            index: Index::new(),
            groups: Box::new([Group::EMPTY; GROUPS]),
            window_s,
        }
    }

    pub fn len(&self) -> u32 {
        self.rows.len()
    }

    /// Bytes of the rows and their index.
    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.index.bytes() + size_of_val(&*self.groups)
    }

    fn find(&self, key: u64, now: Now) -> Option<&Kept> {
        // An expired answer may still be there beside its successor.
        let is = |row: &Kept| row.key == key && !self.has_expired(row, now);
        let id = self.index.find(&self.rows, key as u32, is)?;
        Some(self.rows.get(id))
    }

    /// The second in which an answer was given does not count, so that the window is never too short.
    fn has_expired(&self, row: &Kept, now: Now) -> bool {
        now.s - row.time_s > self.window_s
    }

    fn keep(&mut self, group: usize, row: Kept, max: u32) {
        if self.rows.len() >= max {
            let largest = (0..GROUPS).max_by_key(|group| self.groups[*group].answers);
            self.drop_oldest(largest.expect("there are groups"));
        }
        let id = self.rows.insert(row);
        self.index.insert(&mut self.rows, id);
        let group = &mut self.groups[group];
        match group.newest {
            NONE => group.oldest = id,
            newest => self.rows.get_mut(newest).newer = id,
        }
        group.newest = id;
        group.answers += 1;
    }

    fn drop_oldest(&mut self, group: usize) {
        let group = &mut self.groups[group];
        let id = group.oldest;
        self.index.remove(&mut self.rows, id);
        group.oldest = self.rows.remove(id).newer;
        if group.oldest == NONE {
            group.newest = NONE;
        }
        group.answers -= 1;
    }

    /// Writes answers of a group from this row on; returns the one to go on with.
    fn save(&self, group: usize, mut id: u32, block: &mut Block<'_>) -> Option<u32> {
        while id != NONE {
            if block.is_full() {
                return Some(id);
            }
            let row = self.rows.get(id);
            let mut out = block.record(kind::ANSWER);
            out.number(group as u64);
            out.word(row.key);
            out.word(row.message);
            out.number(row.offset);
            for number in [row.messages, row.requested_s, row.subscribers] {
                out.number(u64::from(number));
            }
            id = row.newer;
        }
        None
    }

    /// Drops answers of a group that have run out; returns how many more it might have dropped.
    fn expire(&mut self, group: usize, now: Now, most: usize) -> usize {
        for left in (1..=most).rev() {
            let oldest = self.groups[group].oldest;
            if oldest == NONE || !self.has_expired(self.rows.get(oldest), now) {
                return left;
            }
            self.drop_oldest(group);
        }
        0
    }
}

impl Home {
    /// Publishes a message, unless one with the same key was published before.
    pub fn publish_once(
        &mut self,
        message: &Publish<'_>,
        settings: &Settings,
        rules: &Rules,
        here: &Matching,
        now: Now,
        lanes: &mut Lanes,
    ) -> Outcome {
        let Some(retry) = message.retry else {
            return self.publish(message, settings, rules, here, now, lanes);
        };
        let key = self.hash_of_key(message.name, &retry);
        let (group, hash) = (group_of(retry.publisher), self.hash_of_message(message));
        let (epoch, window_s) = (self.epoch, settings.publish.idempotency_window_s);
        let answers = self.answers.get_or_insert_with(|| Answers::new(window_s));
        answers.expire(group, now, EXPIRED_PER_PUBLISH);
        match answers.find(key, now) {
            Some(kept) if kept.message == hash => {
                return Outcome::Replayed(Info {
                    messages: kept.messages,
                    requested_s: (kept.requested_s != NONE).then_some(kept.requested_s),
                    subscribers: kept.subscribers,
                    wanted: false,
                    offset: kept.offset,
                    epoch,
                });
            }
            Some(_) => return Outcome::OtherMessage,
            None => {}
        }
        let outcome = self.publish(message, settings, rules, here, now, lanes);
        if let Outcome::Done(info) = outcome {
            let max = settings.publish.keys_per_home(self.homes);
            let answers = self.answers.as_mut().expect("they were just looked at");
            answers.keep(
                group,
                Kept {
                    key,
                    message: hash,
                    offset: info.offset,
                    messages: info.messages,
                    requested_s: info.requested_s.unwrap_or(NONE),
                    subscribers: info.subscribers,
                    time_s: now.s,
                    ..Kept::vacant(NONE)
                },
                max,
            );
        }
        outcome
    }

    /// Drops answers that have run out; a bounded amount of work.
    pub(super) fn expire_answers(&mut self, now: Now) {
        if let Some(answers) = &mut self.answers {
            let mut most = EXPIRED_PER_TICK;
            for group in 0..GROUPS {
                most = answers.expire(group, now, most);
            }
            if answers.len() == 0 {
                self.answers = None;
            }
        }
    }

    fn hash_of_key(&self, topic: &[u8], retry: &Retry<'_>) -> u64 {
        let mut hasher = Xxh3::with_seed(self.seed);
        let user = Some(retry.publisher).filter(|publisher| publisher.is_user());
        let user = user.map_or(0, Party::number).to_le_bytes();
        // No topic holds a NUL, so that topic and key cannot be shifted against each other.
        for part in [&user[..], topic, &[0], retry.key] {
            hasher.update(part);
        }
        hasher.digest()
    }

    fn hash_of_message(&self, message: &Publish<'_>) -> u64 {
        let mut hasher = Xxh3::with_seed(!self.seed);
        for part in [message.content_type, message.event, message.key] {
            hasher.update(&[part.len() as u8]);
            hasher.update(part);
        }
        let ttl_s = message.ttl_s.map_or(u64::MAX, u64::from);
        hasher.update(&ttl_s.to_le_bytes());
        hasher.update(&[u8::from(message.binary), u8::from(message.retain)]);
        hasher.update(&(message.attributes.len() as u32).to_le_bytes());
        hasher.update(message.attributes);
        hasher.update(message.data);
        hasher.digest()
    }
}

impl Home {
    /// Writes the answers from this group and this row of it on (its oldest, if there is none); returns where to go on.
    pub(crate) fn save_answers(
        &self,
        (from, row): (usize, Option<u32>),
        block: &mut Block<'_>,
    ) -> Option<(usize, Option<u32>)> {
        let answers = self.answers.as_ref()?;
        let mut id = row;
        (from..GROUPS).find_map(|group| {
            let id = id.take().unwrap_or(answers.groups[group].oldest);
            let next = answers.save(group, id, block)?;
            Some((group, Some(next)))
        })
    }

    /// Reads an answer. Its window begins anew: how long the process was away is not its publisher's fault.
    pub(crate) fn restore_answer(
        &mut self,
        from: &mut In<'_>,
        settings: &Settings,
        now: Now,
    ) -> Result<(), Damaged> {
        let group = from.number()? as usize;
        if group >= GROUPS {
            return Err(Damaged("an answer is of no group"));
        }
        let row = Kept {
            key: from.word()?,
            message: from.word()?,
            offset: from.number()?,
            messages: from.number32()?,
            requested_s: from.number32()?,
            subscribers: from.number32()?,
            time_s: now.s,
            ..Kept::vacant(NONE)
        };
        let window_s = settings.publish.idempotency_window_s;
        let max = settings.publish.keys_per_home(self.homes);
        let answers = self.answers.get_or_insert_with(|| Answers::new(window_s));
        answers.keep(group, row, max);
        Ok(())
    }
}
