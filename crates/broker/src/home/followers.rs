//! The followers of a home, the news that waits for them, and topics whose interest outlives their subscribers.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::mail::lanes::Lanes;
use crate::mail::{News, Part, ReplyTo, Tell};

/// Bytes of news that wait for another node at most: some ten thousand changes, and it asks twice a second.
const NODE_NEWS_BYTES_MAX: usize = 256 << 10;

/// A follower.
#[derive(Clone, Copy)]
pub(super) enum FollowerKey {
    /// A connection of this shard.
    Connection(ShardId, ReplyTo),
    /// Another node, by the number of its stream. It is told of subscribers here only, and asks for its news.
    Node(u64),
}

impl FollowerKey {
    fn is(self, other: FollowerKey) -> bool {
        match (self, other) {
            (FollowerKey::Connection(shard, to), FollowerKey::Connection(other_shard, other)) => {
                shard == other_shard && to.slot == other.slot && to.generation == other.generation
            }
            (FollowerKey::Node(stream), FollowerKey::Node(other)) => stream == other,
            _ => false,
        }
    }
}

/// How far a snapshot is.
pub(super) enum Cursor {
    /// The first row that it has not looked at.
    Row(u32),
    /// It has looked at all rows, and at the topics of other nodes up to this name.
    Name(Box<[u8]>),
    /// It is whole.
    Whole,
}

pub(super) struct Follower {
    key: FollowerKey,
    filters: Vec<Box<[u8]>>,
    pub cursor: Cursor,
    pub news: News,
    /// The part of the snapshot in `news`, if one was asked for.
    part: Part,
    /// News had no room.
    lost: bool,
}

impl Follower {
    /// Whether this is another node.
    pub fn is_node(&self) -> bool {
        matches!(self.key, FollowerKey::Node(_))
    }

    /// Whether the snapshot has looked at this row.
    fn is_past_row(&self, topic: u32) -> bool {
        match self.cursor {
            Cursor::Row(next) => topic < next,
            Cursor::Name(_) | Cursor::Whole => true,
        }
    }

    /// Whether the snapshot has looked for this name among the topics of other nodes.
    fn is_past_name(&self, name: &[u8]) -> bool {
        match &self.cursor {
            Cursor::Row(_) => false,
            Cursor::Name(last) => name <= &last[..],
            Cursor::Whole => !self.is_node(),
        }
    }

    /// Adds a topic whose interest begins or ends, if it is one of those that are followed.
    pub fn push(&mut self, begins: bool, name: &[u8]) {
        if !(self.filters.iter()).any(|filter| topic::matches(filter, name)) {
            return;
        }
        self.lost |= self.is_node() && self.news.len() >= NODE_NEWS_BYTES_MAX;
        if !self.lost {
            self.news.push(begins, name);
        }
    }

    /// The news, and whether there is more at once; none if something was lost.
    pub fn take_news(&mut self) -> Option<(News, bool)> {
        let more = !matches!(self.cursor, Cursor::Whole);
        (!self.lost).then(|| (core::mem::take(&mut self.news), more))
    }
}

/// All followers, and the news that waits for them.
pub(super) struct Followers {
    list: Vec<Follower>,
    /// Topics without subscribers that still have interest, and the second in which it ends.
    lingering: BTreeMap<u32, u32>,
    /// The same in the order of the seconds.
    ends: BTreeSet<(u32, u32)>,
    /// Seconds that interest outlives the last subscriber.
    pub debounce_s: u32,
    has_news: bool,
}

impl Followers {
    pub fn new(debounce_s: u32) -> Self {
        Followers {
            list: Vec::new(),
            lingering: BTreeMap::new(),
            ends: BTreeSet::new(),
            debounce_s,
            has_news: false,
        }
    }

    pub fn len(&self) -> u32 {
        self.list.len() as u32
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn lingers(&self, topic: u32) -> bool {
        !self.lingering.is_empty() && self.lingering.contains_key(&topic)
    }

    /// Begins to follow.
    pub fn add(&mut self, key: FollowerKey, filters: Vec<Box<[u8]>>) {
        self.list.push(Follower {
            key,
            filters,
            cursor: Cursor::Row(0),
            news: News::default(),
            part: Part::Live,
            lost: false,
        });
    }

    /// A follower is gone; says whether it was there.
    pub fn remove(&mut self, key: FollowerKey) -> bool {
        let was_there = self.take(key).is_some();
        if self.list.is_empty() {
            *self = Followers::new(self.debounce_s);
        }
        was_there
    }

    /// Takes a follower out, to be put back.
    pub fn take(&mut self, key: FollowerKey) -> Option<Follower> {
        let place = self.list.iter().position(|it| it.key.is(key))?;
        Some(self.list.swap_remove(place))
    }

    /// Puts a follower back.
    pub fn put(&mut self, follower: Follower) {
        self.list.push(follower);
    }

    /// Puts a follower back whose news have a page of its snapshot.
    pub fn put_page(&mut self, mut follower: Follower) {
        follower.part = match follower.cursor {
            Cursor::Whole => Part::Last,
            Cursor::Row(_) | Cursor::Name(_) => Part::More,
        };
        self.has_news = true;
        self.put(follower);
    }

    /// The filters that connections follow, each once.
    pub fn filters(&self) -> BTreeSet<Box<[u8]>> {
        let connections = self.list.iter().filter(|it| !it.is_node());
        connections.flat_map(|it| it.filters.clone()).collect()
    }

    /// A topic's interest lingers no more, because it has a subscriber again or is forgotten; says whether it did.
    pub fn stop_lingering(&mut self, topic: u32) -> bool {
        let end_s = self.lingering.remove(&topic);
        end_s.is_some_and(|end_s| self.ends.remove(&(end_s, topic)))
    }

    /// A topic has no subscriber any more, and interest for some time yet; false when it has none from now on.
    pub fn linger(&mut self, topic: u32, now: Now) -> bool {
        if self.debounce_s == 0 {
            return false;
        }
        // The current second has begun already: one more makes it the whole time at least.
        let end_s = now.s + self.debounce_s + 1;
        if let Some(former) = self.lingering.insert(topic, end_s) {
            self.ends.remove(&(former, topic));
        }
        self.ends.insert((end_s, topic));
        true
    }

    /// The next topic whose interest ends and is due.
    pub fn next_end(&mut self, now: Now) -> Option<u32> {
        let (end_s, topic) = self.ends.first().copied()?;
        (end_s <= now.s).then_some(topic)
    }

    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Tells each connection its news.
    pub fn tell_news(&mut self, lanes: &mut Lanes) {
        if !core::mem::take(&mut self.has_news) {
            return;
        }
        for follower in &mut self.list {
            let FollowerKey::Connection(shard, to) = follower.key else {
                continue;
            };
            let part = core::mem::replace(&mut follower.part, Part::Live);
            if part == Part::Live && follower.news.is_empty() {
                continue;
            }
            let news = core::mem::take(&mut follower.news);
            lanes.tell(shard, Tell::Interest { to, news, part });
        }
    }

    /// Whether no interest lingers, and no end of it is due.
    #[cfg(test)]
    pub fn nothing_lingers(&self) -> bool {
        self.lingering.is_empty() && self.ends.is_empty()
    }

    /// A topic's interest here begins or ends: followers whose snapshot is past its row are told, but those that know it to have
    /// interest at another node, as `remote` says.
    pub fn tell(&mut self, topic: u32, name: &[u8], begins: bool, remote: bool) {
        for follower in &mut self.list {
            if follower.is_past_row(topic) && !(remote && follower.is_past_name(name)) {
                follower.push(begins, name);
                self.has_news = true;
            }
        }
    }

    /// The interest of other nodes in a topic without interest here begins or ends.
    pub fn tell_remote(&mut self, name: &[u8], begins: bool) {
        for follower in &mut self.list {
            if follower.is_past_name(name) {
                follower.push(begins, name);
                self.has_news = true;
            }
        }
    }
}
