//! The watchers of one topic, and the members that have left it and are remembered for them.
//!
//! A watcher has *news* if there are changes that it was not told. A watcher that can take a page is in one of two sets: `with_news` or `without_news`.
//! Both are ordered by the time from which the watcher may get a page. So no call examines watchers that must wait, and the watcher that has waited
//! longest comes first.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use super::rows::Leave;
use crate::base::ids::ShardId;
use crate::mail::ReplyTo;

/// At most this many leaves of a topic are remembered. If the topic has more members, as many leaves as members are remembered: a snapshot would be longer.
const LEAVES_KEPT_MIN: usize = 1_024;
/// The minimum time between two pages for a watcher that has no news, so that changes are sent together.
const PAGE_INTERVAL_NS: u64 = 100_000_000;
/// The minimum time between two snapshots for a watcher.
const SNAPSHOT_INTERVAL_NS: u64 = 1_000_000_000;

/// Identifies a watcher by its shard and connection.
pub(super) type WatcherKey = (ShardId, u32, u16);

/// The key of a watcher.
pub(super) fn key_of(shard: ShardId, to: ReplyTo) -> WatcherKey {
    (shard, to.slot, to.generation)
}

/// A watcher of one topic.
pub(super) struct Watcher {
    pub(super) to: ReplyTo,
    /// The watcher knows exactly the members that joined up to this change and had not left by change `leaves_until`.
    pub(super) joins_until: u64,
    /// The watcher knows of all leaves up to this change.
    pub(super) leaves_until: u64,
    /// Whether the watcher's next page begins a snapshot.
    pub(super) begins_snapshot: bool,
    /// Whether it has got a whole snapshot.
    pub(super) has_whole_snapshot: bool,
    /// Whether it gets its next page even if nothing has changed.
    pub(super) is_due: bool,
    /// Whether it is told of each connection. Then no member of the topic continues with another connection.
    wants_connections: bool,
    /// Whether it can take a page. Then it is in one of the two sets.
    is_ready: bool,
    /// The number of unlisted connections in its last page.
    pub(super) unlisted: u32,
    /// The time from which it may get its next page.
    next_ns: u64,
    /// The time at which its last snapshot began.
    reset_ns: u64,
}

impl Watcher {
    /// A watcher that knows the topic as of change `from`; `None`: it knows nothing of the topic.
    pub(super) fn new(to: ReplyTo, from: Option<u64>, changed: u64) -> Watcher {
        Watcher {
            to,
            joins_until: from.unwrap_or(0),
            leaves_until: from.unwrap_or(changed),
            begins_snapshot: from.is_none(),
            has_whole_snapshot: from.is_some(),
            is_due: true,
            wants_connections: false,
            is_ready: false,
            unlisted: 0,
            next_ns: 0,
            reset_ns: 0,
        }
    }

    /// A watcher that gets only what changes after change `changed`, and is told of each connection.
    pub(super) fn of_changes(to: ReplyTo, changed: u64) -> Watcher {
        Watcher {
            wants_connections: true,
            is_due: false,
            ..Watcher::new(to, Some(changed), changed)
        }
    }

    /// Whether the watcher does not know the topic as of this change, or must get a page anyway.
    fn has_news(&self, changed: u64) -> bool {
        self.is_due
            || !self.has_whole_snapshot
            || self.leaves_until < changed
            || self.joins_until < self.leaves_until
    }
}

/// The state of a topic that is watched, or was watched a short time ago.
#[derive(Default)]
pub(super) struct WatchedTopic {
    watchers: BTreeMap<WatcherKey, Watcher>,
    /// The number of watchers that are told of each connection.
    connection_watchers: usize,
    with_news: BTreeSet<(u64, WatcherKey)>,
    without_news: BTreeSet<(u64, WatcherKey)>,
    /// The members that have left, in the order of their leaves.
    pub(super) leaves: VecDeque<Leave>,
    /// Members that left up to this change may be forgotten.
    pub(super) forgotten_until: u64,
    /// No watcher, present or past, knows a member that joined after this change.
    known_joins_until: u64,
    /// Without a watcher: the second in which this state is forgotten.
    pub(super) ends_s: u32,
    /// The time at which the next watcher may get a page: the topic's key in [`Presence::due_topics`](super::Presence::due_topics).
    pub(super) due_ns: Option<u64>,
}

/// Leaves that were forgotten.
pub(super) struct Forgotten {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

/// The bytes of a watcher in the trees, which are about two thirds full.
pub(super) const WATCHER_BYTES: usize =
    (size_of::<(WatcherKey, Watcher)>() + size_of::<(u64, WatcherKey)>()) * 3 / 2;

impl WatchedTopic {
    /// A topic that is watched from this change on.
    pub(super) fn new(changed: u64) -> WatchedTopic {
        WatchedTopic {
            forgotten_until: changed,
            known_joins_until: changed,
            ..WatchedTopic::default()
        }
    }

    /// Whether the topic has no watchers.
    pub(super) fn is_unwatched(&self) -> bool {
        self.watchers.is_empty()
    }

    /// Whether a watcher is told of each connection.
    pub(super) fn tells_connections(&self) -> bool {
        self.connection_watchers > 0
    }

    /// The time from which the next watcher with unsent news may get a page.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.with_news.first().map(|(at_ns, _)| *at_ns)
    }

    /// Adds a watcher that can take a page.
    pub(super) fn add(&mut self, shard: ShardId, watcher: Watcher, now_ns: u64) {
        self.connection_watchers += usize::from(watcher.wants_connections);
        let changed = watcher.leaves_until;
        let key = key_of(shard, watcher.to);
        self.known_joins_until = self.known_joins_until.max(watcher.joins_until);
        let former = self.watchers.insert(key, watcher);
        debug_assert!(former.is_none(), "a connection watches once");
        self.set_ready(key, changed, now_ns);
    }

    /// Removes a watcher. Returns whether it was there.
    pub(super) fn remove(&mut self, key: WatcherKey) -> bool {
        let Some(watcher) = self.watchers.remove(&key) else {
            return false;
        };
        self.connection_watchers -= usize::from(watcher.wants_connections);
        if watcher.is_ready {
            let entry = (watcher.next_ns, key);
            let _ = self.with_news.remove(&entry) || self.without_news.remove(&entry);
        }
        true
    }

    /// Called when a watcher can take another page. `changed` is the number of the topic's last change.
    pub(super) fn set_ready(&mut self, key: WatcherKey, changed: u64, now_ns: u64) {
        let Some(watcher) = self.watchers.get_mut(&key) else {
            return;
        };
        if watcher.is_ready {
            return;
        }
        watcher.is_ready = true;
        let is_behind = watcher.is_due
            || !watcher.has_whole_snapshot
            || watcher.joins_until < watcher.leaves_until;
        if is_behind {
            watcher.next_ns = now_ns;
        }
        let has_news = watcher.has_news(changed);
        let set = match has_news {
            true => &mut self.with_news,
            false => &mut self.without_news,
        };
        set.insert((watcher.next_ns, key));
    }

    /// Moves all watchers that can take a page to `with_news`, because the topic has changed.
    pub(super) fn mark_changed(&mut self) {
        // The smaller set is moved into the larger one, so each watcher is moved seldom.
        if self.without_news.len() > self.with_news.len() {
            core::mem::swap(&mut self.without_news, &mut self.with_news);
        }
        self.with_news
            .extend(core::mem::take(&mut self.without_news));
    }

    /// Makes the next page of the watcher that has waited longest. `page` makes this page, or returns `None` if the watcher has no news.
    pub(super) fn make_page<T>(
        &mut self,
        now_ns: u64,
        mut page: impl FnMut(&mut Watcher, (&VecDeque<Leave>, u64)) -> Option<T>,
    ) -> Option<(ShardId, ReplyTo, T)> {
        let (_, key) = self.with_news.pop_first()?;
        let watcher = self.watchers.get_mut(&key)?;
        if watcher.leaves_until < self.forgotten_until {
            let may_ns = watcher.reset_ns.saturating_add(SNAPSHOT_INTERVAL_NS);
            if watcher.reset_ns > 0 && now_ns < may_ns {
                watcher.next_ns = may_ns;
                self.with_news.insert((may_ns, key));
                return None;
            }
            (watcher.begins_snapshot, watcher.has_whole_snapshot) = (true, false);
        }
        if watcher.begins_snapshot {
            watcher.reset_ns = now_ns;
        }
        let made = page(watcher, (&self.leaves, self.forgotten_until));
        self.known_joins_until = self.known_joins_until.max(watcher.joins_until);
        if now_ns > 0 {
            watcher.next_ns = now_ns + PAGE_INTERVAL_NS;
        }
        match made {
            Some(made) => {
                watcher.is_ready = false;
                Some((key.0, watcher.to, made))
            }
            None => {
                self.without_news.insert((watcher.next_ns, key));
                None
            }
        }
    }

    /// Forgets the members that left first, at most `leaves_max` of them. A watcher that comes meanwhile knows from `forgotten_until` that they are missing.
    pub(super) fn forget_leaves(&mut self, leaves_max: usize) -> Forgotten {
        let count = self.leaves.len().min(leaves_max);
        let mut bytes = 0;
        for leave in self.leaves.drain(..count) {
            bytes += leave.bytes();
            self.forgotten_until = leave.number;
        }
        Forgotten { count, bytes }
    }

    /// Remembers a member that has left, if a watcher may know it. Returns the bytes that are added, and the bytes that are forgotten.
    pub(super) fn remember_leave(&mut self, leave: Leave, members: usize) -> (usize, usize) {
        if leave.row.id > self.known_joins_until {
            return (0, 0);
        }
        let (added_bytes, mut forgotten_bytes) = (leave.bytes(), 0);
        self.leaves.push_back(leave);
        while self.leaves.len() > members.max(LEAVES_KEPT_MIN)
            && let Some(oldest) = self.leaves.pop_front()
        {
            forgotten_bytes += oldest.bytes();
            self.forgotten_until = oldest.number;
        }
        (added_bytes, forgotten_bytes)
    }
}
