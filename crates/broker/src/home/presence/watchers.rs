//! The watchers of one topic, and the members that have left it and are remembered for them.
//!
//! A watcher that can take a page is in one of two sets: of those that lack something, or of those that lack nothing. Both are ordered by the time from which
//! the watcher may be told. So nobody looks at a watcher that cannot be told, and those that wait longest come first.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use super::rows::Gone;
use crate::base::ids::ShardId;
use crate::mail::ReplyTo;

/// The members that have left one topic and are remembered, if the topic has not more members: a snapshot would be longer.
const GONE_MIN: usize = 1_024;
/// The least time between two pages for a watcher that has its snapshot: its changes come together.
const PAGE_INTERVAL_NS: u64 = 100_000_000;
/// The least time between two snapshots for a watcher.
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
    /// It knows the members that came up to this change,
    pub(super) joined: u64,
    /// as they were after this change.
    pub(super) left: u64,
    /// Its next page begins a snapshot.
    pub(super) begins: bool,
    /// It has a whole snapshot.
    pub(super) is_whole: bool,
    /// It gets its next page even if nothing has changed.
    pub(super) is_due: bool,
    /// It is told of each connection, so members do not go on with another one.
    by_connection: bool,
    /// It can take a page, and is in one of the two sets.
    is_ready: bool,
    /// The unlisted connections that it was told of.
    pub(super) unlisted: u32,
    /// From when on it may be told.
    next_ns: u64,
    /// When its last snapshot began.
    reset_ns: u64,
}

impl Watcher {
    /// A watcher that knows the topic as it was after change `from`, or nothing of it.
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

    /// A watcher that is told what changes after change `changed`, connection by connection.
    pub(super) fn of_changes(to: ReplyTo, changed: u64) -> Watcher {
        Watcher {
            by_connection: true,
            is_due: false,
            ..Watcher::new(to, Some(changed), changed)
        }
    }

    /// Whether the watcher does not know the topic as it was after this change.
    fn lacks(&self, changed: u64) -> bool {
        self.is_due || !self.is_whole || self.left < changed || self.joined < self.left
    }
}

/// What a watched topic has besides its members.
#[derive(Default)]
pub(super) struct Watched {
    watchers: BTreeMap<WatcherKey, Watcher>,
    /// Those that are told of each connection.
    by_connection: usize,
    lacking: BTreeSet<(u64, WatcherKey)>,
    content: BTreeSet<(u64, WatcherKey)>,
    /// The members that have left, in order.
    pub(super) gone: VecDeque<Gone>,
    /// Members that left up to this change are forgotten.
    pub(super) floor: u64,
    /// No watcher, and nobody who may come back, knows a member that came after this change.
    known: u64,
    /// When all this is forgotten, if there is no watcher.
    pub(super) ends_s: u32,
    /// When a watcher is told next: the key of this topic among those that are due.
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

    /// Whether nobody watches.
    pub(super) fn is_unwatched(&self) -> bool {
        self.watchers.is_empty()
    }

    /// Whether a watcher is told of each connection.
    pub(super) fn tells_connections(&self) -> bool {
        self.by_connection > 0
    }

    /// When the next watcher may be told that lacks something.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.lacking.first().map(|(at_ns, _)| *at_ns)
    }

    /// Adds a watcher, which can take a page.
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

    /// A watcher can take another page.
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

    /// The topic has changed, so all watchers lack something.
    pub(super) fn has_changed(&mut self) {
        // The fewer move to the more, so each is moved seldom.
        if self.content.len() > self.lacking.len() {
            core::mem::swap(&mut self.content, &mut self.lacking);
        }
        self.lacking.extend(core::mem::take(&mut self.content));
    }

    /// Makes the next page of the watcher that waits longest. `page` makes it, if the watcher lacks something that it must be told.
    pub(super) fn tell<T>(
        &mut self,
        now_ns: u64,
        mut page: impl FnMut(&mut Watcher, (&VecDeque<Gone>, u64)) -> Option<T>,
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

    /// Remembers a member that has left, if a watcher may know it. Returns the bytes that are remembered more, and those that are forgotten.
    pub(super) fn remember(&mut self, gone: Gone, members: usize) -> (usize, usize) {
        if gone.row.id > self.known {
            return (0, 0);
        }
        let (more, mut less) = (gone.bytes(), 0);
        self.gone.push_back(gone);
        while self.gone.len() > members.max(GONE_MIN)
            && let Some(oldest) = self.gone.pop_front()
        {
            less += oldest.bytes();
            self.floor = oldest.left;
        }
        (more, less)
    }
}
