//! A fan-out (delivery of messages to all members of a topic) that takes many turns: one circular walk over the members.
//!
//! Messages that arrive during the walk join it at its current place. Each of them ends one round later, at the place where it
//! joined. Therefore the messages of the walk are exactly those that the member at the current place has not received, and one visit
//! writes all of them. The more messages there are, the more each write carries, even if a turn has few visits.
//!
//! The messages are copied (large ones are shared), to be adjacent in memory even if they are from several turns. The frames of the turns
//! are held until their messages end, because publishers must wait when too many turns are in flight (`backpressure_turns`).
//!
//! Invariants: the messages of a walk are in the order of the topic, and end in that order. A message reaches every member that was
//! there when the message joined, and has not left since. A member that leaves is replaced by a tombstone, so that the places of the others
//! stay the same. A new member gets no new messages before its first page of past messages, which waits until the walk has ended.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

use crate::client::delivery::Delivery;
use crate::mail::{Frames, Record};

/// At most this many messages of one topic are written together.
pub(crate) const TOGETHER_MAX: usize = 256;
/// At most this many bytes are written together, not counting the last message. Larger writes are not faster, and a visit must be short.
pub(crate) const TOGETHER_BYTES: usize = 256 << 10;

/// A walk may keep as many bytes of ended messages as its messages have, and this many more.
const ENDED_BYTES: usize = 64 << 10;

/// Messages that joined together.
struct JoinedMessages {
    /// The place at which these messages end.
    end: u32,
    count: usize,
    /// The bytes of these messages in the frames of the walk.
    own_bytes: usize,
    /// The frames of the turn that the messages came from.
    turn: Arc<Frames>,
}

/// A walk over the members of one topic.
pub(crate) struct Walk {
    /// The topic's row on this shard.
    pub topic: u32,
    /// The row's serial: each topic that takes the row gets a new one.
    pub serial: u16,
    /// The next place to visit.
    pub place: u32,
    /// Copies of the messages.
    pub frames: Frames,
    records: VecDeque<Record>,
    joined: VecDeque<JoinedMessages>,
    /// The bytes of the messages as frames.
    bytes: usize,
    /// The bytes in `frames` of messages that have ended.
    ended_bytes: usize,
}

impl Walk {
    /// A walk without messages over the members of a topic.
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

    /// The messages that the member at the current place has not received.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.records.iter().copied()
    }

    /// The number of these messages.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether all members have received all messages.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether one visit writes enough, so that more messages must wait.
    pub fn is_full(&self) -> bool {
        self.records.len() >= TOGETHER_MAX || self.bytes >= TOGETHER_BYTES
    }

    /// The number of turns whose frames the walk holds.
    pub fn turns(&self) -> usize {
        self.joined.len()
    }

    /// The bytes of the walk's memory, without the frames of the turns.
    pub fn own_bytes(&self) -> usize {
        size_of::<Walk>()
            + self.frames.own_bytes()
            + self.records.capacity() * size_of::<Record>()
            + self.joined.capacity() * size_of::<JoinedMessages>()
    }

    /// Adds the next messages of a turn, as many as have room. Skips messages for a former use of the topic's row.
    fn join(&mut self, delivery: &mut Delivery) {
        // Some members, from the first place on, may already have received the first message.
        let end = match core::mem::take(&mut delivery.is_walking) {
            true => {
                debug_assert!(self.is_empty(), "a topic has one walk");
                self.place = core::mem::take(&mut delivery.walk_place);
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
            delivery.cursor += 1;
        }
        let count = self.len() - count;
        if count > 0 {
            self.joined.push_back(JoinedMessages {
                end,
                count,
                own_bytes: self.frames.all_len() - own_bytes,
                turn: delivery.frames.clone(),
            });
        }
    }

    /// Moves to the next of `places` places.
    pub fn advance(&mut self, places: u32) {
        self.place += 1;
        if self.place >= places {
            self.place = 0;
        }
    }

    /// The number of messages that end at the current place.
    pub fn count_ending(&self) -> usize {
        let ends_here = |joined: &&JoinedMessages| joined.end == self.place;
        self.joined
            .iter()
            .take_while(ends_here)
            .map(|it| it.count)
            .sum()
    }

    /// Removes the first `count` messages, which have ended.
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

    /// Divides a number of deliveries among the turns of the delivered messages. Returns each turn's stamp and part.
    pub fn split_deliveries(&self, deliveries: u64) -> impl Iterator<Item = (u64, u64)> {
        let message_count = self.len().max(1) as u64;
        let part = move |joined: &JoinedMessages| deliveries * joined.count as u64 / message_count;
        self.joined.iter().map(move |it| (it.turn.stamp, part(it)))
    }

    /// Frees the memory of ended messages, if it exceeds that of the others.
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

/// The waiting deliveries of a flow and, for a topic, the current walk.
#[derive(Default)]
pub(crate) struct ParkedFlow {
    pub walk: Option<Box<Walk>>,
    pub waiting: VecDeque<Delivery>,
}

impl ParkedFlow {
    /// The number of turns that these deliveries come from.
    pub fn turns(&self) -> usize {
        self.walk.as_ref().map_or(0, |walk| walk.turns()) + self.waiting.len()
    }

    /// The bytes of the walk.
    pub fn walk_bytes(&self) -> usize {
        self.walk.as_ref().map_or(0, |walk| walk.own_bytes())
    }

    /// Whether there is no walk and no delivery.
    pub fn is_empty(&self) -> bool {
        self.walk.is_none() && self.waiting.is_empty()
    }

    /// Adds the next messages to the walk of this topic, which is created if needed, as many as have room. Completed deliveries go
    /// to `done`.
    pub fn join(&mut self, topic: u32, serial: u16, mut done: impl FnMut(Delivery)) {
        let walk = self
            .walk
            .get_or_insert_with(|| Box::new(Walk::new(topic, serial)));
        while let Some(first) = self.waiting.front_mut()
            && first.next_live().is_some()
            && !walk.is_full()
        {
            walk.join(first);
            if first.cursor < first.keys.len() {
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
