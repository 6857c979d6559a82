//! Followers: connections that are told which topics have subscribers.
//!
//! A topic *has interest* from its first subscriber on until it has had none for `interest.debounce_s`.
//! Followers are told the changes of that and of nothing else, so that the snapshot and what comes after it
//! speak of the same thing.
//!
//! The snapshot is a cursor over the table of topics, and each page looks at a bounded number of rows.
//! Invariant: a follower has been told of exactly those topics with interest whose rows lie before its cursor.
//! A row before the cursor that changes is told at once; one behind it is not, since the cursor will find it as
//! it is by then. Rows never move, and interest ends before its row is freed: so whatever topic is made or
//! emptied while a cursor walks is told once, on whichever side it lies.
//!
//! Nothing here touches the turn's frames: a subscriber may leave amid a delivery, while they are shared. News waits
//! with the follower until the shard asks for it, at most one turn. Without followers all this is one look at an empty
//! list.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crore_wire::topic;

use super::Home;
use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::mail::lanes::Lanes;
use crate::mail::{News, Part, ReplyTo, Tell};
use crate::store::slab::NONE;

/// Ends of interest told at once, each to all followers: when a crowd leaves, they hear of it over some turns.
const ENDS_AT_ONCE: usize = 64;

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
    /// The same in the order of the seconds; an entry that `lingering` does not confirm is void.
    ends: VecDeque<(u32, u32)>,
    /// Seconds that interest outlives the last subscriber.
    pub debounce_s: u32,
    has_news: bool,
}

impl Followers {
    pub fn new(debounce_s: u32) -> Self {
        Followers {
            list: Vec::new(),
            lingering: BTreeMap::new(),
            ends: VecDeque::new(),
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

    fn tell(&mut self, topic: u32, name: &[u8], begins: bool) {
        for follower in &mut self.list {
            if topic < follower.cursor && topic::matches(&follower.filter, name) {
                follower.news.push(begins, name);
                self.has_news = true;
            }
        }
    }
}

impl Home {
    /// A connection wants to follow; the first page of the snapshot is the answer.
    pub fn follow(&mut self, shard: ShardId, to: ReplyTo, filter: &[u8]) {
        self.followers.list.push(Follower {
            shard,
            to,
            filter: filter.to_vec(),
            cursor: 0,
            news: News::default(),
            part: Part::Live,
        });
        self.follow_on(shard, to);
    }

    /// The next page of a snapshot that is not whole.
    pub fn follow_on(&mut self, shard: ShardId, to: ReplyTo) {
        match self.must_queue() {
            true => self.owe_interest(shard, to),
            false => self.next_page(shard, to),
        }
    }

    /// A follower is gone.
    pub fn unfollow(&mut self, shard: ShardId, to: ReplyTo) {
        let followers = &mut self.followers;
        let place = followers.place(shard, to);
        let place = place.expect("a carrier speaks only of followers that it made");
        followers.list.swap_remove(place);
        if followers.list.is_empty() {
            *followers = Followers::new(followers.debounce_s);
        }
    }

    /// The next page, unless the follower has gone meanwhile.
    pub(super) fn next_page(&mut self, shard: ShardId, to: ReplyTo) {
        let Some(place) = self.followers.place(shard, to) else {
            return;
        };
        let Followers {
            list,
            lingering,
            has_news,
            ..
        } = &mut self.followers;
        let follower = &mut list[place];
        let end = self.rows.end();
        let until = end.min(follower.cursor.saturating_add(self.pace.interest_rows));
        while follower.cursor < until && follower.news.len() < self.pace.page_bytes {
            let (id, row) = (follower.cursor, self.rows.get(follower.cursor));
            follower.cursor += 1;
            self.log.steps.add(1);
            if row.carrier == NONE && !lingering.contains_key(&id) {
                continue;
            }
            let name = self.names.get(row.name);
            if topic::matches(&follower.filter, name) {
                follower.news.push(true, name);
            }
        }
        follower.part = Part::More;
        if follower.cursor == end {
            (follower.cursor, follower.part) = (NONE, Part::Last);
        }
        *has_news = true;
    }

    /// A topic has its first subscriber.
    pub(super) fn interest_begins(&mut self, id: u32) {
        if self.followers.lingering.remove(&id).is_none() {
            let name = self.names.get(self.rows.get(id).name);
            self.followers.tell(id, name, true);
        }
    }

    /// A topic has no subscriber any more.
    pub(super) fn interest_pauses(&mut self, id: u32, now: Now) {
        let followers = &mut self.followers;
        if followers.debounce_s == 0 {
            let name = self.names.get(self.rows.get(id).name);
            return followers.tell(id, name, false);
        }
        // The current second has begun already: one more makes it the whole time at least.
        let end_s = now.s + followers.debounce_s + 1;
        followers.lingering.insert(id, end_s);
        followers.ends.push_back((id, end_s));
    }

    /// A topic is about to be forgotten: its row may be given to another.
    pub(super) fn interest_is_forgotten(&mut self, id: u32) {
        if self.followers.lingering.remove(&id).is_some() {
            let name = self.names.get(self.rows.get(id).name);
            self.followers.tell(id, name, false);
        }
    }

    /// Whether there is anything to tell followers.
    pub fn has_news(&self) -> bool {
        self.followers.has_news
    }

    /// Tells followers what is new; says whether more is due already.
    pub fn tell_followers(&mut self, now: Now, lanes: &mut Lanes) -> bool {
        if self.followers.is_empty() {
            return false;
        }
        let more = self.end_interest(now);
        if core::mem::take(&mut self.followers.has_news) {
            for follower in &mut self.followers.list {
                let part = core::mem::replace(&mut follower.part, Part::Live);
                if part == Part::Live && follower.news.is_empty() {
                    continue;
                }
                let (to, news) = (follower.to, core::mem::take(&mut follower.news));
                lanes.tell(follower.shard, Tell::Interest { to, news, part });
            }
        }
        more
    }

    fn end_interest(&mut self, now: Now) -> bool {
        for _ in 0..ENDS_AT_ONCE {
            self.log.steps.add(1 + self.followers.list.len());
            match self.followers.ends.front() {
                Some(&(id, end_s)) if end_s <= now.s => {
                    self.followers.ends.pop_front();
                    if self.followers.lingering.get(&id) == Some(&end_s) {
                        self.interest_is_forgotten(id);
                    }
                }
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
