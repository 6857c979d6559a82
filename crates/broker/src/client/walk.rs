//! A fan-out that takes many turns: one circular walk over the members of a topic.
//!
//! Messages that come while the walk is under way join it where it stands. Each of them ends at the place where it joined, one round later. So
//! all messages of the walk are those that the member at its place has not had, and a visit writes all of them at once: the more messages
//! are under way, the more of them each write takes, however few visits a turn has.
//!
//! The messages are copied, so that those of several turns lie side by side (large ones are shared). The frames of the turns are held as
//! long as their messages are under way, since publishers wait when too many are (`turns_under_way`).
//!
//! Invariants: the messages of a walk are in the order of the topic, and end in that order. A message that joins has all members in front of
//! it: members that leave are replaced by tombstones, and one that comes is not live before its page, which waits until the walk has ended.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

use crate::client::delivery::Delivery;
use crate::mail::{Frames, Record};

/// Messages of one topic that are written together.
pub(crate) const TOGETHER_MAX: usize = 256;
/// Bytes of them, without the last: more in one write brings nothing, and a visit must be short.
pub(crate) const TOGETHER_BYTES: usize = 256 << 10;

/// Bytes of messages that have ended which a walk may keep, besides as many as are under way.
const ENDED_BYTES: usize = 64 << 10;

/// Messages that joined together.
struct Joined {
    /// The place at which they end.
    end: u32,
    count: usize,
    /// Bytes that they take in the frames of the walk.
    own_bytes: usize,
    /// The frames of their turn.
    turn: Arc<Frames>,
}

/// The walk.
pub(crate) struct Walk {
    /// The carrier's topic row.
    pub topic: u32,
    /// The row's life.
    pub serial: u16,
    /// The place that is visited next.
    pub place: u32,
    /// The messages, copied.
    pub frames: Frames,
    records: VecDeque<Record>,
    joined: VecDeque<Joined>,
    /// Bytes of the messages as frames.
    bytes: usize,
    /// Bytes in `frames` of messages that have ended.
    ended_bytes: usize,
}

impl Walk {
    /// A walk over the members of a topic in this life, of no messages.
    pub fn new(topic: u32, serial: u16) -> Walk {
        Walk {
            topic,
            serial,
            place: 0,
            frames: Frames::default(),
            records: VecDeque::new(),
            joined: VecDeque::new(),
            bytes: 0,
            ended_bytes: 0,
        }
    }

    /// The messages that the member at its place has not had.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.records.iter().copied()
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether all members have all messages.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether a visit writes enough: further messages wait.
    pub fn is_full(&self) -> bool {
        self.records.len() >= TOGETHER_MAX || self.bytes >= TOGETHER_BYTES
    }

    /// How many turns it holds the frames of.
    pub fn turns(&self) -> usize {
        self.joined.len()
    }

    /// Bytes of memory that it occupies, besides the frames of the turns.
    pub fn own_bytes(&self) -> usize {
        size_of::<Walk>()
            + self.frames.own_bytes()
            + self.records.capacity() * size_of::<Record>()
            + self.joined.capacity() * size_of::<Joined>()
    }

    /// The next messages of a turn join, as many as there is room for. Messages for a former life of the topic are passed over.
    fn join(&mut self, delivery: &mut Delivery) {
        // The first one may have come to some members already, from the first place on.
        let end = match core::mem::take(&mut delivery.walking) {
            true => {
                debug_assert!(self.is_empty(), "a topic has one walk");
                self.place = core::mem::take(&mut delivery.place);
                0
            }
            false => self.place,
        };
        self.compact();
        let (count, own_bytes) = (self.len(), self.frames.all_len());
        while !self.is_full()
            && let Some((serial, record)) = delivery.next_live()
        {
            if serial == self.serial {
                self.bytes += record.frame_bytes();
                let record = self.frames.copy_with_compressed(&record, &delivery.frames);
                self.records.push_back(record);
            }
            delivery.at += 1;
        }
        let count = self.len() - count;
        if count > 0 {
            self.joined.push_back(Joined {
                end,
                count,
                own_bytes: self.frames.all_len() - own_bytes,
                turn: delivery.frames.clone(),
            });
        }
    }

    /// Goes on to the next of so many places.
    pub fn advance(&mut self, places: u32) {
        self.place += 1;
        if self.place >= places {
            self.place = 0;
        }
    }

    /// How many messages end here, now that the walk has come to this place.
    pub fn ending(&self) -> usize {
        let here = |joined: &&Joined| joined.end == self.place;
        self.joined.iter().take_while(here).map(|it| it.count).sum()
    }

    /// Forgets so many messages, which have ended.
    pub fn end(&mut self, mut count: usize) {
        for record in self.records.drain(..count) {
            self.bytes -= record.frame_bytes();
        }
        while count > 0
            && let Some(joined) = self.joined.pop_front()
        {
            count -= joined.count;
            self.ended_bytes += joined.own_bytes;
        }
    }

    /// Shares deliveries out among the turns of the messages that were delivered: the stamp of each, and its part.
    pub fn parts(&self, deliveries: u64) -> impl Iterator<Item = (u64, u64)> {
        let all = self.len().max(1) as u64;
        let part = move |joined: &Joined| deliveries * joined.count as u64 / all;
        self.joined.iter().map(move |it| (it.turn.stamp, part(it)))
    }

    /// Gives the memory of ended messages back, once it is more than that of the others.
    fn compact(&mut self) {
        let under_way = self.frames.all_len() - self.ended_bytes;
        if self.ended_bytes <= ENDED_BYTES + under_way {
            return;
        }
        let before = core::mem::take(&mut self.frames);
        for record in &mut self.records {
            *record = self.frames.copy_with_compressed(record, &before);
        }
        self.ended_bytes = 0;
    }
}

/// Deliveries of a flow: those that wait, and of a topic the walk that is under way.
#[derive(Default)]
pub(crate) struct Parked {
    pub walk: Option<Box<Walk>>,
    pub waiting: VecDeque<Delivery>,
}

impl Parked {
    /// How many turns of homes they are of.
    pub fn turns(&self) -> usize {
        self.walk.as_ref().map_or(0, |walk| walk.turns()) + self.waiting.len()
    }

    /// Bytes of the walk.
    pub fn walk_bytes(&self) -> usize {
        self.walk.as_ref().map_or(0, |walk| walk.own_bytes())
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.walk.is_none() && self.waiting.is_empty()
    }

    /// The next messages join the walk of this topic in this life, or begin it, as many as there is room for. Deliveries of which nothing is
    /// left are given to `done`.
    pub fn join(&mut self, topic: u32, serial: u16, mut done: impl FnMut(Delivery)) {
        let walk = self
            .walk
            .get_or_insert_with(|| Box::new(Walk::new(topic, serial)));
        while let Some(first) = self.waiting.front_mut()
            && first.next_live().is_some()
            && !walk.is_full()
        {
            walk.join(first);
            if first.at < first.keys.len() {
                break;
            }
            if let Some(first) = self.waiting.pop_front() {
                done(first);
            }
        }
        if walk.is_empty() {
            self.walk = None;
        }
    }
}
