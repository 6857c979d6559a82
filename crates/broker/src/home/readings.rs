//! The queue of pages that the home owes, in the order in which they were asked for, and how far each has come.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::base::ids::ShardId;
use crate::mail::{Attach, AttachFilters, ReplyTo};

/// How far the search for the beginning of a subscription has come.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Nothing yet.
    Unknown,
    /// Counting back from the newest message: at this offset, with so many still to count, this one included.
    Back(u64, u32),
    /// Behind this offset. `gap`: messages before it are lost. `promised`: the subscriber came with a position, so a
    /// loss behind that is told.
    Behind {
        offset: u64,
        gap: bool,
        promised: bool,
    },
}

/// Where a subscriber by filter stands in the log.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    pub start: u64,
    pub from: u64,
    /// Losses up to this number happened before it began without a position and are not told to it; 0 if it gave one.
    pub base: u64,
    pub gap: bool,
    /// Whether it gets retained messages: those up to `from`, and those that their topic's log no longer has.
    pub retained: bool,
    /// The home's last offset when it asked: what is lost behind it is told, even to a reader that began without a
    /// position.
    pub begun: u64,
}

/// A page that is owed.
pub(super) enum Reading {
    /// Of a topic.
    Topic {
        from: ShardId,
        ask: Attach,
        name: Box<[u8]>,
        /// How far the search for its beginning has come.
        place: Place,
        /// Whether the subscriber is counted already.
        counted: bool,
    },
    /// To a subscriber by filter.
    Filters {
        from: ShardId,
        ask: AttachFilters,
        names: Box<[u8]>,
        reader: Reader,
    },
    /// Messages for a group's members.
    Group(u64),
    /// Of a follower's snapshot of the topics that have subscribers.
    Interest(ShardId, ReplyTo),
}

impl Reading {
    /// Bytes of its names.
    fn names_bytes(&self) -> usize {
        match self {
            Reading::Topic { name, .. } => name.len(),
            Reading::Filters { names, .. } => names.len(),
            Reading::Group(_) | Reading::Interest(..) => 0,
        }
    }
}

/// Room that a home always has for them.
const KEPT: usize = 64;

/// All pages that are owed.
#[derive(Default)]
pub(super) struct Readings {
    queue: VecDeque<Reading>,
    /// Bytes of their names.
    names_bytes: usize,
    /// Steps at the end of the last turn.
    began: u64,
}

impl Readings {
    pub fn push(&mut self, reading: Reading) {
        self.names_bytes += reading.names_bytes();
        self.queue.push_back(reading);
    }

    pub fn pop(&mut self) -> Option<Reading> {
        let reading = self.queue.pop_front()?;
        self.names_bytes -= reading.names_bytes();
        Some(reading)
    }

    fn make_smaller(&mut self) {
        if self.queue.capacity() > KEPT.max(4 * self.queue.len()) {
            self.queue.shrink_to(2 * self.queue.len());
        }
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The turn ends, so many steps after the beginning of the home.
    pub fn end_turn(&mut self, steps: u64) {
        self.began = steps;
        self.make_smaller();
    }

    /// The steps of this turn.
    pub fn spent(&self, steps: u64) -> u64 {
        steps - self.began
    }

    /// Bytes of heap that the queue occupies, without the room that a home always has.
    pub fn bytes(&self) -> usize {
        let more = self.queue.capacity().saturating_sub(KEPT);
        more * size_of::<Reading>() + self.names_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_counted_until_it_is_read() {
        let mut readings = Readings::default();
        for id in 0..1_000 {
            readings.push(Reading::Group(id));
        }
        assert!(readings.bytes() >= (1_000 - KEPT) * size_of::<Reading>());
        while readings.pop().is_some() {}
        readings.make_smaller();
        assert_eq!(readings.bytes(), 0);
    }
}
