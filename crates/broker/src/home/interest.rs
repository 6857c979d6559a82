//! Followers: connections that are told which topics have subscribers.
//!
//! A topic *has interest* from its first subscriber until it has had none for `interest.debounce_s`. Followers get a snapshot of the topics
//! with interest, and then every change.
//!
//! The snapshot is a cursor over the table of topics; each page looks at a bounded number of rows. Invariant: a follower knows exactly the
//! topics with interest in rows before its cursor. A change in a row before the cursor is told at once; a change in a later row is not,
//! since the cursor will find it. Rows never move, and interest ends before a row is freed. So each topic that is made or forgotten during
//! a snapshot is told once.
//!
//! **In a cluster** other nodes report their topics with interest ([`super::remote_interest`]), and a connection is told of a topic while
//! it has interest at any node. After the rows, the cursor walks the names of these topics, under the same invariant. The other nodes are
//! followers, too, of interest at this node only; they ask for their news.
//!
//! Nothing here writes into the turn's frames: a subscriber may leave during a delivery, while they are shared. News waits with the
//! follower until the end of the turn. Without followers all this costs one look at an empty list.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::followers::{Cursor, Follower, FollowerKey, Followers};
use super::page_queue::PageQueue;
use super::remote_interest::RemoteInterest;
use super::topics::TopicTable;
use crate::base::ids::ShardId;
use crate::base::pace::Pace;
use crate::base::time::Now;
use crate::base::work::{FILTERS_PER_STEP, Steps};
use crate::budget::admission::Party;
use crate::mail::lanes::Lanes;
use crate::mail::orders::{Interest, InterestReply};
use crate::mail::{InterestChanges, ReplyTo};
use crate::store::slab::NONE;

/// The most ends of interest told at once, each to all followers; the rest is told in later turns.
const ENDS_AT_ONCE: usize = 64;
/// Topics of other nodes that one order looks at: some hundred microseconds.
const NAMES_PER_ORDER: usize = 1_024;

/// Followers, and topics with interest at other nodes.
pub(crate) struct TopicInterest {
    pub(super) followers: Followers,
    pub(super) remote: RemoteInterest,
    steps: Steps,
}

impl TopicInterest {
    pub(super) fn new(debounce_s: u32, steps: &Steps) -> TopicInterest {
        TopicInterest {
            followers: Followers::new(debounce_s),
            remote: RemoteInterest::default(),
            steps: steps.clone(),
        }
    }

    /// Adds a follower, and answers with the first page of its snapshot.
    pub(crate) fn follow(
        &mut self,
        topics: &TopicTable,
        page_queue: &mut PageQueue,
        pace: &Pace,
        shard: ShardId,
        (to, party): (ReplyTo, Party),
        filter: &[u8],
    ) {
        let key = FollowerKey::Connection(shard, to);
        self.followers.add(key, [filter.into()].into());
        self.follow_on(topics, page_queue, pace, shard, (to, party));
    }

    /// The next page of a snapshot.
    pub(crate) fn follow_on(
        &mut self,
        topics: &TopicTable,
        page_queue: &mut PageQueue,
        pace: &Pace,
        shard: ShardId,
        (to, party): (ReplyTo, Party),
    ) {
        match page_queue.must_queue(pace) {
            true => page_queue.queue_interest(shard, to, party),
            false => self.next_page(topics, pace, shard, to),
        }
    }

    /// Removes a follower.
    pub(crate) fn unfollow(&mut self, shard: ShardId, to: ReplyTo) {
        let was_there = self.followers.remove(FollowerKey::Connection(shard, to));
        assert!(was_there, "a carrier speaks only of followers that it made");
    }

    /// Reads the next page, unless the follower has left meanwhile.
    pub(super) fn next_page(
        &mut self,
        topics: &TopicTable,
        pace: &Pace,
        shard: ShardId,
        to: ReplyTo,
    ) {
        if let Some(mut follower) = self.followers.take(FollowerKey::Connection(shard, to)) {
            self.walk(topics, pace, &mut follower);
            self.followers.put_page(follower);
        }
    }

    /// Continues a snapshot by one page.
    fn walk(&self, topics: &TopicTable, pace: &Pace, follower: &mut Follower) {
        for _ in 0..pace.interest_rows {
            if follower.news.len() >= pace.page_bytes {
                return;
            }
            self.steps.add(1);
            follower.cursor = match &follower.cursor {
                Cursor::Whole => return,
                Cursor::Row(id) if *id < topics.rows.end() => {
                    let id = *id;
                    if self.has_interest(topics, id) {
                        follower.push(true, topics.names.get(topics.rows.get(id).name));
                    }
                    Cursor::Row(id + 1)
                }
                Cursor::Row(_) if follower.is_node() => Cursor::Whole,
                Cursor::Row(_) => self.next_name(topics, follower, &[]),
                Cursor::Name(last) => {
                    let last = last.clone();
                    self.next_name(topics, follower, &last)
                }
            };
        }
    }

    /// Looks at the next topic of another node.
    fn next_name(&self, topics: &TopicTable, follower: &mut Follower, last: &[u8]) -> Cursor {
        let Some(name) = self.remote.behind(last) else {
            return Cursor::Whole;
        };
        if !self.has_interest_here(topics, name) {
            follower.push(true, name);
        }
        Cursor::Name(name.into())
    }

    /// Whether the topic in this row has interest at this node.
    fn has_interest(&self, topics: &TopicTable, id: u32) -> bool {
        topics.rows.get(id).carrier != NONE || self.followers.lingers(id)
    }

    fn has_interest_here(&self, topics: &TopicTable, name: &[u8]) -> bool {
        let found = topics.find(topics.hash_of(name), name);
        found.is_some_and(|id| self.has_interest(topics, id))
    }

    fn tell_interest(&mut self, topics: &TopicTable, id: u32, begins: bool) {
        let name = topics.names.get(topics.rows.get(id).name);
        let remote = self.remote.has(name);
        let followers = self.followers.len() as usize;
        self.steps.add(followers.div_ceil(FILTERS_PER_STEP));
        self.followers.tell(id, name, begins, remote);
    }

    /// A topic has its first subscriber.
    pub(super) fn interest_begins(&mut self, topics: &TopicTable, id: u32) {
        if !self.followers.stop_lingering(id) {
            self.tell_interest(topics, id, true);
        }
    }

    /// A topic has lost its last subscriber.
    pub(super) fn interest_pauses(&mut self, topics: &TopicTable, id: u32, now: Now) {
        if !self.followers.linger(id, now) {
            self.tell_interest(topics, id, false);
        }
    }

    /// Ends interest that has outlived its subscribers: its time is over, or the topic is about to be forgotten.
    pub(super) fn interest_is_forgotten(&mut self, topics: &TopicTable, id: u32) {
        if self.followers.stop_lingering(id) {
            self.tell_interest(topics, id, false);
        }
    }

    pub(crate) fn has_news(&self) -> bool {
        self.followers.has_news()
    }

    /// Sends followers their news; returns whether more is due already.
    pub(crate) fn tell_followers(
        &mut self,
        topics: &TopicTable,
        now: Now,
        lanes: &mut Lanes,
    ) -> bool {
        if self.followers.is_empty() {
            return false;
        }
        let more = self.end_interest(topics, now);
        self.followers.tell_news(lanes);
        more
    }

    fn end_interest(&mut self, topics: &TopicTable, now: Now) -> bool {
        for _ in 0..ENDS_AT_ONCE {
            self.steps.add(1 + self.followers.len() as usize);
            match self.followers.next_end(now) {
                Some(id) => self.interest_is_forgotten(topics, id),
                None => return false,
            }
        }
        true
    }

    /// Carries out a cluster node's order about interest.
    pub(crate) fn interest_order(
        &mut self,
        topics: &TopicTable,
        page_queue: &PageQueue,
        pace: &Pace,
        order: Interest,
    ) -> InterestReply {
        match order {
            Interest::Filters => InterestReply::Filters(self.followers.filters()),
            Interest::Next(stream, filters) => {
                InterestReply::Changes(self.next_news(topics, page_queue, pace, stream, filters))
            }
            Interest::End(stream) => {
                self.followers.remove(FollowerKey::Node(stream));
                InterestReply::Done
            }
            Interest::Elsewhere(stream, news) => {
                InterestReply::Refused(self.take_remote(topics, stream, &news))
            }
            Interest::Forget(stream, from) => {
                InterestReply::Forgot(self.forget_remote(topics, stream, from))
            }
        }
    }

    /// The news for another node, and whether more is left. `None`: the node must start over.
    fn next_news(
        &mut self,
        topics: &TopicTable,
        page_queue: &PageQueue,
        pace: &Pace,
        stream: u64,
        filters: Option<Vec<Box<[u8]>>>,
    ) -> Option<(InterestChanges, bool)> {
        let key = FollowerKey::Node(stream);
        if let Some(filters) = filters {
            self.followers.add(key, filters);
        }
        let mut follower = self.followers.take(key)?;
        if !page_queue.must_queue(pace) {
            self.walk(topics, pace, &mut follower);
        }
        let news = follower.take_news();
        self.followers.put(follower);
        if news.is_none() {
            self.followers.remove(key);
        }
        news
    }

    /// Takes in another node's news; returns the number of topics without room.
    fn take_remote(&mut self, topics: &TopicTable, stream: u8, news: &InterestChanges) -> u32 {
        let mut refused = 0;
        for (begins, name) in news.iter() {
            self.steps.add(1);
            let changes = match begins {
                true => self.remote.begin(stream, name, topics.topics_max),
                false => Some(self.remote.end(stream, name)),
            };
            match changes {
                Some(true) => self.tell_remote(topics, name, begins),
                Some(false) => {}
                None => refused += 1,
            }
        }
        refused
    }

    fn tell_remote(&mut self, topics: &TopicTable, name: &[u8], begins: bool) {
        if !self.has_interest_here(topics, name) {
            self.followers.tell_remote(name, begins);
        }
    }

    /// Removes a stream from some topics after `from`; returns the last topic looked at, `None` at the end.
    fn forget_remote(
        &mut self,
        topics: &TopicTable,
        stream: u8,
        mut from: Box<[u8]>,
    ) -> Option<Box<[u8]>> {
        for _ in 0..NAMES_PER_ORDER {
            self.steps.add(1);
            from = self.remote.behind(&from)?.into();
            if self.remote.end(stream, &from) {
                self.tell_remote(topics, &from, false);
            }
        }
        Some(from)
    }
}

#[cfg(test)]
mod tests;
