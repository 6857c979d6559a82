//! The followers of a home, the news that waits for them, and topics whose interest outlives their subscribers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crore_wire::topic;

use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::mail::lanes::Lanes;
use crate::mail::{News, Part, ReplyTo, Tell};
use crate::store::slab::NONE;

struct Follower {
    shard: ShardId,
    to: ReplyTo,
    filter: Vec<u8>,
    /// The first row that the snapshot has not looked at; [`NONE`] when it is whole.
    cursor: u32,
    news: News,
    /// The part of the snapshot in `news`, if one was asked for.
    part: Part,
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

    fn place(&self, shard: ShardId, to: ReplyTo) -> Option<usize> {
        let is = |f: &Follower| {
            f.shard == shard && f.to.slot == to.slot && f.to.generation == to.generation
        };
        self.list.iter().position(is)
    }

    /// A connection begins to follow.
    pub fn add(&mut self, shard: ShardId, to: ReplyTo, filter: &[u8]) {
        self.list.push(Follower {
            shard,
            to,
            filter: filter.to_vec(),
            cursor: 0,
            news: News::default(),
            part: Part::Live,
        });
    }

    /// A follower is gone.
    pub fn remove(&mut self, shard: ShardId, to: ReplyTo) {
        let place = self.place(shard, to);
        let place = place.expect("a carrier speaks only of followers that it made");
        self.list.swap_remove(place);
        if self.list.is_empty() {
            *self = Followers::new(self.debounce_s);
        }
    }

    /// The next page of a follower's snapshot, unless the follower has gone meanwhile: at most so many rows of `end`, and so many bytes.
    /// `is_watched` says whether the topic in a row has subscribers.
    pub fn next_page<'a>(
        &mut self,
        (shard, to): (ShardId, ReplyTo),
        (end, rows_max, bytes_max): (u32, u32, usize),
        is_watched: impl Fn(u32) -> bool,
        name_of: impl Fn(u32) -> &'a [u8],
    ) {
        let Some(place) = self.place(shard, to) else {
            return;
        };
        let follower = &mut self.list[place];
        let until = end.min(follower.cursor.saturating_add(rows_max));
        while follower.cursor < until && follower.news.len() < bytes_max {
            let id = follower.cursor;
            follower.cursor += 1;
            if !is_watched(id) && !self.lingering.contains_key(&id) {
                continue;
            }
            let name = name_of(id);
            if topic::matches(&follower.filter, name) {
                follower.news.push(true, name);
            }
        }
        follower.part = Part::More;
        if follower.cursor == end {
            (follower.cursor, follower.part) = (NONE, Part::Last);
        }
        self.has_news = true;
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

    /// Tells each follower its news.
    pub fn tell_news(&mut self, lanes: &mut Lanes) {
        if !core::mem::take(&mut self.has_news) {
            return;
        }
        for follower in &mut self.list {
            let part = core::mem::replace(&mut follower.part, Part::Live);
            if part == Part::Live && follower.news.is_empty() {
                continue;
            }
            let (to, news) = (follower.to, core::mem::take(&mut follower.news));
            lanes.tell(follower.shard, Tell::Interest { to, news, part });
        }
    }

    /// Whether no interest lingers, and no end of it is due.
    #[cfg(test)]
    pub fn nothing_lingers(&self) -> bool {
        self.lingering.is_empty() && self.ends.is_empty()
    }

    /// A topic's interest begins or ends: followers whose snapshot is past its row are told.
    pub fn tell(&mut self, topic: u32, name: &[u8], begins: bool) {
        for follower in &mut self.list {
            if topic < follower.cursor && topic::matches(&follower.filter, name) {
                follower.news.push(begins, name);
                self.has_news = true;
            }
        }
    }
}
