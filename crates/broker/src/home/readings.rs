//! The pages that wait to be read, and how far each has come. The addresses and users that they are for share the work. Pages for members
//! of groups are a queue of their own, which stands still while carriers have enough to deliver; else the two queues have equal shares.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::turns::Turns;
use crate::base::work::Steps;
use crate::budget::admission::Party;
use crate::mail::{Attach, AttachFilters, ReplyTo};

/// How far the search for the beginning of a subscription has come.
#[derive(Clone, Copy)]
pub(crate) enum Place {
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

/// Where a subscriber by filter stands in a partition's log.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    pub partition: PartitionId,
    pub start: u64,
    pub from: u64,
    /// Of each topic only so many of the newest messages are wanted, up to `from`; 0: only its latest values and retained ones.
    pub newest: u32,
    /// Losses up to this number happened before it began without a position and are not told to it; 0 if it gave one.
    pub base: u64,
    pub gap: bool,
    /// Whether it gets retained messages: those up to `from`, and those that their topic's log no longer has.
    pub retained: bool,
    /// The home's last offset when it asked: what is lost behind it is told, even to a reader that began without a
    /// position.
    pub begun: u64,
}

/// The filters of an attach, which the pages of several partitions may wait with.
pub(super) struct Names<'a> {
    text: &'a [u8],
    shares: usize,
    shared: Option<SharedNames>,
}

/// A copy of them.
#[derive(Clone)]
pub(crate) struct SharedNames {
    pub text: Arc<[u8]>,
    /// How many pages may have it: each counts its share.
    shares: usize,
}

impl<'a> Names<'a> {
    /// Those of an attach to so many partitions.
    pub fn new(text: &'a [u8], shares: usize) -> Names<'a> {
        Names {
            text,
            shares,
            shared: None,
        }
    }

    /// A copy to wait with, made once.
    pub fn share(&mut self) -> SharedNames {
        let Names { text, shares, .. } = *self;
        let make = || SharedNames {
            text: text.into(),
            shares,
        };
        self.shared.get_or_insert_with(make).clone()
    }
}

/// A page that waits to be read.
pub(crate) enum Reading {
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
        names: SharedNames,
        reader: Reader,
    },
    /// Messages for a group's members, the next of which is of this party.
    Group(u64, Party),
    /// For groups that are late: some of them are queued.
    LateGroups,
    /// Of a follower's snapshot of the topics that have subscribers.
    Interest(ShardId, ReplyTo, Party),
}

impl Reading {
    /// Bytes of its names.
    pub(super) fn names_bytes(&self) -> usize {
        match self {
            Reading::Topic { name, .. } => name.len(),
            Reading::Filters { names, .. } => names.text.len().div_ceil(names.shares),
            Reading::Group(..) | Reading::LateGroups | Reading::Interest(..) => 0,
        }
    }

    /// The number of the party that it is for.
    fn party(&self) -> u64 {
        match self {
            Reading::Topic { ask, .. } => ask.party.number(),
            Reading::Filters { ask, .. } => ask.party.number(),
            Reading::Group(_, party) | Reading::Interest(.., party) => party.number(),
            Reading::LateGroups => LATE_GROUPS,
        }
    }
}

/// Late groups have a number beside those of addresses and users.
const LATE_GROUPS: u64 = 1 << 59;

/// All pages that wait to be read.
pub(crate) struct Readings {
    queue: Turns<Reading>,
    /// Those for members of groups.
    groups: Turns<Reading>,
    /// The page taken last is one of these.
    is_group: bool,
    /// Steps for groups since others wait, for which as many are not done yet.
    ahead: u64,
    /// Bytes of their names.
    names_bytes: usize,
    /// Steps at the end of the last turn.
    began: u64,
    /// Pages that had to wait, since the home began.
    pub waited: u64,
    pub(super) steps: Steps,
}

impl Readings {
    /// None yet.
    pub fn new(steps: &Steps) -> Readings {
        Readings {
            queue: Turns::default(),
            groups: Turns::default(),
            is_group: false,
            ahead: 0,
            names_bytes: 0,
            began: 0,
            waited: 0,
            steps: steps.clone(),
        }
    }

    pub fn push(&mut self, reading: Reading) {
        self.names_bytes += reading.names_bytes();
        let queue = match reading {
            Reading::Group(..) => &mut self.groups,
            _ => &mut self.queue,
        };
        queue.push(reading.party(), reading);
    }

    /// The next page, but for those for groups unless it `may_give` to members.
    pub fn pop(&mut self, may_give: bool) -> Option<Reading> {
        if self.is_empty() {
            self.ahead = 0;
        }
        self.is_group = may_give && self.ahead == 0 && self.has_groups();
        let queue = match self.is_group {
            true => &mut self.groups,
            false => &mut self.queue,
        };
        let reading = queue.pop()?;
        self.names_bytes -= reading.names_bytes();
        Some(reading)
    }

    /// So many steps were done for the page taken last.
    pub fn did(&mut self, steps: u64) {
        if self.is_group {
            self.groups.did(steps);
            self.ahead += steps;
        } else {
            self.queue.did(steps);
            self.ahead = self.ahead.saturating_sub(steps);
        }
    }

    /// Whether groups wait for pages.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    pub fn len(&self) -> usize {
        self.queue.len() + self.groups.len()
    }

    /// Whether nobody waits for a page but groups.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The turn ends, so many steps after the beginning of the home.
    pub fn end_turn(&mut self, steps: u64) {
        self.began = steps;
    }

    /// The steps of this turn.
    pub fn spent(&self, steps: u64) -> u64 {
        steps - self.began
    }

    /// Bytes of heap that the queue occupies.
    pub fn bytes(&self) -> usize {
        self.queue.bytes() + self.groups.bytes() + self.names_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_pages_are_counted_until_they_are_read() {
        let mut readings = Readings::new(&Steps::default());
        for id in 0..1_000 {
            readings.push(Reading::Group(id, Party::user("a", 0)));
        }
        assert!(readings.bytes() >= 1_000 * size_of::<Reading>());
        while readings.pop(true).is_some() {}
        assert_eq!(readings.bytes(), 0);
    }
}
