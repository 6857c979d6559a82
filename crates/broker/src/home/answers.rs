//! The table of a home's first answers to publishes with an idempotency key (`idempotence.rs`). The key of the table is the hash of user,
//! topic and idempotency key. A home is the part of a shard that keeps topics.
//!
//! Publishers are hashed into groups. Without an engine (the writer of a log), a full table drops the oldest answer of the largest group, so that a
//! publisher with many keys does not push out the few keys of another. With an engine, no answer is dropped before it expires. Instead, room for an
//! answer is reserved while its record is in flight; if there is no room, the publish is refused.
//!
//! Invariants: the answers of a group are chained from oldest to newest, and only the oldest answer is dropped. Each answer and each reservation is
//! counted among the [`keys`](crate::budget::admission::keys) of all homes.

use alloc::boxed::Box;

use super::newest_claims::NewestClaims;
use super::unreleased::Unreleased;
use crate::base::placement::SlottedOffset;
use crate::base::snapshot::{Block, kind};
use crate::base::time::Now;
use crate::budget::admission::Admission;
use crate::budget::admission::keys::GROUPS;
use crate::store::index::{Index, chained};
use crate::store::slab::{NONE, Slab, SlabRow};

/// The tables by which a home recognises retries: answers to idempotency keys, and QoS 2 messages of MQTT sessions.
pub(crate) struct Retries {
    pub(super) answers: Option<Answers>,
    /// QoS 2 messages of MQTT sessions, which are recognised until they are released.
    pub(crate) unreleased: Unreleased,
    /// The newest claims of MQTT sessions in a cluster.
    pub(super) newest_claims: NewestClaims,
    /// No record in flight is older than this second.
    pub(super) oldest_s: u32,
    pub(super) admission: Admission,
    pub(super) seed: u64,
}

impl Retries {
    pub(super) fn new(seed: u64, partition_count: usize, admission: Admission) -> Retries {
        Retries {
            newest_claims: NewestClaims::new(partition_count),
            answers: None,
            unreleased: Unreleased::default(),
            oldest_s: 0,
            admission,
            seed,
        }
    }
}

/// The hashes by which a retry is recognised.
pub(crate) struct IdempotencyKey {
    /// The group of the publisher.
    pub group: usize,
    /// The hash of user, topic and key.
    pub key: u64,
    /// The hash of the message.
    pub message: u64,
    /// The maximum number of answers that the home keeps.
    pub answers_max: u32,
}

/// The answers that a snapshot has next.
#[derive(Clone, Copy, Default)]
pub(crate) struct AnswerCursor {
    group: usize,
    /// The row of the next answer of the group; `None` for the group's oldest answer.
    row: Option<u32>,
}

/// The answer to a first publish.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    /// The keyed hash of user, topic and key.
    pub key: u64,
    /// The keyed hash of the message.
    pub message: u64,
    /// The offset of the message and the slot of its topic.
    pub slotted_offset: SlottedOffset,
    pub messages: u32,
    /// Seconds since a subscriber last asked for the topic; [`NONE`] if none has asked.
    pub request_age_s: u32,
    pub subscribers: u32,
    /// When the message was published, as `Now::unix_s`.
    pub published_s: u32,
}

struct AnswerRow {
    answer: Answer,
    next: u32,
    newer: u32,
}

const _: () = assert!(size_of::<AnswerRow>() == 48);

impl SlabRow for AnswerRow {
    fn vacant(next: u32) -> Self {
        let answer = Answer {
            key: 0,
            message: 0,
            slotted_offset: SlottedOffset::default(),
            messages: 0,
            request_age_s: NONE,
            subscribers: 0,
            published_s: 0,
        };
        AnswerRow {
            answer,
            next,
            newer: NONE,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

chained!(AnswerRow, |row| row.answer.key as u32);

/// The answers to a group of publishers, from oldest to newest.
#[derive(Clone, Copy)]
struct AnswersOfGroup {
    oldest: u32,
    newest: u32,
    answer_count: u32,
    /// The number of reservations.
    reserved_count: u32,
}

impl AnswersOfGroup {
    const EMPTY: AnswersOfGroup = AnswersOfGroup {
        oldest: NONE,
        newest: NONE,
        answer_count: 0,
        reserved_count: 0,
    };
}

/// All answers of a home.
pub(super) struct Answers {
    rows: Slab<AnswerRow>,
    index: Index,
    groups: Box<[AnswersOfGroup; GROUPS]>,
    /// Reservations of all groups.
    reserved: u32,
    admission: Admission,
    /// How many seconds an answer is kept.
    pub window_s: u32,
}

impl Answers {
    pub fn new(window_s: u32, admission: Admission) -> Self {
        Answers {
            rows: Slab::default(),
            index: Index::default(),
            groups: Box::new([AnswersOfGroup::EMPTY; GROUPS]),
            reserved: 0,
            admission,
            window_s,
        }
    }

    pub fn len(&self) -> u32 {
        self.rows.len()
    }

    /// Whether there is neither an answer nor a reservation.
    pub fn is_empty(&self) -> bool {
        self.rows.len() + self.reserved == 0
    }

    /// Reserves room for an answer in this group. Returns false if the group has used up its share of the `limit` keys of all homes.
    pub fn reserve(&mut self, group: usize, limit: usize) -> bool {
        let has_room = self.admission.keys.reserve(group, limit);
        self.groups[group].reserved_count += u32::from(has_room);
        self.reserved += u32::from(has_room);
        has_room
    }

    /// Releases a reservation, because the answer was added or is not needed.
    pub fn release(&mut self, group: usize) {
        self.groups[group].reserved_count -= 1;
        self.reserved -= 1;
        self.admission.keys.remove(group, 1);
    }

    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.index.bytes() + size_of_val(&*self.groups)
    }

    pub fn find(&self, key: u64, now: Now) -> Option<&Answer> {
        // The table may contain an expired answer together with a newer answer to the same key.
        let is_wanted =
            |row: &AnswerRow| row.answer.key == key && !self.has_expired(row, now.unix_s);
        let id = self.index.find(&self.rows, key as u32, is_wanted)?;
        Some(&self.rows.get(id).answer)
    }

    /// Whether the window of an answer is over. The second in which the answer was given does not count. Otherwise the window would be too short by a
    /// part of a second.
    fn has_expired(&self, row: &AnswerRow, unix_s: u32) -> bool {
        unix_s.saturating_sub(row.answer.published_s) > self.window_s
    }

    pub fn add(&mut self, group: usize, answer: Answer, max: u32) {
        if self.rows.len() >= max {
            let largest = (0..GROUPS).max_by_key(|group| self.groups[*group].answer_count);
            self.drop_oldest(largest.expect("there are groups"));
        }
        let id = self.rows.insert(AnswerRow {
            answer,
            ..AnswerRow::vacant(NONE)
        });
        self.index.insert(&mut self.rows, id);
        self.admission.keys.add(group);
        let group = &mut self.groups[group];
        match group.newest {
            NONE => group.oldest = id,
            newest => self.rows.get_mut(newest).newer = id,
        }
        group.newest = id;
        group.answer_count += 1;
    }

    fn drop_oldest(&mut self, group: usize) {
        self.admission.keys.remove(group, 1);
        let group = &mut self.groups[group];
        let id = group.oldest;
        self.index.remove(&mut self.rows, id);
        group.oldest = self.rows.remove(id).newer;
        if group.oldest == NONE {
            group.newest = NONE;
        }
        group.answer_count -= 1;
    }

    /// Writes the answers from the cursor `from` on. Returns the cursor to continue with, if any are left.
    pub fn save(&self, from: AnswerCursor, block: &mut Block<'_>) -> Option<AnswerCursor> {
        let mut row = from.row;
        (from.group..GROUPS).find_map(|group| {
            let first = row.take().unwrap_or(self.groups[group].oldest);
            let next = self.save_group(group, first, block)?;
            Some(AnswerCursor {
                group,
                row: Some(next),
            })
        })
    }

    /// Writes a group's answers from this row on; returns the row to continue with, if any are left.
    fn save_group(&self, group: usize, mut id: u32, block: &mut Block<'_>) -> Option<u32> {
        while id != NONE {
            if block.is_full() {
                return Some(id);
            }
            let row = self.rows.get(id);
            let answer = &row.answer;
            let mut out = block.record(kind::ANSWER);
            out.number(group as u64);
            out.word(answer.key);
            out.word(answer.message);
            out.byte(answer.slotted_offset.slot());
            out.number(answer.slotted_offset.offset());
            out.number(u64::from(answer.published_s));
            for number in [answer.messages, answer.request_age_s, answer.subscribers] {
                out.number(u64::from(number));
            }
            id = row.newer;
        }
        None
    }

    /// Drops a group's answers that have expired by this second, at most `limit`. Returns how many more may be dropped.
    pub fn expire(&mut self, group: usize, unix_s: u32, limit: usize) -> usize {
        for removals_left in (1..=limit).rev() {
            let oldest = self.groups[group].oldest;
            if oldest == NONE || !self.has_expired(self.rows.get(oldest), unix_s) {
                return removals_left;
            }
            self.drop_oldest(group);
        }
        0
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        for (number, group) in self.groups.iter().enumerate() {
            let count = group.answer_count + group.reserved_count;
            self.admission.keys.remove(number, count);
        }
    }
}
