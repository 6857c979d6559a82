//! The pages that wait to be read, and how far each has come. The addresses and users that they are for share the work. Pages for members
//! of groups, and pages with a message that is larger than a page, are queues of their own: each stands still while carriers have enough of
//! its kind to deliver, so that other pages pass it. Those that go on have equal shares.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::turns::Turns;
use crate::base::work::Steps;
use crate::budget::admission::Party;
use crate::mail::lanes::Lanes;
use crate::mail::{Attach, AttachFilters, ReplyTo};

/// How far the search for the beginning of a subscription has come.
#[derive(Clone, Copy)]
pub(crate) enum SearchProgress {
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

/// A page that cannot be read yet.
pub(crate) struct Deferred {
    /// How far the search for its beginning has come.
    pub place: SearchProgress,
    /// It begins with a large message.
    pub is_large: bool,
}

impl From<SearchProgress> for Deferred {
    fn from(place: SearchProgress) -> Deferred {
        Deferred {
            place,
            is_large: false,
        }
    }
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
pub(super) struct FilterNames<'a> {
    text: &'a [u8],
    shares: usize,
    shared: Option<SharedFilterNames>,
}

/// A copy of them.
#[derive(Clone)]
pub(crate) struct SharedFilterNames {
    pub text: Arc<[u8]>,
    /// How many pages may have it: each counts its share.
    shares: usize,
}

impl<'a> FilterNames<'a> {
    /// Those of an attach to so many partitions.
    pub fn new(text: &'a [u8], shares: usize) -> FilterNames<'a> {
        FilterNames {
            text,
            shares,
            shared: None,
        }
    }

    /// A copy to wait with, made once.
    pub fn share(&mut self) -> SharedFilterNames {
        let FilterNames { text, shares, .. } = *self;
        let make = || SharedFilterNames {
            text: text.into(),
            shares,
        };
        self.shared.get_or_insert_with(make).clone()
    }
}

/// A page that waits to be read.
pub(crate) enum PendingPage {
    /// Of a topic.
    Topic {
        from: ShardId,
        ask: Attach,
        name: Box<[u8]>,
        /// How far the search for its beginning has come.
        place: SearchProgress,
        /// Whether the subscriber is counted already.
        counted: bool,
    },
    /// To a subscriber by filter.
    Filters {
        from: ShardId,
        ask: AttachFilters,
        names: SharedFilterNames,
        reader: Reader,
    },
    /// Messages for a group's members, the next of which is of this party.
    Group(u64, Party),
    /// For groups that are late: some of them are queued.
    LateGroups,
    /// Of a follower's snapshot of the topics that have subscribers.
    Interest(ShardId, ReplyTo, Party),
}

impl PendingPage {
    /// Bytes of its names.
    pub(super) fn names_bytes(&self) -> usize {
        match self {
            PendingPage::Topic { name, .. } => name.len(),
            PendingPage::Filters { names, .. } => names.text.len().div_ceil(names.shares),
            PendingPage::Group(..) | PendingPage::LateGroups | PendingPage::Interest(..) => 0,
        }
    }

    /// The number of the party that it is for.
    fn party(&self) -> u64 {
        match self {
            PendingPage::Topic { ask, .. } => ask.party.number(),
            PendingPage::Filters { ask, .. } => ask.party.number(),
            PendingPage::Group(_, party) | PendingPage::Interest(.., party) => party.number(),
            PendingPage::LateGroups => LATE_GROUPS,
        }
    }
}

/// Late groups have a number beside those of addresses and users.
const LATE_GROUPS: u64 = 1 << 59;

/// Pages that carriers may have enough of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// For members of groups.
    Group,
    /// With a message that is larger than a page.
    Large,
}

const KINDS: [Kind; 2] = [Kind::Group, Kind::Large];

/// The pages of a kind.
#[derive(Default)]
struct ThrottledQueue {
    queue: Turns<PendingPage>,
    /// Steps for them since others wait, for which as many are not done yet.
    ahead: u64,
}

/// All pages that wait to be read.
pub(crate) struct PageQueue {
    queue: Turns<PendingPage>,
    /// By kind.
    throttled: [ThrottledQueue; KINDS.len()],
    /// The kind of the page that is read.
    served: Option<Kind>,
    /// Bytes of their names.
    names_bytes: usize,
    /// Steps at the end of the last turn.
    began: u64,
    /// Pages that had to wait, since the home began.
    pub waited: u64,
    pub(super) steps: Steps,
}

impl PageQueue {
    /// None yet.
    pub fn new(steps: &Steps) -> PageQueue {
        PageQueue {
            queue: Turns::default(),
            throttled: Default::default(),
            served: None,
            names_bytes: 0,
            began: 0,
            waited: 0,
            steps: steps.clone(),
        }
    }

    pub fn push(&mut self, reading: PendingPage) {
        self.names_bytes += reading.names_bytes();
        let queue = match reading {
            PendingPage::Group(..) => &mut self.throttled[Kind::Group as usize].queue,
            _ => &mut self.queue,
        };
        queue.push(reading.party(), reading);
    }

    /// Queues a page that begins with a large message.
    pub fn push_large(&mut self, reading: PendingPage) {
        self.names_bytes += reading.names_bytes();
        let queue = &mut self.throttled[Kind::Large as usize].queue;
        queue.push(reading.party(), reading);
    }

    /// The next page. Pages of a kind that carriers have enough of stay.
    pub fn pop(&mut self, lanes: &mut Lanes) -> Option<PendingPage> {
        let may_go = self.may_go(lanes);
        let may_go = |kind: &Kind| may_go[*kind as usize];
        if self.is_empty() {
            let ahead = |kind| self.throttled[kind as usize].ahead;
            let least = KINDS.into_iter().filter(may_go).map(ahead).min();
            for throttled in &mut self.throttled {
                throttled.ahead = throttled.ahead.saturating_sub(least.unwrap_or(u64::MAX));
            }
        }
        let is_due = |kind: &Kind| may_go(kind) && self.throttled[*kind as usize].ahead == 0;
        self.served = KINDS.into_iter().find(is_due);
        let queue = match self.served {
            Some(kind) => &mut self.throttled[kind as usize].queue,
            None => &mut self.queue,
        };
        let reading = queue.pop()?;
        self.names_bytes -= reading.names_bytes();
        Some(reading)
    }

    /// Whether a page can be read now.
    pub fn may_go_on(&self, lanes: &mut Lanes) -> bool {
        !self.is_empty() || self.has_throttled() && self.may_go(lanes).contains(&true)
    }

    /// Whether some of each kind wait and may be told.
    fn may_go(&self, lanes: &mut Lanes) -> [bool; KINDS.len()] {
        KINDS.map(|kind| {
            self.has(kind)
                && match kind {
                    Kind::Group => lanes.may_give(),
                    Kind::Large => lanes.may_tell_large(),
                }
        })
    }

    /// Whether a page with a message of so many bytes has to wait for its turn among the large ones.
    pub fn must_wait(&self, bytes: usize, lanes: &mut Lanes) -> bool {
        let is_next =
            self.served == Some(Kind::Large) || !self.has(Kind::Large) && lanes.may_tell_large();
        bytes > lanes.pace.page_bytes && !is_next
    }

    /// So many steps were done for the page taken last, here and at its carrier.
    pub fn did(&mut self, steps: u64) {
        match self.served.take() {
            Some(kind) => {
                let throttled = &mut self.throttled[kind as usize];
                throttled.queue.did(steps);
                throttled.ahead += steps;
            }
            None => {
                self.queue.did(steps);
                for throttled in &mut self.throttled {
                    throttled.ahead = throttled.ahead.saturating_sub(steps);
                }
            }
        }
    }

    /// Whether pages of this kind wait.
    fn has(&self, kind: Kind) -> bool {
        !self.throttled[kind as usize].queue.is_empty()
    }

    /// Whether some wait that may stand still while carriers have enough to deliver.
    pub fn has_throttled(&self) -> bool {
        KINDS.into_iter().any(|kind| self.has(kind))
    }

    pub fn len(&self) -> usize {
        let throttled = self.throttled.iter().map(|throttled| throttled.queue.len());
        self.queue.len() + throttled.sum::<usize>()
    }

    /// Whether no page waits but those that may have to stand still.
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
        let throttled = self
            .throttled
            .iter()
            .map(|throttled| throttled.queue.bytes());
        self.queue.bytes() + throttled.sum::<usize>() + self.names_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_pages_are_counted_until_they_are_read() {
        let mut page_queue = PageQueue::new(&Steps::default());
        for id in 0..1_000 {
            page_queue.push(PendingPage::Group(id, Party::user("a", 0)));
        }
        assert!(page_queue.bytes() >= 1_000 * size_of::<PendingPage>());
        let mut lanes = Lanes::new(0, 1);
        while page_queue.pop(&mut lanes).is_some() {}
        assert_eq!(page_queue.bytes(), 0);
    }
}
