//! Followers: connections that are told which topics have subscribers.
//!
//! A topic *has interest* from its first subscriber until it has had none for `interest.debounce_s`. Followers get a snapshot of the topics
//! with interest, and then every change.
//!
//! A snapshot is made with a cursor over the table of topics. Each page of the snapshot examines a bounded number of rows. Invariant: a follower
//! knows the topics with interest in the rows before its cursor, and no others. If the interest of a row before the cursor changes, the follower is told
//! the change. If a later row changes, the cursor will find the new state. Rows never move, and interest ends before a row is freed. So the follower
//! learns exactly once of each topic that is created or forgotten during a snapshot.
//!
//! **In a cluster** other nodes report their topics with interest ([`super::remote_interest`]), and a connection is told of each topic that
//! has interest at any node. After the rows, the cursor walks the names of the topics with interest at other nodes, under the same
//! invariant. Other nodes are followers, too. They follow only the interest at this node, and they request their news (the changes since
//! their last request). So do the operator's webhooks, which follow the interest at all nodes.
//!
//! News waits with the follower until the end of the turn (a pass of the shard's loop). It is not written at once into the frames (the buffer that all
//! mail of a turn shares), because a subscriber may leave, and so change the interest, during a delivery that still reads the frames. Without followers,
//! the only cost is the check of an empty list.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Home;
use super::followers::{Follower, FollowerKey, SnapshotCursor};
use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::base::work::FILTERS_PER_STEP;
use crate::budget::admission::Party;
use crate::mail::hooks::SelectedTopics;
use crate::mail::lanes::Lanes;
use crate::mail::orders::{Interest, InterestReply};
use crate::mail::{InterestChanges, ReplyTo};
use crate::store::slab::NONE;

/// The maximum number of topics whose interest ends in one turn, since all followers are told of each end. The others wait for later turns.
const ENDS_PER_TURN_MAX: usize = 64;
/// The maximum number of topics of other nodes that one order examines. This takes some hundred microseconds.
const NAMES_PER_ORDER: usize = 1_024;

impl Home {
    /// Adds a follower, and answers with the first page of its snapshot.
    pub(crate) fn follow(&mut self, shard: ShardId, to: ReplyTo, party: Party, filter: &[u8]) {
        let key = FollowerKey::Connection(shard, to);
        self.interest
            .followers
            .add(key, topics_of([filter.into()].into()));
        self.continue_snapshot(shard, to, party);
    }

    /// Reads or queues the next page of a snapshot.
    pub(crate) fn continue_snapshot(&mut self, shard: ShardId, to: ReplyTo, party: Party) {
        match self.page_queue.must_queue(&self.turn_limits) {
            true => self.page_queue.queue_interest(shard, to, party),
            false => self.read_next_page(shard, to),
        }
    }

    /// Removes a follower, because its connection does not follow any more.
    pub(crate) fn remove_follower(&mut self, shard: ShardId, to: ReplyTo) {
        let was_there = self
            .interest
            .followers
            .remove(FollowerKey::Connection(shard, to));
        assert!(was_there, "a carrier speaks only of followers that it made");
    }

    /// Reads the next page, unless the follower has left meanwhile.
    pub(super) fn read_next_page(&mut self, shard: ShardId, to: ReplyTo) {
        if let Some(mut follower) = self
            .interest
            .followers
            .take(FollowerKey::Connection(shard, to))
        {
            self.read_snapshot_page(&mut follower);
            self.interest.followers.put_with_page(follower);
        }
    }

    /// Continues a snapshot by one page.
    fn read_snapshot_page(&self, follower: &mut Follower) {
        for _ in 0..self.turn_limits.interest_page_topics {
            if follower.news.len() >= self.turn_limits.page_bytes {
                return;
            }
            self.steps.add(1);
            follower.cursor = match &follower.cursor {
                SnapshotCursor::Complete => return,
                SnapshotCursor::Row(id) if *id < self.topics.rows.end() => {
                    let id = *id;
                    if self.has_interest(id) {
                        follower.push(true, self.topics.names.get(self.topics.rows.get(id).name));
                    }
                    SnapshotCursor::Row(id + 1)
                }
                SnapshotCursor::Row(_) if follower.is_node() => SnapshotCursor::Complete,
                SnapshotCursor::Row(_) => self.push_next_name(follower, &[]),
                SnapshotCursor::Name(last) => {
                    let last = last.clone();
                    self.push_next_name(follower, &last)
                }
            };
        }
    }

    /// Adds the next topic of another node to the follower's news, unless the topic also has interest here: then the follower was told when the cursor
    /// passed the topic's row. Returns the cursor after that topic.
    fn push_next_name(&self, follower: &mut Follower, last: &[u8]) -> SnapshotCursor {
        let Some(name) = self.interest.remote.next_after(last) else {
            return SnapshotCursor::Complete;
        };
        if !self.has_local_interest(name) {
            follower.push(true, name);
        }
        SnapshotCursor::Name(name.into())
    }

    /// Whether the topic in this row has interest at this node.
    fn has_interest(&self, id: u32) -> bool {
        self.topics.rows.get(id).carrier != NONE
            || self.interest.followers.has_lingering_interest(id)
    }

    fn has_local_interest(&self, name: &[u8]) -> bool {
        let found = self.topics.find(self.topics.hash_of(name), name);
        found.is_some_and(|id| self.has_interest(id))
    }

    fn push_interest_change(&mut self, id: u32, begins: bool) {
        let name = self.topics.names.get(self.topics.rows.get(id).name);
        let has_remote = self.interest.remote.has(name);
        let followers = self.interest.followers.len() as usize;
        self.steps.add(followers.div_ceil(FILTERS_PER_STEP));
        self.interest
            .followers
            .push_local_change(id, name, begins, has_remote);
    }

    /// Begins the interest of a topic that has got its first subscriber.
    pub(super) fn begin_interest(&mut self, id: u32) {
        if !self.interest.followers.stop_lingering(id) {
            self.push_interest_change(id, true);
        }
    }

    /// Lets the interest of a topic that has lost its last subscriber end, at once or after the debounce.
    pub(super) fn end_interest(&mut self, id: u32, now: Now) {
        if !self.interest.followers.linger(id, now) {
            self.push_interest_change(id, false);
        }
    }

    /// Ends the interest of a topic without subscribers, because the debounce is over or because the topic is about to be forgotten.
    pub(super) fn end_lingering_interest(&mut self, id: u32) {
        if self.interest.followers.stop_lingering(id) {
            self.push_interest_change(id, false);
        }
    }

    /// Sends followers their news. Returns whether the interest of more topics must end now.
    pub(crate) fn send_interest_news(&mut self, now: Now, lanes: &mut Lanes) -> bool {
        if self.interest.followers.is_empty() {
            return false;
        }
        let has_more = self.end_due_interest(now);
        self.interest.followers.send_news(lanes);
        has_more
    }

    fn end_due_interest(&mut self, now: Now) -> bool {
        for _ in 0..ENDS_PER_TURN_MAX {
            self.steps.add(1 + self.interest.followers.len() as usize);
            match self.interest.followers.next_ending_topic(now) {
                Some(id) => self.end_lingering_interest(id),
                None => return false,
            }
        }
        true
    }

    /// Carries out a cluster node's order about interest.
    pub(crate) fn handle_interest_order(&mut self, order: Interest) -> InterestReply {
        match order {
            Interest::Filters => InterestReply::Filters(self.interest.followers.filters()),
            Interest::Next(stream, filters) => {
                let key = FollowerKey::Node(stream);
                InterestReply::Changes(self.next_news(key, filters.map(topics_of)))
            }
            Interest::End(stream) => {
                self.interest.followers.remove(FollowerKey::Node(stream));
                InterestReply::Done
            }
            Interest::ApplyRemote(stream, news) => {
                InterestReply::Refused(self.apply_remote_news(stream, &news))
            }
            Interest::DropStream(stream, from) => {
                InterestReply::Dropped(self.drop_remote_stream(stream, from))
            }
        }
    }

    /// The news of a stream to another node or to webhooks, and whether more is left. With `begins`, the stream begins now. `None` if news was lost: the
    /// follower must begin a new stream.
    fn next_news(
        &mut self,
        key: FollowerKey,
        begins: Option<SelectedTopics>,
    ) -> Option<(InterestChanges, bool)> {
        if let Some(topics) = begins {
            self.interest.followers.add(key, topics);
        }
        let mut follower = self.interest.followers.take(key)?;
        if !self.page_queue.must_queue(&self.turn_limits) {
            self.read_snapshot_page(&mut follower);
        }
        let news = follower.take_news();
        self.interest.followers.put(follower);
        if news.is_none() {
            self.interest.followers.remove(key);
        }
        news
    }

    /// The news of the interest at all nodes for a stream to the operator's webhooks, and whether more is left. With `begins`, the stream begins now. `None`
    /// if news was lost: a new stream must begin.
    pub(crate) fn next_webhook_news(
        &mut self,
        stream: u64,
        begins: Option<SelectedTopics>,
    ) -> Option<(InterestChanges, bool)> {
        self.next_news(FollowerKey::Webhook(stream), begins)
    }

    /// Ends a stream to webhooks.
    pub(crate) fn end_webhook_news(&mut self, stream: u64) {
        self.interest.followers.remove(FollowerKey::Webhook(stream));
    }

    /// Applies the news of another node. Returns the number of topics for which there is no room.
    fn apply_remote_news(&mut self, stream: u8, news: &InterestChanges) -> u32 {
        let mut refused = 0;
        for (begins, name) in news.iter() {
            self.steps.add(1);
            let has_changed = match begins {
                true => self
                    .interest
                    .remote
                    .add(stream, name, self.topics.topics_max),
                false => Some(self.interest.remote.remove(stream, name)),
            };
            match has_changed {
                Some(true) => self.push_remote_change(name, begins),
                Some(false) => {}
                None => refused += 1,
            }
        }
        refused
    }

    fn push_remote_change(&mut self, name: &[u8], begins: bool) {
        if !self.has_local_interest(name) {
            self.interest.followers.push_remote_change(name, begins);
        }
    }

    /// Removes a stream of another node from some of the topics after `last_name`. Returns the last topic examined; `None` if all are examined.
    fn drop_remote_stream(&mut self, stream: u8, mut last_name: Box<[u8]>) -> Option<Box<[u8]>> {
        for _ in 0..NAMES_PER_ORDER {
            self.steps.add(1);
            last_name = self.interest.remote.next_after(&last_name)?.into();
            if self.interest.remote.remove(stream, &last_name) {
                self.push_remote_change(&last_name, false);
            }
        }
        Some(last_name)
    }
}

fn topics_of(filters: Vec<Box<[u8]>>) -> SelectedTopics {
    SelectedTopics {
        filters,
        partition: None,
    }
}

#[cfg(test)]
mod tests;
