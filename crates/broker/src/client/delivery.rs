//! Deliveries and runs under way: the tells of homes to this shard, and how far each is.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::{PartitionId, ShardId};
use crate::filters::matching::Member;
use crate::mail::{Frames, Record, Tell};
use crate::store::slab::NONE;

/// The tells of one home in one turn.
pub struct Delivery {
    pub(crate) tells: Vec<Tell>,
    pub(crate) frames: Arc<Frames>,
    /// Topic and index of each tell that concerns a topic, in order of both.
    pub(crate) keys: Vec<u64>,
    pub(crate) at: usize,
    pub(crate) place: u32,
    pub(crate) walking: bool,
    /// The home that sent them.
    pub(crate) home: ShardId,
    /// It has messages or pages for filters.
    pub(crate) ordered: bool,
    pub(crate) run: Run,
    /// The frames of the turns that it was put together of; none if it is of one turn.
    pub(crate) turns: Vec<Arc<Frames>>,
}

/// Keys of answers begin with 0, those of tells about a topic with the topic's row and 1; these stand for tells that keep the order
/// in which they were told.
pub(crate) const IN_ORDER: u32 = NONE - 1;
/// These stand for tells to single connections about no topic: messages for members of groups, and news of interest. They come last.
pub(crate) const OTHERS: u32 = NONE;

/// The key of a tell with this number.
pub(crate) fn key_of(tell: &Tell, n: usize) -> u64 {
    let class = match tell {
        // Nobody relies on their places among messages, and their clients wait for them.
        Tell::Outcome(..)
        | Tell::Fenced(_)
        | Tell::GroupJoined { .. }
        | Tell::Session(..)
        | Tell::SessionTaken(_) => 0,
        tell => match tell.topic() {
            None | Some(NONE) => OTHERS,
            Some(topic) => topic + 1,
        },
    };
    u64::from(class) << 32 | n as u64
}

/// Whether a key stands for an answer.
pub(crate) fn is_answer(key: u64) -> bool {
    key >> 32 == 0
}

impl Delivery {
    /// The topic that a key stands for.
    pub(crate) fn topic_of(key: u64) -> Option<u32> {
        let class = (key >> 32) as u32;
        (class > 0 && class < IN_ORDER).then(|| class - 1)
    }

    /// Whether an answer is next.
    pub(crate) fn is_at_answer(&self) -> bool {
        self.keys.get(self.at).is_some_and(|key| is_answer(*key))
    }

    /// Whether only tells to single connections are left.
    #[inline]
    pub(crate) fn is_at_others(&self) -> bool {
        let key = self.keys.get(self.at);
        key.is_some_and(|key| (key >> 32) as u32 == OTHERS)
    }

    /// Takes the tells at the cursor that are about the same topic, with the walk over its members that is under way.
    pub(crate) fn take_topic(&mut self) -> Delivery {
        let first = self.keys[self.at] >> 32;
        let same = self.keys[self.at..].iter();
        let same = same.take_while(|key| **key >> 32 == first);
        let tells = same.map(|key| self.tells[*key as u32 as usize].clone());
        let tells: Vec<Tell> = tells.collect();
        self.at += tells.len();
        Delivery {
            keys: (0..tells.len()).map(|n| first << 32 | n as u64).collect(),
            tells,
            frames: self.frames.clone(),
            at: 0,
            place: core::mem::take(&mut self.place),
            walking: core::mem::take(&mut self.walking),
            home: self.home,
            ordered: false,
            run: Run::default(),
            turns: Vec::new(),
        }
    }

    /// The live message at the cursor, and the life of the topic that it is for; none where another tell is next.
    pub(crate) fn next_live(&self) -> Option<(u16, Record)> {
        match *self.try_tell(0)? {
            Tell::Live { serial, record, .. } => Some((serial, record)),
            _ => None,
        }
    }

    /// The tell that stands so far behind the cursor.
    pub(crate) fn try_tell(&self, behind: usize) -> Option<&Tell> {
        let key = self.keys.get(self.at + behind)?;
        self.tells.get(*key as u32 as usize)
    }

    /// The tell that stands so far behind the cursor; there is one.
    pub(crate) fn tell(&self, behind: usize) -> &Tell {
        self.try_tell(behind).expect("the run is that long")
    }

    /// The message that stands so far behind the cursor.
    pub(crate) fn matched(&self, behind: usize) -> Matched {
        match *self.tell(behind) {
            Tell::Match {
                topic,
                partition,
                name,
                record,
                ..
            } => Matched {
                name,
                topic,
                partition,
                record,
            },
            _ => unreachable!("a run is of matches"),
        }
    }

    /// The run at the cursor is done.
    pub(crate) fn end_run(&mut self) {
        self.at += self.run.end();
    }
}

/// A message for a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Addressee {
    pub slot: u32,
    /// The number of the message in the run.
    pub message: u32,
    /// Which of the connection's filters.
    pub part: u32,
}

impl Addressee {
    pub fn of(member: &Member, message: u32) -> Addressee {
        Addressee {
            slot: member.slot,
            message,
            part: member.part,
        }
    }
}

/// How far the run at the cursor is.
#[derive(Default)]
pub(crate) struct Run {
    /// Messages; 0 when there is no run.
    pub len: usize,
    /// Those whose exact subscribers are done.
    pub exact: usize,
    pub due: Vec<Addressee>,
    /// The next of `due` to deliver.
    pub at: usize,
    /// Of a broad run, whose messages have one topic.
    pub broad: Option<Box<Broad>>,
}

/// How far messages of one topic are that go to very many connections.
pub(crate) struct Broad {
    /// The rows of the filters that match it, sorted.
    pub rows: Vec<u32>,
    /// The connections that were visited, a bit each.
    pub visited: Vec<u64>,
}

impl Broad {
    pub fn is_visited(&self, slot: u32) -> bool {
        let word = self.visited.get(slot as usize / 64);
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// A connection is visited; says whether that is the first time.
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

impl Run {
    /// The last message that this connection was visited for; `None` while its turn is still to come.
    pub fn visited(&self, slot: u32) -> Option<usize> {
        if let Some(broad) = &self.broad {
            return broad.is_visited(slot).then(|| self.len - 1);
        }
        let last = self.due[..self.at].last()?;
        (self.len > 0 && last.slot >= slot).then(|| self.len - 1)
    }

    /// Ends the run; returns how many messages it had.
    pub fn end(&mut self) -> usize {
        self.broad = None;
        core::mem::take(&mut self.len)
    }
}

/// A message of a run.
#[derive(Clone, Copy)]
pub(crate) struct Matched {
    /// Where the name of its topic is.
    pub name: u32,
    /// The carrier's topic row, or `NONE`.
    pub topic: u32,
    /// The partition of the topic.
    pub partition: PartitionId,
    /// The message.
    pub record: Record,
}
