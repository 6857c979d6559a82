//! A delivery: the messages and answers that one home (a part of a shard that keeps topics) sent to this shard in one turn, and how many of them
//! are delivered.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::{PartitionId, ShardId};
use crate::filters::matching::Member;
use crate::mail::{Frames, Record, Tell};
use crate::store::slab::NONE;

/// The tells (messages and answers) of one home in one turn.
pub struct Delivery {
    pub(crate) tells: Vec<Tell>,
    pub(crate) frames: Arc<Frames>,
    /// A key for each tell, sorted: first by topic, then by the tell's index.
    pub(crate) keys: Vec<u64>,
    pub(crate) cursor: usize,
    pub(crate) walk_place: u32,
    pub(crate) is_walking: bool,
    /// The home that sent the tells.
    pub(crate) home: ShardId,
    /// The delivery has messages or pages for filters.
    pub(crate) is_ordered: bool,
    pub(crate) run: RunProgress,
    /// The frames of all turns, if the delivery was joined from several turns. Otherwise empty.
    pub(crate) turn_frames: Vec<Arc<Frames>>,
}

/// The high half of a key for tells that must keep the order in which they were told. (An answer has 0, and a tell about a topic
/// has the topic's row + 1.)
pub(crate) const IN_ORDER: u32 = NONE - 1;
/// The high half of a key for tells to single connections about no topic: messages for group members, and news of which topics have
/// subscribers. These tells come last.
pub(crate) const TO_SINGLE_CONNECTIONS: u32 = NONE;

/// The key of the tell with index `n`.
pub(crate) fn key_of(tell: &Tell, n: usize) -> u64 {
    let class = match tell {
        // Answers come first: nobody relies on their order among messages, and their clients wait for them. So do commands, as if the connection had received them.
        Tell::Outcome(..)
        | Tell::Fenced(_)
        | Tell::Released(..)
        | Tell::GroupJoined { .. }
        | Tell::Session(..)
        | Tell::SessionTaken(_)
        | Tell::NoRoomForRecords(..)
        | Tell::Commands(_) => 0,
        tell => match tell.topic() {
            None | Some(NONE) => TO_SINGLE_CONNECTIONS,
            Some(topic) => topic + 1,
        },
    };
    u64::from(class) << 32 | n as u64
}

/// Whether this is the key of an answer.
pub(crate) fn is_answer(key: u64) -> bool {
    key >> 32 == 0
}

impl Delivery {
    /// The topic of a key.
    pub(crate) fn topic_of(key: u64) -> Option<u32> {
        let class = (key >> 32) as u32;
        (class > 0 && class < IN_ORDER).then(|| class - 1)
    }

    /// Whether the next tell is an answer.
    pub(crate) fn next_is_answer(&self) -> bool {
        self.keys
            .get(self.cursor)
            .is_some_and(|key| is_answer(*key))
    }

    /// Whether the remaining tells are to single connections.
    #[inline]
    pub(crate) fn is_at_single_tells(&self) -> bool {
        let key = self.keys.get(self.cursor);
        key.is_some_and(|key| (key >> 32) as u32 == TO_SINGLE_CONNECTIONS)
    }

    /// Takes the next tells about one topic out of the delivery, with the current walk over its members.
    pub(crate) fn take_topic(&mut self) -> Delivery {
        let first = self.keys[self.cursor] >> 32;
        let same = self.keys[self.cursor..].iter();
        let same = same.take_while(|key| **key >> 32 == first);
        let tells = same.map(|key| self.tells[*key as u32 as usize].clone());
        let tells: Vec<Tell> = tells.collect();
        self.cursor += tells.len();
        Delivery {
            keys: (0..tells.len()).map(|n| first << 32 | n as u64).collect(),
            tells,
            frames: self.frames.clone(),
            cursor: 0,
            walk_place: core::mem::take(&mut self.walk_place),
            is_walking: core::mem::take(&mut self.is_walking),
            home: self.home,
            is_ordered: false,
            run: RunProgress::default(),
            turn_frames: Vec::new(),
        }
    }

    /// The live message that is next, with the serial of its topic's row. `None` if another tell is next.
    pub(crate) fn next_live(&self) -> Option<(u16, Record)> {
        match *self.try_tell(0)? {
            Tell::Live { serial, record, .. } => Some((serial, record)),
            _ => None,
        }
    }

    /// The tell `behind` places after the next one.
    pub(crate) fn try_tell(&self, behind: usize) -> Option<&Tell> {
        let key = self.keys.get(self.cursor + behind)?;
        self.tells.get(*key as u32 as usize)
    }

    /// The tell `behind` places after the next one. It must exist.
    pub(crate) fn tell(&self, behind: usize) -> &Tell {
        self.try_tell(behind).expect("the run is that long")
    }

    /// The message for filters `behind` places after the next tell.
    pub(crate) fn filter_message(&self, behind: usize) -> FilterMessage {
        match *self.tell(behind) {
            Tell::Match {
                topic,
                partition,
                name,
                record,
                ..
            } => FilterMessage {
                name,
                topic,
                partition,
                record,
            },
            _ => unreachable!("a run is of matches"),
        }
    }

    /// Ends the current run.
    pub(crate) fn end_run(&mut self) {
        self.cursor += self.run.end();
    }
}

/// A message for one connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addressee {
    pub slot: u32,
    /// The number of the message in the run.
    pub message: u32,
    /// The index of the connection's filter.
    pub filter_index: u32,
}

impl Addressee {
    pub fn new(member: &Member, message: u32) -> Addressee {
        Addressee {
            slot: member.slot,
            message,
            filter_index: member.filter_index,
        }
    }

    /// The order of delivery: by connection, then by message. It is one number, because sorting compares numbers in half the time.
    pub fn order(&self) -> u128 {
        u128::from(self.slot) << 64 | u128::from(self.message) << 32 | u128::from(self.filter_index)
    }
}

/// The progress of the current run: messages for filters that are delivered together.
#[derive(Default)]
pub(crate) struct RunProgress {
    /// The number of messages, or 0 without a run.
    pub len: usize,
    /// The number of messages that all subscribers by topic have received.
    pub sent_by_topic: usize,
    pub visits: Vec<Addressee>,
    /// The index in `visits` of the next delivery.
    pub next_visit: usize,
    /// For messages of one topic that very many connections get.
    pub broad: Option<Box<BroadVisits>>,
}

/// The progress of messages of one topic that very many connections get.
pub(crate) struct BroadVisits {
    /// The rows of the filters that match the topic, sorted.
    pub rows: Vec<u32>,
    /// The visited connections, one bit each.
    pub visited: Vec<u64>,
}

impl BroadVisits {
    pub fn is_visited(&self, slot: u32) -> bool {
        let word = self.visited.get(slot as usize / 64);
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Records a visit. Returns whether it is the first visit of this connection.
    pub fn visit(&mut self, slot: u32) -> bool {
        let first = !self.is_visited(slot);
        let word = slot as usize / 64;
        if word >= self.visited.len() {
            self.visited.resize(word + 1, 0);
        }
        self.visited[word] |= 1 << (slot % 64);
        first
    }
}

impl RunProgress {
    /// The number of the last message, if the connection was visited for it. `None` if the visit is still to come.
    pub fn last_message_visited(&self, slot: u32) -> Option<usize> {
        if let Some(broad) = &self.broad {
            return broad.is_visited(slot).then(|| self.len - 1);
        }
        let last = self.visits[..self.next_visit].last()?;
        (self.len > 0 && last.slot >= slot).then(|| self.len - 1)
    }

    /// Ends the run. Returns the number of its messages.
    pub fn end(&mut self) -> usize {
        self.broad = None;
        core::mem::take(&mut self.len)
    }
}

/// A message for filters.
#[derive(Clone, Copy)]
pub(crate) struct FilterMessage {
    /// The place of its topic's name in the frames.
    pub name: u32,
    /// The topic's row on this shard, or `NONE`.
    pub topic: u32,
    /// The partition of the topic.
    pub partition: PartitionId,
    /// The message.
    pub record: Record,
}
