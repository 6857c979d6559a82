//! The watchers of one topic, and the members that have left it and are remembered for them.
//!
//! A watcher that can take a page is in one of two sets: `lacking` if it has unsent news, otherwise `content`. Both are ordered by the time from
//! which the watcher may get a page. So no call examines watchers that must wait, and the watcher that has waited longest comes first.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use super::rows::Leave;
use crate::base::ids::ShardId;
use crate::mail::ReplyTo;

/// At most this many leaves of a topic are remembered. If the topic has more members, as many leaves as members, since a snapshot is longer.
const GONE_MIN: usize = 1_024;
/// The minimum time between two pages for a watcher that knows everything, so that changes are sent together.
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
    /// The watcher knows exactly the members that joined up to this change and had not left by change `left`.
    pub(super) joined: u64,
    /// The watcher knows of all leaves up to this change.
    pub(super) left: u64,
    /// Whether its next page begins a snapshot.
    pub(super) begins: bool,
    /// Whether it has got a whole snapshot.
    pub(super) is_whole: bool,
    /// Whether it gets its next page even if nothing has changed.
    pub(super) is_due: bool,
    /// Whether it is told of each connection. Then no member of the topic continues with another connection.
    by_connection: bool,
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
            joined: from.unwrap_or(0),
            left: from.unwrap_or(changed),
            begins: from.is_none(),
            is_whole: from.is_some(),
            is_due: true,
            by_connection: false,
            is_ready: false,
            unlisted: 0,
            next_ns: 0,
            reset_ns: 0,
        }
    }

    /// A watcher that gets only what changes after change `changed`, and is told of each connection.
    pub(super) fn of_changes(to: ReplyTo, changed: u64) -> Watcher {
        Watcher {
            by_connection: true,
            is_due: false,
            ..Watcher::new(to, Some(changed), changed)
        }
    }

    /// Whether the watcher does not know the topic as of this change, or must get a page anyway.
    fn lacks(&self, changed: u64) -> bool {
        self.is_due || !self.is_whole || self.left < changed || self.joined < self.left
    }
}

/// The state of a topic that is watched, or was watched a short time ago.
#[derive(Default)]
pub(super) struct Watched {
    watchers: BTreeMap<WatcherKey, Watcher>,
    /// The number of watchers that are told of each connection.
    by_connection: usize,
    lacking: BTreeSet<(u64, WatcherKey)>,
    content: BTreeSet<(u64, WatcherKey)>,
    /// The members that have left, in the order of their leaves.
    pub(super) gone: VecDeque<Leave>,
    /// Members that left up to this change may be forgotten.
    pub(super) floor: u64,
    /// No watcher, present or past, knows a member that joined after this change.
    known: u64,
    /// Without a watcher: the second in which this state is forgotten.
    pub(super) ends_s: u32,
    /// The time at which the next watcher may get a page: the topic's key in [`Presence::due`](super::Presence::due).
    pub(super) due_ns: Option<u64>,
}

/// The bytes of a watcher in the trees, which are about two thirds full.
pub(super) const WATCHER_BYTES: usize =
    (size_of::<(WatcherKey, Watcher)>() + size_of::<(u64, WatcherKey)>()) * 3 / 2;

impl Watched {
    /// A topic that is watched from this change on.
    pub(super) fn new(changed: u64) -> Watched {
        Watched {
            floor: changed,
            known: changed,
            ..Watched::default()
        }
    }

    /// Whether the topic has no watchers.
    pub(super) fn is_unwatched(&self) -> bool {
        self.watchers.is_empty()
    }

    /// Whether a watcher is told of each connection.
    pub(super) fn tells_connections(&self) -> bool {
        self.by_connection > 0
    }

    /// The time from which the next watcher with unsent news may get a page.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.lacking.first().map(|(at_ns, _)| *at_ns)
    }

    /// Adds a watcher that can take a page.
    pub(super) fn add(&mut self, shard: ShardId, watcher: Watcher, now_ns: u64) {
        self.by_connection += usize::from(watcher.by_connection);
        let changed = watcher.left;
        let key = key_of(shard, watcher.to);
        self.known = self.known.max(watcher.joined);
        let former = self.watchers.insert(key, watcher);
        debug_assert!(former.is_none(), "a connection watches once");
        self.is_ready(key, (changed, now_ns));
    }

    /// Removes a watcher. Returns whether it was there.
    pub(super) fn remove(&mut self, key: WatcherKey) -> bool {
        let Some(watcher) = self.watchers.remove(&key) else {
            return false;
        };
        self.by_connection -= usize::from(watcher.by_connection);
        if watcher.is_ready {
            let entry = (watcher.next_ns, key);
            let _ = self.lacking.remove(&entry) || self.content.remove(&entry);
        }
        true
    }

    /// Notes that a watcher can take another page.
    pub(super) fn is_ready(&mut self, key: WatcherKey, (changed, now_ns): (u64, u64)) {
        let Some(watcher) = self.watchers.get_mut(&key) else {
            return;
        };
        if watcher.is_ready {
            return;
        }
        watcher.is_ready = true;
        let is_behind = watcher.is_due || !watcher.is_whole || watcher.joined < watcher.left;
        if is_behind {
            watcher.next_ns = now_ns;
        }
        let lacks = watcher.lacks(changed);
        let set = match lacks {
            true => &mut self.lacking,
            false => &mut self.content,
        };
        set.insert((watcher.next_ns, key));
    }

    /// Moves all watchers to `lacking`, because the topic has changed.
    pub(super) fn has_changed(&mut self) {
        // The smaller set is moved into the larger one, so each watcher is moved seldom.
        if self.content.len() > self.lacking.len() {
            core::mem::swap(&mut self.content, &mut self.lacking);
        }
        self.lacking.extend(core::mem::take(&mut self.content));
    }

    /// Makes the next page of the watcher that has waited longest. `page` makes it, or returns `None` if the watcher has no news.
    pub(super) fn tell<T>(
        &mut self,
        now_ns: u64,
        mut page: impl FnMut(&mut Watcher, (&VecDeque<Leave>, u64)) -> Option<T>,
    ) -> Option<(ShardId, ReplyTo, T)> {
        let (_, key) = self.lacking.pop_first()?;
        let watcher = self.watchers.get_mut(&key)?;
        if watcher.left < self.floor {
            let may_ns = watcher.reset_ns.saturating_add(SNAPSHOT_INTERVAL_NS);
            if watcher.reset_ns > 0 && now_ns < may_ns {
                watcher.next_ns = may_ns;
                self.lacking.insert((may_ns, key));
                return None;
            }
            (watcher.begins, watcher.is_whole) = (true, false);
        }
        if watcher.begins {
            watcher.reset_ns = now_ns;
        }
        let made = page(watcher, (&self.gone, self.floor));
        self.known = self.known.max(watcher.joined);
        if now_ns > 0 {
            watcher.next_ns = now_ns + PAGE_INTERVAL_NS;
        }
        match made {
            Some(made) => {
                watcher.is_ready = false;
                Some((key.0, watcher.to, made))
            }
            None => {
                self.content.insert((watcher.next_ns, key));
                None
            }
        }
    }

    /// Remembers a member that has left, if a watcher may know it. Returns the bytes that are added, and the bytes that are forgotten.
    pub(super) fn remember(&mut self, gone: Leave, members: usize) -> (usize, usize) {
        if gone.row.id > self.known {
            return (0, 0);
        }
        let (more, mut less) = (gone.bytes(), 0);
        self.gone.push_back(gone);
        while self.gone.len() > members.max(GONE_MIN)
            && let Some(oldest) = self.gone.pop_front()
        {
            less += oldest.bytes();
            self.floor = oldest.number;
        }
        (more, less)
    }
}
