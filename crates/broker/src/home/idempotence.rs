//! The first answers to publishes that bring an idempotency key, so that a retry publishes nothing and is
//! answered alike (draft-ietf-httpapi-idempotency-key-header).
//!
//! They are kept at the topic's home, where a publish is one step: no retry can come while the first is under
//! way. Topic and key stand there as one keyed hash of 64 bits, and what was published as another. Two keys
//! with one hash look like one key: the later publish is refused as if the key had been used for another
//! message (422, never in silence), which with a million keys kept happens to one in 10^13. Only who has both hashes alike, of
//! 128 bits, would be taken for a retry.
//!
//! Invariants: rows are chained from the oldest to the newest, and only the oldest goes; there is nothing at all until the first key comes, and nothing again when the last has gone.

use xxhash_rust::xxh3::Xxh3;

use super::{Home, Publish};
use crate::index::{Chained, Index};
use crate::lanes::Lanes;
use crate::mail::{Info, Outcome};
use crate::matching::Matching;
use crate::rules::Rules;
use crate::settings::Settings;
use crate::slab::{NONE, Slab, Vacant};
use crate::snapshot::save::Block;
use crate::snapshot::{Damaged, In, kind};
use crate::time::Now;

/// Answers that have run out and are dropped by one publish: more than come in, so that they never pile up.
const EXPIRED_PER_PUBLISH: usize = 4;
/// The same, each second: some hundred microseconds.
const EXPIRED_PER_TICK: usize = 4096;

/// A first answer.
struct Kept {
    /// The keyed hash of topic and key.
    key: u64,
    /// The keyed hash of what was published.
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

/// All first answers of a home.
pub(super) struct Answers {
    rows: Slab<Kept>,
    index: Index,
    oldest: u32,
    newest: u32,
    /// Seconds that each is kept.
    pub window_s: u32,
}

impl Answers {
    fn new(window_s: u32) -> Self {
        Answers {
            rows: Slab::new(),
            index: Index::new(),
            oldest: NONE,
            newest: NONE,
            window_s,
        }
    }

    pub fn len(&self) -> u32 {
        self.rows.len()
    }

    /// Bytes of the rows and their index.
    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.index.bytes()
    }

    fn find(&self, key: u64, now: Now) -> Option<&Kept> {
        // One that has run out may stand there still, beside its successor.
        let is = |row: &Kept| row.key == key && !self.has_expired(row, now);
        let id = self.index.find(&self.rows, key as u32, is)?;
        Some(self.rows.get(id))
    }

    /// The second in which an answer was given is not over when it is kept: the window is full at least.
    fn has_expired(&self, row: &Kept, now: Now) -> bool {
        now.s - row.time_s > self.window_s
    }

    fn keep(&mut self, row: Kept, max: u32) {
        if self.rows.len() >= max {
            self.drop_oldest();
        }
        let id = self.rows.insert(row);
        self.index.insert(&mut self.rows, id);
        match self.newest {
            NONE => self.oldest = id,
            newest => self.rows.get_mut(newest).newer = id,
        }
        self.newest = id;
    }

    fn drop_oldest(&mut self) {
        let id = self.oldest;
        self.index.remove(&mut self.rows, id);
        self.oldest = self.rows.remove(id).newer;
        if self.oldest == NONE {
            self.newest = NONE;
        }
    }

    fn expire(&mut self, now: Now, most: usize) {
        for _ in 0..most {
            if self.oldest == NONE || !self.has_expired(self.rows.get(self.oldest), now) {
                return;
            }
            self.drop_oldest();
        }
    }
}

impl Home {
    /// Publishes, unless the message brings a key that did so before.
    pub fn publish_once(
        &mut self,
        message: &Publish<'_>,
        settings: &Settings,
        rules: &Rules,
        here: &Matching,
        now: Now,
        lanes: &mut Lanes,
    ) -> Outcome {
        if message.idempotency_key.is_empty() {
            return self.publish(message, settings, rules, here, now, lanes);
        }
        let (key, hash) = (self.hash_of_key(message), self.hash_of_message(message));
        let (epoch, window_s) = (self.epoch, settings.publish.idempotency_window_s);
        let answers = self.answers.get_or_insert_with(|| Answers::new(window_s));
        answers.expire(now, EXPIRED_PER_PUBLISH);
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
            answers.expire(now, EXPIRED_PER_TICK);
            if answers.len() == 0 {
                self.answers = None;
            }
        }
    }

    fn hash_of_key(&self, message: &Publish<'_>) -> u64 {
        let mut hasher = Xxh3::with_seed(self.seed);
        // No topic holds a NUL, so that the two parts cannot be shifted against each other.
        for part in [message.name, &[0], message.idempotency_key] {
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
    /// From the row `from` on, and 1; returns where to go on.
    pub(crate) fn save_answers(&self, from: u64, block: &mut Block<'_>) -> Option<u64> {
        let answers = self.answers.as_ref()?;
        let mut id = match from.checked_sub(1) {
            None => answers.oldest,
            Some(id) => id as u32,
        };
        while id != NONE {
            if block.is_full() {
                return Some(u64::from(id) + 1);
            }
            let row = answers.rows.get(id);
            let mut out = block.record(kind::ANSWER);
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

    /// Reads an answer. Its window begins anew: how long the process was away is not its publisher's fault.
    pub(crate) fn restore_answer(
        &mut self,
        from: &mut In<'_>,
        settings: &Settings,
        now: Now,
    ) -> Result<(), Damaged> {
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
        answers.keep(row, max);
        Ok(())
    }
}
