//! Deliveries and runs under way: the tells of homes to this shard, and how far each is.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::{PartitionId, ShardId};
use crate::filters::matching::Member;
use crate::mail::{Frames, Record, Tell};

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
    pub(crate) run: Run,
}

impl Delivery {
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
pub(crate) struct Due {
    pub slot: u32,
    /// The number of the message in the run.
    pub message: u32,
    /// Which of the connection's filters.
    pub part: u32,
}

impl Due {
    pub fn of(member: &Member, message: u32) -> Due {
        Due {
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
    pub due: Vec<Due>,
    /// The next of `due` to deliver.
    pub at: usize,
    /// Of a broad run, which has one message.
    pub broad: Option<Broad>,
}

/// How far a message is that goes to very many connections.
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
            return broad.is_visited(slot).then_some(0);
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
