//! The followers of a home (the part of a shard that keeps topics), and the topics whose interest lingers. A *follower* is a client, another node or a
//! webhook of the operator that is told which topics have subscribers: first by a snapshot, in pages of bounded size, and then by *news*, the changes. A
//! topic has *interest* from its first subscriber until some seconds after its last subscriber has left; in these last seconds its interest *lingers*.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::mail::hooks::SelectedTopics;
use crate::mail::lanes::Lanes;
use crate::mail::{InterestChanges, InterestPart, ReplyTo, Tell};

/// The maximum number of bytes of news that a node or a webhook has not requested yet: some ten thousand changes. A node requests its news twice a second.
const UNREQUESTED_BYTES_MAX: usize = 256 << 10;

/// Identifies a follower.
#[derive(Clone, Copy)]
pub(super) enum FollowerKey {
    /// A connection, by its shard and its row there.
    Connection(ShardId, ReplyTo),
    /// Another node, by the number of its stream. The node follows only the interest at this node, and requests its news, which is not sent unasked.
    Node(u64),
    /// The operator's webhook, by the number of its stream. It follows the interest at all nodes, and requests its news.
    Webhook(u64),
}

impl FollowerKey {
    fn matches(self, other: FollowerKey) -> bool {
        match (self, other) {
            (FollowerKey::Connection(shard, to), FollowerKey::Connection(other_shard, other)) => {
                shard == other_shard && to.slot == other.slot && to.generation == other.generation
            }
            (FollowerKey::Node(stream), FollowerKey::Node(other))
            | (FollowerKey::Webhook(stream), FollowerKey::Webhook(other)) => stream == other,
            _ => false,
        }
    }
}

/// The progress of a follower's snapshot.
pub(super) enum SnapshotCursor {
    /// The next row to examine.
    Row(u32),
    /// The snapshot contains all rows, and the topics of other nodes up to this name.
    Name(Box<[u8]>),
    /// The snapshot is complete.
    Complete,
}

pub(super) struct Follower {
    key: FollowerKey,
    topics: SelectedTopics,
    pub cursor: SnapshotCursor,
    pub news: InterestChanges,
    /// Whether `news` contains live changes or a page of the snapshot.
    news_part: InterestPart,
    /// Whether news was dropped for lack of room.
    has_lost_news: bool,
}

impl Follower {
    /// Whether the follower is another node.
    pub fn is_node(&self) -> bool {
        matches!(self.key, FollowerKey::Node(_))
    }

    /// Whether the snapshot has passed this row.
    fn is_past_row(&self, topic: u32) -> bool {
        match self.cursor {
            SnapshotCursor::Row(next) => topic < next,
            SnapshotCursor::Name(_) | SnapshotCursor::Complete => true,
        }
    }

    /// Whether the snapshot has passed this name among the topics of other nodes.
    fn is_past_name(&self, name: &[u8]) -> bool {
        match &self.cursor {
            SnapshotCursor::Row(_) => false,
            SnapshotCursor::Name(last) => name <= &last[..],
            SnapshotCursor::Complete => !self.is_node(),
        }
    }

    /// Whether the follower requests its news. It can be lost for lack of room.
    fn requests_news(&self) -> bool {
        !matches!(self.key, FollowerKey::Connection(..))
    }

    /// Adds a topic to the news, if it is one of the follower's topics. `begins`: the topic's interest begins; otherwise it ends.
    pub fn push(&mut self, begins: bool, name: &[u8]) {
        if !self.topics.has(name) {
            return;
        }
        self.has_lost_news |= self.requests_news() && self.news.len() >= UNREQUESTED_BYTES_MAX;
        if !self.has_lost_news {
            self.news.push(begins, name);
        }
    }

    /// Takes the news, and returns whether more of the snapshot is left. `None` if news was lost.
    pub fn take_news(&mut self) -> Option<(InterestChanges, bool)> {
        let has_more = !matches!(self.cursor, SnapshotCursor::Complete);
        (!self.has_lost_news).then(|| (core::mem::take(&mut self.news), has_more))
    }
}

/// All followers, and the news that waits for them.
pub(super) struct Followers {
    followers: Vec<Follower>,
    /// By topic whose interest lingers: the second in which the interest ends.
    end_by_topic: BTreeMap<u32, u32>,
    /// The same as pairs of second and topic.
    topics_by_end: BTreeSet<(u32, u32)>,
    /// Seconds for which interest outlives the last subscriber.
    pub debounce_s: u32,
    has_news: bool,
}

impl Followers {
    pub fn new(debounce_s: u32) -> Self {
        Followers {
            followers: Vec::new(),
            end_by_topic: BTreeMap::new(),
            topics_by_end: BTreeSet::new(),
            debounce_s,
            has_news: false,
        }
    }

    pub fn len(&self) -> u32 {
        self.followers.len() as u32
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.followers.is_empty()
    }

    pub fn has_lingering_interest(&self, topic: u32) -> bool {
        !self.end_by_topic.is_empty() && self.end_by_topic.contains_key(&topic)
    }

    /// Adds a follower.
    pub fn add(&mut self, key: FollowerKey, topics: SelectedTopics) {
        self.followers.push(Follower {
            key,
            topics,
            cursor: SnapshotCursor::Row(0),
            news: InterestChanges::default(),
            news_part: InterestPart::Live,
            has_lost_news: false,
        });
    }

    /// Removes a follower; returns whether there was one.
    pub fn remove(&mut self, key: FollowerKey) -> bool {
        let was_there = self.take(key).is_some();
        if self.followers.is_empty() {
            *self = Followers::new(self.debounce_s);
        }
        was_there
    }

    /// Takes a follower out; the caller must put it back.
    pub fn take(&mut self, key: FollowerKey) -> Option<Follower> {
        let index = self.followers.iter().position(|it| it.key.matches(key))?;
        Some(self.followers.swap_remove(index))
    }

    pub fn put(&mut self, follower: Follower) {
        self.followers.push(follower);
    }

    /// Puts back a follower whose news now contains a page of its snapshot.
    pub fn put_with_page(&mut self, mut follower: Follower) {
        follower.news_part = match follower.cursor {
            SnapshotCursor::Complete => InterestPart::LastSnapshotPage,
            SnapshotCursor::Row(_) | SnapshotCursor::Name(_) => InterestPart::SnapshotPage,
        };
        self.has_news = true;
        self.put(follower);
    }

    /// The filters that connections follow, without duplicates.
    pub fn filters(&self) -> BTreeSet<Box<[u8]>> {
        let connections = self.followers.iter().filter(|it| !it.requests_news());
        connections
            .flat_map(|it| it.topics.filters.clone())
            .collect()
    }

    /// Ends the lingering of a topic's interest, because the topic has a subscriber again or is forgotten. Returns whether the interest
    /// lingered.
    pub fn stop_lingering(&mut self, topic: u32) -> bool {
        let end_s = self.end_by_topic.remove(&topic);
        end_s.is_some_and(|end_s| self.topics_by_end.remove(&(end_s, topic)))
    }

    /// Lets the interest of a topic that has lost its last subscriber linger. Returns false if there is no debounce, so interest ends at
    /// once.
    pub fn linger(&mut self, topic: u32, now: Now) -> bool {
        if self.debounce_s == 0 {
            return false;
        }
        // One second more, since the current second has already begun.
        let end_s = now.s + self.debounce_s + 1;
        if let Some(old_end_s) = self.end_by_topic.insert(topic, end_s) {
            self.topics_by_end.remove(&(old_end_s, topic));
        }
        self.topics_by_end.insert((end_s, topic));
        true
    }

    /// The next topic whose lingering interest ends now.
    pub fn next_ending_topic(&mut self, now: Now) -> Option<u32> {
        let (end_s, topic) = self.topics_by_end.first().copied()?;
        (end_s <= now.s).then_some(topic)
    }

    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Sends each connection its news.
    pub fn send_news(&mut self, lanes: &mut Lanes) {
        if !core::mem::take(&mut self.has_news) {
            return;
        }
        for follower in &mut self.followers {
            let FollowerKey::Connection(shard, to) = follower.key else {
                continue;
            };
            let part = core::mem::replace(&mut follower.news_part, InterestPart::Live);
            if part == InterestPart::Live && follower.news.is_empty() {
                continue;
            }
            let news = core::mem::take(&mut follower.news);
            lanes.tell(shard, Tell::Interest { to, news, part });
        }
    }

    /// Whether no interest lingers.
    #[cfg(test)]
    pub fn nothing_lingers(&self) -> bool {
        self.end_by_topic.is_empty() && self.topics_by_end.is_empty()
    }

    /// Adds a change of interest at this node to the news of the followers whose snapshot has passed the row. `has_remote`: the topic also has interest at
    /// other nodes, so nothing changes for followers that know this already.
    pub fn push_local_change(&mut self, topic: u32, name: &[u8], begins: bool, has_remote: bool) {
        for follower in &mut self.followers {
            if follower.is_past_row(topic) && !(has_remote && follower.is_past_name(name)) {
                follower.push(begins, name);
                self.has_news = true;
            }
        }
    }

    /// Adds a change of interest at other nodes, in a topic that has no interest here, to the news of the followers whose snapshot has passed the name.
    pub fn push_remote_change(&mut self, name: &[u8], begins: bool) {
        for follower in &mut self.followers {
            if follower.is_past_name(name) {
                follower.push(begins, name);
                self.has_news = true;
            }
        }
    }
}
