//! The queue of the pages (bounded runs of past messages) that a home (the part of a shard that keeps topics) must read. The parties (addresses and
//! users) that get the pages have fair shares.
//!
//! Two kinds of pages have their own, throttled queues: pages for members of groups (MQTT shared subscriptions), and pages whose first message
//! exceeds the page size. While carriers (the shards with subscribers) still have enough pages of such a kind to deliver, this kind waits, and other
//! pages overtake it. The queues that do not wait get equal shares of the work, which is counted in steps.
//!
//! Other words: a *subscriber by filter* subscribes with wildcards. A *gap* is the notice that messages are lost. A *follower* is a client
//! that is told which topics have subscribers. *Late* groups get a message in a later turn (a pass of the shard's loop).

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::base::fair_queue::FairQueue;
use crate::base::ids::{PartitionId, ShardId};
use crate::base::work::Steps;
use crate::budget::admission::Party;
use crate::mail::lanes::Lanes;
use crate::mail::{Attach, AttachFilters, ReplyTo};

/// The progress of the search for the first message of a page.
#[derive(Clone, Copy)]
pub(crate) enum SearchProgress {
    /// The search has not begun.
    Unknown,
    /// The search counts back from the newest message, and has reached the message at `offset`. This message and `left - 1` older messages are left to
    /// count.
    CountingBack {
        offset: u64,
        left: u32,
    },
    Found(PageStart),
}

/// Where a page begins.
#[derive(Clone, Copy)]
pub(crate) struct PageStart {
    /// The page begins after this offset.
    pub offset: u64,
    /// Whether earlier messages are lost, so that the page begins with a gap.
    pub gap: bool,
    /// Whether the subscriber gave a position, so that it gets a gap for losses after that position.
    pub has_position: bool,
}

/// A page that cannot be read yet.
pub(crate) struct DeferredPage {
    pub progress: SearchProgress,
    /// Whether the page's first message exceeds the page size.
    pub is_large: bool,
}

impl From<SearchProgress> for DeferredPage {
    fn from(progress: SearchProgress) -> DeferredPage {
        DeferredPage {
            progress,
            is_large: false,
        }
    }
}

/// A subscriber by filter that reads a partition: its position in that partition, and its request.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    pub partition: PartitionId,
    /// The page begins after this offset.
    pub start: u64,
    /// The last offset of the initial snapshot (messages from before the subscription); 0 if the subscriber gets no snapshot.
    pub snapshot_end: u64,
    /// How many of each topic's newest messages the snapshot contains. If this is 0, it contains only latest values and retained messages.
    pub newest: u32,
    /// Losses are numbered in their order. A loss up to this number was before the subscription, and causes no gap. 0 if the subscriber gave a position.
    pub losses_before: u64,
    /// Whether the page begins with a gap.
    pub has_gap: bool,
    /// Whether the subscriber gets retained messages: those up to `snapshot_end`, and those that are no longer in their topic's log.
    pub gets_retained: bool,
    /// The partition's last offset when the subscription was requested. Losses after it cause a gap even without a position.
    pub offset_when_asked: u64,
}

/// The filters of an attach. If pages of several partitions are queued, they share one copy.
pub(super) struct FilterNames<'a> {
    text: &'a [u8],
    share_count: usize,
    shared: Option<SharedFilterNames>,
}

/// The copy that queued pages share.
#[derive(Clone)]
pub(crate) struct SharedFilterNames {
    pub text: Arc<[u8]>,
    /// The number of pages that may share the copy. Each page is charged an equal part of the bytes.
    share_count: usize,
}

impl<'a> FilterNames<'a> {
    /// The filters of an attach to `shares` partitions.
    pub fn new(text: &'a [u8], shares: usize) -> FilterNames<'a> {
        FilterNames {
            text,
            share_count: shares,
            shared: None,
        }
    }

    /// The shared copy, made by the first call.
    pub fn share(&mut self) -> SharedFilterNames {
        let FilterNames {
            text,
            share_count: shares,
            ..
        } = *self;
        let make = || SharedFilterNames {
            text: text.into(),
            share_count: shares,
        };
        self.shared.get_or_insert_with(make).clone()
    }
}

/// A page to read.
pub(crate) enum PendingPage {
    /// For a subscriber of a topic.
    Topic {
        from: ShardId,
        ask: Attach,
        name: Box<[u8]>,
        /// The search for the page's first message.
        progress: SearchProgress,
        /// Whether the topic's row counts the subscriber already.
        is_counted: bool,
    },
    /// For a subscriber by filter.
    Filters {
        from: ShardId,
        ask: AttachFilters,
        names: SharedFilterNames,
        reader: Reader,
    },
    /// For a group. The party is that of the group's next member.
    Group(u64, Party),
    /// Not a page: makes some of the late groups read the log (see `groups/lists.rs`).
    LateGroups,
    /// For a follower: a page of its list of the topics that have subscribers.
    Interest(ShardId, ReplyTo, Party),
}

impl PendingPage {
    /// Heap bytes of names and filters.
    pub(super) fn names_bytes(&self) -> usize {
        match self {
            PendingPage::Topic { name, .. } => name.len(),
            PendingPage::Filters { names, .. } => names.text.len().div_ceil(names.share_count),
            PendingPage::Group(..) | PendingPage::LateGroups | PendingPage::Interest(..) => 0,
        }
    }

    /// The number of the party that is charged.
    fn party(&self) -> u64 {
        match self {
            PendingPage::Topic { ask, .. } => ask.party.number(),
            PendingPage::Filters { ask, .. } => ask.party.number(),
            PendingPage::Group(_, party) | PendingPage::Interest(.., party) => party.number(),
            PendingPage::LateGroups => LATE_GROUPS,
        }
    }
}

/// The party number of the entry for late groups. No address or user has this number.
const LATE_GROUPS: u64 = 1 << 59;

/// The kinds of throttled pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageKind {
    /// For members of groups.
    Group,
    /// Pages whose first message exceeds the page size.
    Large,
}

const KINDS: [PageKind; 2] = [PageKind::Group, PageKind::Large];

/// The queue of a throttled kind of pages.
#[derive(Default)]
struct ThrottledQueue {
    queue: FairQueue<PendingPage>,
    /// The steps that this queue has used beyond its fair share. It runs again when the other queues have caught up.
    steps_ahead: u64,
}

/// All queued pages.
pub(crate) struct PageQueue {
    unthrottled: FairQueue<PendingPage>,
    /// By [`PageKind`].
    throttled: [ThrottledQueue; KINDS.len()],
    /// The kind of the page being read; `None` for a page that is not throttled.
    kind_in_service: Option<PageKind>,
    /// Heap bytes of the names and filters in the queued pages.
    names_bytes: usize,
    /// The count of steps at the end of the last turn.
    turn_start_steps: u64,
    /// The number of pages that were queued since the start.
    pub queued_count: u64,
    pub(super) steps: Steps,
}

impl PageQueue {
    pub fn new(steps: &Steps) -> PageQueue {
        PageQueue {
            unthrottled: FairQueue::default(),
            throttled: Default::default(),
            kind_in_service: None,
            names_bytes: 0,
            turn_start_steps: 0,
            queued_count: 0,
            steps: steps.clone(),
        }
    }

    pub fn push(&mut self, page: PendingPage) {
        self.names_bytes += page.names_bytes();
        let queue = match page {
            PendingPage::Group(..) => &mut self.throttled[PageKind::Group as usize].queue,
            _ => &mut self.unthrottled,
        };
        queue.push(page.party(), page);
    }

    /// Queues a page that begins with a large message.
    pub fn push_large(&mut self, page: PendingPage) {
        self.names_bytes += page.names_bytes();
        let queue = &mut self.throttled[PageKind::Large as usize].queue;
        queue.push(page.party(), page);
    }

    /// Takes the next page. Skips a throttled kind while carriers have enough pages of that kind to deliver.
    pub fn pop(&mut self, lanes: &mut Lanes) -> Option<PendingPage> {
        let can_run_by_kind = self.runnable_kinds(lanes);
        let can_run = |kind: &PageKind| can_run_by_kind[*kind as usize];
        if !self.has_unthrottled() {
            let steps_ahead = |kind| self.throttled[kind as usize].steps_ahead;
            let least_ahead = KINDS.into_iter().filter(can_run).map(steps_ahead).min();
            for throttled in &mut self.throttled {
                throttled.steps_ahead = throttled
                    .steps_ahead
                    .saturating_sub(least_ahead.unwrap_or(u64::MAX));
            }
        }
        let is_due =
            |kind: &PageKind| can_run(kind) && self.throttled[*kind as usize].steps_ahead == 0;
        self.kind_in_service = KINDS.into_iter().find(is_due);
        let queue = match self.kind_in_service {
            Some(kind) => &mut self.throttled[kind as usize].queue,
            None => &mut self.unthrottled,
        };
        let page = queue.pop()?;
        self.names_bytes -= page.names_bytes();
        Some(page)
    }

    /// Whether a page can be read now.
    pub fn can_read_page(&self, lanes: &mut Lanes) -> bool {
        self.has_unthrottled() || self.has_throttled() && self.runnable_kinds(lanes).contains(&true)
    }

    /// For each kind: whether a page waits, and carriers can take it.
    fn runnable_kinds(&self, lanes: &mut Lanes) -> [bool; KINDS.len()] {
        KINDS.map(|kind| {
            self.has_kind(kind)
                && match kind {
                    PageKind::Group => lanes.may_tell_group_members(),
                    PageKind::Large => lanes.may_tell_large(),
                }
        })
    }

    /// Whether a page that begins with a message of this size must wait in the queue of pages with large messages.
    pub fn must_wait_as_large(&self, bytes: usize, lanes: &mut Lanes) -> bool {
        let may_be_read = self.kind_in_service == Some(PageKind::Large)
            || !self.has_kind(PageKind::Large) && lanes.may_tell_large();
        bytes > lanes.turn_limits.page_bytes && !may_be_read
    }

    /// Charges these steps to the party of the page that was taken last: the work of this home, and of the carrier that gets the page.
    pub fn charge(&mut self, steps: u64) {
        match self.kind_in_service.take() {
            Some(kind) => {
                let throttled = &mut self.throttled[kind as usize];
                throttled.queue.charge(steps);
                throttled.steps_ahead += steps;
            }
            None => {
                self.unthrottled.charge(steps);
                for throttled in &mut self.throttled {
                    throttled.steps_ahead = throttled.steps_ahead.saturating_sub(steps);
                }
            }
        }
    }

    /// Whether pages of this kind wait.
    fn has_kind(&self, kind: PageKind) -> bool {
        !self.throttled[kind as usize].queue.is_empty()
    }

    /// Whether throttled pages wait, of any kind.
    pub fn has_throttled(&self) -> bool {
        KINDS.into_iter().any(|kind| self.has_kind(kind))
    }

    pub fn len(&self) -> usize {
        let throttled = self.throttled.iter().map(|throttled| throttled.queue.len());
        self.unthrottled.len() + throttled.sum::<usize>()
    }

    /// Whether a page waits in the queue that is never throttled.
    pub fn has_unthrottled(&self) -> bool {
        !self.unthrottled.is_empty()
    }

    /// Ends the turn (a pass of the shard's loop) at this count of steps.
    pub fn end_turn(&mut self, steps: u64) {
        self.turn_start_steps = steps;
    }

    /// The steps of work of this turn. `steps` is the present count.
    pub fn steps_of_turn(&self, steps: u64) -> u64 {
        steps - self.turn_start_steps
    }

    /// Heap bytes of all queues.
    #[inline]
    pub fn bytes(&self) -> usize {
        let throttled = self
            .throttled
            .iter()
            .map(|throttled| throttled.queue.bytes());
        self.unthrottled.bytes() + throttled.sum::<usize>() + self.names_bytes
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
