//! Presence: the members of topics (connections that subscribe to them), and the watchers (connections that are told which members come and leave).
//!
//! A member whose connection broke stays for some seconds. If the same user with the same info returns meanwhile, the member continues with the new
//! connection, and no watcher is told: the reload of a web page shows no leave and no join. Exception: a watcher may ask to be told of each
//! connection.
//!
//! The changes of a table are numbered in order. A member is identified by the number of its join. For each watcher the table keeps two numbers: of the
//! members that joined up to change `joins_until`, the watcher knows exactly those that had not left up to change `leaves_until`. A page for a watcher
//! first contains the members that have left since then. If the page has room for all of these, it also contains the members that joined later. So a
//! slow watcher needs no queue, and a page contains at most one change of each member.
//!
//! The table remembers a limited number of members that have left, and only for topics that are watched or were watched a short time ago. A watcher
//! that has missed a forgotten leave gets a new snapshot.
//!
//! In a cluster the table has the members of all nodes (`peers.rs`). A connection is known by its node, shard and number.
//!
//! Invariants: a member is in the list of its topic, which is ordered by the numbers of joins, and in the index of connections. A topic has a row
//! while it has members, listed or only counted, and while it is watched or was watched a short time ago.

mod pages;
#[cfg(test)]
mod peer_tests;
mod peers;
mod rows;
mod streams;
#[cfg(test)]
mod tests;
mod watchers;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::base::work::STEP_BYTES;
use crate::mail::ReplyTo;
use crate::mail::presence::{MemberConn, PresencePage, PresencePosition};
use crate::store::index::Index;
use crate::store::slab::{NONE, Slab, SlabRow};

use pages::PageSource;
use peers::Peers;
use rows::{Leave, MemberRow, PresenceTopic, hash_of_member};
use streams::MemberStream;
use watchers::{WATCHER_BYTES, WatchedTopic, Watcher, key_of};

/// After its last watcher, a topic's members that have left are remembered for this many seconds.
const LEAVES_KEPT_S: u32 = 60;
/// The maximum number of watchers that one call examines, for each page that it may send.
const EXAMINED_PER_PAGE: usize = 8;

/// Identifies a user in a topic: the topic, and a hash of the user's name.
type UserKey = (u32, [u32; 2]);

/// The members and watchers of a home's topics.
pub(crate) struct Presence {
    topics: Slab<PresenceTopic>,
    topic_index: Index,
    members: Slab<MemberRow>,
    member_index: Index,
    /// The number of members of each user in a topic.
    members_by_user: BTreeMap<UserKey, u32>,
    /// Members whose connections have ended: the second in which the member leaves, and its row.
    leaving: BTreeSet<(u32, u32)>,
    /// The same members: the user, and the row.
    leaving_users: BTreeSet<(UserKey, u32)>,
    /// The same members: the topic, the second, and the row.
    leaving_topics: BTreeSet<(u32, u32, u32)>,
    watched_topics: BTreeMap<u32, WatchedTopic>,
    /// Watched topics with changes that some watcher does not know: the time from which a watcher may get a page, and the topic.
    due_topics: BTreeSet<(u64, u32)>,
    watcher_count: usize,
    /// The streams for the operator's webhooks.
    streams: Vec<MemberStream>,
    /// The other nodes of the cluster.
    peers: Peers,
    /// Topics without watchers: the second in which the members that have left the topic are forgotten, and the topic.
    unwatched_topics: BTreeSet<(u32, u32)>,
    /// The number of the last change.
    last_change: u64,
    /// Identifies this table in the positions of watchers.
    table_number: u32,
    seed: u64,
    text_bytes: usize,
    member_list_bytes: usize,
    leave_bytes: usize,
    /// The result of the next [`Presence::take_moved_bytes`].
    moved_bytes: usize,
}

impl Presence {
    /// An empty table. `now` makes its number differ from that of earlier tables, and `process` from those of other nodes of a cluster, which have the
    /// same seed.
    pub fn new(seed: u64, process: u64, now: Now) -> Presence {
        Presence {
            topics: Slab::default(),
            topic_index: Index::default(),
            members: Slab::default(),
            member_index: Index::default(),
            members_by_user: BTreeMap::new(),
            leaving: BTreeSet::new(),
            leaving_users: BTreeSet::new(),
            leaving_topics: BTreeSet::new(),
            watched_topics: BTreeMap::new(),
            due_topics: BTreeSet::new(),
            watcher_count: 0,
            streams: Vec::new(),
            peers: Peers::default(),
            unwatched_topics: BTreeSet::new(),
            last_change: 0,
            table_number: xxh3_64_with_seed(&now.unix_s.to_le_bytes(), seed ^ process) as u32,
            seed,
            text_bytes: 0,
            member_list_bytes: 0,
            leave_bytes: 0,
            moved_bytes: 0,
        }
    }

    /// The bytes of all rows, indexes and texts.
    pub fn bytes(&self) -> usize {
        // A B-tree is about two thirds full.
        const USER_BYTES: usize = size_of::<(UserKey, u32)>() * 3 / 2;
        const LEAVING_BYTES: usize =
            (size_of::<(u32, u32)>() + size_of::<(UserKey, u32)>() + size_of::<(u32, u32, u32)>())
                * 3
                / 2;
        // Includes the entry in `due_topics` or in `unwatched_topics`.
        const WATCHED_BYTES: usize =
            (size_of::<(u32, WatchedTopic)>() + size_of::<(u64, u32)>()) * 3 / 2;
        self.topics.bytes()
            + self.topic_index.bytes()
            + self.members.bytes()
            + self.member_index.bytes()
            + self.members_by_user.len() * USER_BYTES
            + self.leaving.len() * LEAVING_BYTES
            + self.text_bytes
            + self.member_list_bytes
            + self.leave_bytes
            + self.watched_topics.len() * WATCHED_BYTES
            + self.watcher_count * WATCHER_BYTES
            + self.streams.iter().map(MemberStream::bytes).sum::<usize>()
            + self.peers.bytes()
    }

    /// Whether there are no members, no watchers and no remembered leaves.
    pub fn is_empty(&self) -> bool {
        self.topics.len() == 0
    }

    /// Whether a watcher that lacks changes may get a page now.
    pub fn has_due(&self, now_ns: u64) -> bool {
        self.due_topics
            .first()
            .is_some_and(|(at_ns, _)| *at_ns <= now_ns)
    }

    /// The time from which the next watcher that lacks changes may get a page.
    pub fn next_news_ns(&self) -> Option<u64> {
        self.due_topics.first().map(|(at_ns, _)| *at_ns)
    }

    /// The bytes that lists of members have moved since the last call. For each member that has left, the bytes of one step of work are added.
    pub fn take_moved_bytes(&mut self) -> usize {
        core::mem::take(&mut self.moved_bytes)
    }

    fn hash_of(&self, name: &[u8]) -> u32 {
        xxh3_64_with_seed(name, self.seed) as u32
    }

    fn user_key(&self, topic: u32, user: &[u8]) -> UserKey {
        let hash = xxh3_64_with_seed(user, !self.seed);
        (topic, [(hash >> 32) as u32, hash as u32])
    }

    fn find(&self, name: &[u8]) -> Option<u32> {
        let is_wanted = |topic: &PresenceTopic| *topic.name == *name;
        self.topic_index
            .find(&self.topics, self.hash_of(name), is_wanted)
    }

    fn find_or_create_topic(&mut self, name: &[u8]) -> u32 {
        if let Some(id) = self.find(name) {
            return id;
        }
        self.text_bytes += name.len();
        let id = self.topics.insert(PresenceTopic {
            name: name.into(),
            hash: self.hash_of(name),
            ..PresenceTopic::vacant(NONE)
        });
        self.topic_index.insert(&mut self.topics, id);
        id
    }

    fn remove_topic_if_unused(&mut self, id: u32) {
        let topic = self.topics.get(id);
        if topic.counts().clients > 0 || self.watched_topics.contains_key(&id) {
            return;
        }
        self.topic_index.remove(&mut self.topics, id);
        let topic = self.topics.remove(id);
        self.text_bytes -= topic.name.len();
        self.member_list_bytes -= topic.members_by_join.capacity() * size_of::<u32>();
    }

    fn find_member(&self, topic: u32, conn: MemberConn) -> Option<u32> {
        let is_wanted = |row: &MemberRow| row.topic == topic && row.conn() == conn;
        self.member_index
            .find(&self.members, hash_of_member(topic, conn), is_wanted)
    }

    /// Numbers a change of a topic, so that watchers are told of it. Returns the number.
    fn count_change(&mut self, topic: u32) -> u64 {
        self.last_change += 1;
        let row = self.topics.get_mut(topic);
        (row.watched_change, row.last_change) = (self.last_change, self.last_change);
        if let Some(watched) = self.watched_topics.get_mut(&topic) {
            watched.mark_changed();
            self.update_due_time(topic);
        }
        self.last_change
    }

    /// Updates the entry of a topic in `due_topics`.
    fn update_due_time(&mut self, topic: u32) {
        let Some(watched) = self.watched_topics.get_mut(&topic) else {
            return;
        };
        let next_ns = watched.next_ns();
        let old_due_ns = core::mem::replace(&mut watched.due_ns, next_ns);
        if old_due_ns == next_ns {
            return;
        }
        if let Some(at_ns) = old_due_ns {
            self.due_topics.remove(&(at_ns, topic));
        }
        if let Some(at_ns) = next_ns {
            self.due_topics.insert((at_ns, topic));
        }
    }

    /// Adds a connection that has subscribed to a topic. If the topic has `members_max` members already, the connection is only counted.
    pub fn join(
        &mut self,
        name: &[u8],
        conn: MemberConn,
        texts: (&[u8], &[u8]),
        members_max: u32,
        now: Now,
    ) {
        self.add(name, conn, texts, now.unix_s, members_max, now);
    }

    /// Adds a connection of any node, which has subscribed in the counted second `since_s`.
    fn add(
        &mut self,
        name: &[u8],
        conn: MemberConn,
        (user, info): (&[u8], &[u8]),
        since_s: u32,
        members_max: u32,
        now: Now,
    ) {
        let topic = self.find_or_create_topic(name);
        if let Some(member) = self.find_member(topic, conn) {
            return self.keep_member(member, now);
        }
        if self.continue_member(topic, conn, (user, info), now) {
            return;
        }
        let must_wait = self.must_wait(topic, user);
        if !must_wait && !self.makes_room(topic, members_max) {
            return self.add_unlisted(topic, conn);
        }
        let text = [&[user.len() as u8], user, info]
            .concat()
            .into_boxed_slice();
        self.text_bytes += text.len();
        let member = self.members.insert(MemberRow {
            text,
            topic,
            since_s,
            snapshot: self.peers.snapshot_of(conn.node),
            ..MemberRow::vacant(NONE)
        });
        self.members.get_mut(member).move_to(conn);
        self.member_index.insert(&mut self.members, member);
        match must_wait {
            true => self.begin_wait(member, members_max, now),
            false => self.list_member(member),
        }
        self.tell_peers_of_join(member, now);
    }

    /// Cancels the leave of a member whose connection subscribes again.
    fn keep_member(&mut self, member: u32, now: Now) {
        if !self.members.get(member).has_connection() {
            self.cancel_leave(member);
            self.tell_peers_of_join(member, now);
        }
    }

    /// Makes room for a member, if that is possible. Returns whether there is room.
    fn makes_room(&mut self, topic: u32, members_max: u32) -> bool {
        let listed_max = members_max as usize;
        if self.topics.get(topic).members_by_join.len() == listed_max {
            // The first member to leave whose connection has ended makes room. If the topic has more members than the limit (the operator has lowered it),
            // this would not be enough.
            let mut leaving = self
                .leaving_topics
                .range((topic, 0, 0)..=(topic, u32::MAX, u32::MAX));
            if let Some((_, _, first)) = leaving.next().copied() {
                self.unlist_member(first);
            }
        }
        self.topics.get(topic).members_by_join.len() < listed_max
    }

    /// Lists the connection in this row as a member.
    fn list_member(&mut self, member: u32) {
        let topic = self.members.get(member).topic;
        let id = self.count_change(topic);
        self.members.get_mut(member).id = id;
        let row = self.topics.get_mut(topic);
        let capacity_before = row.members_by_join.capacity();
        if capacity_before == 0 {
            row.members_by_join.reserve_exact(1);
        }
        row.members_by_join.push_back(member);
        self.member_list_bytes +=
            (row.members_by_join.capacity() - capacity_before) * size_of::<u32>();
        let key = self.user_key(topic, self.members.get(member).user_and_info().0);
        let count = self.members_by_user.entry(key).or_default();
        *count += 1;
        let is_first = *count == 1;
        self.topics.get_mut(topic).user_count += u32::from(is_first);
        self.push_to_streams((member, None), true, is_first);
    }

    /// Removes the row of a connection that is not listed.
    fn remove_row(&mut self, member: u32) {
        self.member_index.remove(&mut self.members, member);
        let row = self.members.remove(member);
        self.text_bytes -= row.text.len();
    }

    /// Whether a watcher of the topic is told of each connection.
    fn tells_connections(&self, topic: u32) -> bool {
        (self.watched_topics.get(&topic)).is_some_and(WatchedTopic::tells_connections)
    }

    /// Lets a member of this user whose connection has ended continue with this connection. Returns whether there was such a member.
    fn continue_member(
        &mut self,
        topic: u32,
        conn: MemberConn,
        texts: (&[u8], &[u8]),
        now: Now,
    ) -> bool {
        let (user, _) = texts;
        if user.is_empty() || self.leaving_users.is_empty() {
            return false;
        }
        let key = self.user_key(topic, user);
        let mut leaving = self.leaving_users.range((key, 0)..=(key, u32::MAX));
        let Some((_, member)) =
            leaving.find(|(_, id)| self.members.get(*id).user_and_info() == texts)
        else {
            return false;
        };
        let member = *member;
        if self.tells_connections(topic) {
            // Such a watcher must see the new connection as another member, so it becomes another member for everybody.
            self.unlist_member(member);
            return false;
        }
        self.give_connection(member, conn);
        self.tell_peers_of_join(member, now);
        true
    }

    /// Lets a member continue with another connection.
    fn give_connection(&mut self, member: u32, conn: MemberConn) {
        self.cancel_leave(member);
        self.member_index.remove(&mut self.members, member);
        let row = self.members.get_mut(member);
        row.move_to(conn);
        row.snapshot = self.peers.snapshot_of(conn.node);
        let topic = row.topic;
        self.member_index.insert(&mut self.members, member);
        // Readers see the new connection. Watchers are not told of it, so the number of the change is not that of a `count_change`.
        self.last_change += 1;
        self.topics.get_mut(topic).last_change = self.last_change;
    }

    /// Cancels the leave of a member.
    fn cancel_leave(&mut self, member: u32) {
        let row = self.members.get_mut(member);
        let leaves_s = core::mem::take(&mut row.leaves_s);
        if leaves_s > 0 {
            let row = self.members.get(member);
            let (topic, key) = (row.topic, self.user_key(row.topic, row.user_and_info().0));
            self.leaving.remove(&(leaves_s, member));
            self.leaving_users.remove(&(key, member));
            self.leaving_topics.remove(&(topic, leaves_s, member));
        }
    }

    /// Makes the member of a connection leave after `linger_s`, or at once if `linger_s` is 0. A member without a user name leaves at once, since nobody
    /// could recognise the client when it returns.
    pub fn leave(&mut self, name: &[u8], conn: MemberConn, linger_s: u32, now: Now) {
        let Some(topic) = self.find(name) else {
            return;
        };
        match self.find_member(topic, conn) {
            Some(member) => {
                self.tell_peers_of_leave(member, linger_s);
                self.end_connection(member, linger_s, now);
            }
            None => self.remove_unlisted(topic, conn),
        }
    }

    /// Called if the connection in this row has ended: the member continues with a connection that waits, or leaves after `linger_s`.
    fn end_connection(&mut self, member: u32, linger_s: u32, now: Now) {
        if self.members.get(member).id == 0 {
            return self.remove_waiting(member);
        }
        let topic = self.members.get(member).topic;
        if let Some(waiting) = self.find_waiting(member)
            && !self.tells_connections(topic)
        {
            let row = self.members.get(waiting);
            let (conn, snapshot) = (row.conn(), row.snapshot);
            self.remove_waiting(waiting);
            self.give_connection(member, conn);
            // The number of the waiting row stays: the snapshot that its node sends now may not have named the connection yet.
            self.members.get_mut(member).snapshot = snapshot;
            return self.tell_peers_of_move(waiting, member, now);
        }
        if linger_s == 0 || self.members.get(member).user_and_info().0.is_empty() {
            return self.remove_member(member);
        }
        self.cancel_leave(member);
        // One second more, because a part of the present second is over.
        let leaves_s = now.s.saturating_add(linger_s).saturating_add(1);
        self.members.get_mut(member).leaves_s = leaves_s;
        let key = self.user_key(topic, self.members.get(member).user_and_info().0);
        self.leaving.insert((leaves_s, member));
        self.leaving_users.insert((key, member));
        self.leaving_topics.insert((topic, leaves_s, member));
    }

    fn remove_member(&mut self, member: u32) {
        let topic = self.unlist_member(member);
        self.remove_topic_if_unused(topic);
    }

    /// Removes a member, but keeps the topic's row. Returns the topic.
    fn unlist_member(&mut self, member: u32) -> u32 {
        self.cancel_leave(member);
        self.member_index.remove(&mut self.members, member);
        let row = self.members.remove(member);
        let topic = row.topic;
        let leave_number = self.count_change(topic);
        let key = self.user_key(topic, row.user_and_info().0);
        let count = self.members_by_user.get_mut(&key).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if count == 0 {
            self.members_by_user.remove(&key);
        }
        let members = &self.members;
        let presence_topic = self.topics.get_mut(topic);
        presence_topic.user_count -= u32::from(count == 0);
        // The row of the removed member is free already.
        let is_before = |other: &u32| *other != member && members.get(*other).id < row.id;
        let index = presence_topic.members_by_join.partition_point(is_before);
        self.moved_bytes +=
            STEP_BYTES + index.min(presence_topic.members_by_join.len() - index) * size_of::<u32>();
        presence_topic.members_by_join.remove(index);
        let capacity_before = presence_topic.members_by_join.capacity();
        if capacity_before >= 64 && presence_topic.members_by_join.len() < capacity_before / 4 {
            presence_topic
                .members_by_join
                .shrink_to(capacity_before / 2);
        }
        self.member_list_bytes -=
            (capacity_before - presence_topic.members_by_join.capacity()) * size_of::<u32>();
        self.text_bytes -= row.text.len();
        let members = presence_topic.members_by_join.len();
        self.push_to_streams((member, Some(&row)), false, count == 0);
        if let Some(watched) = self.watched_topics.get_mut(&topic) {
            let leave = Leave {
                number: leave_number,
                process: self.peers.process_of(row.conn()),
                row,
            };
            let (added_bytes, forgotten_bytes) = watched.remember_leave(leave, members);
            self.leave_bytes = self.leave_bytes + added_bytes - forgotten_bytes;
        }
        if count == 0 {
            self.list_waiting_of_user(key);
        }
        topic
    }

    /// Removes members whose connections ended long enough ago, for about `steps_max` steps. Returns whether more are due.
    pub fn remove_absent(&mut self, now: Now, steps_max: usize) -> bool {
        let is_due = |first: Option<&(u32, u32)>| match first.copied() {
            Some((leaves_s, member)) if leaves_s <= now.s => Some(member),
            _ => None,
        };
        self.end_silent_streams(now);
        let more_wait = self.peers.has_waiting() && self.end_due_waits(now);
        let moved_before = self.moved_bytes;
        while let Some(member) = is_due(self.leaving.first()) {
            if self.moved_bytes - moved_before >= steps_max * STEP_BYTES {
                return true;
            }
            self.remove_member(member);
        }
        more_wait
    }

    /// Forgets the leaves of topics that nobody has watched for some time, for about `steps_max` steps. Returns whether more are due.
    pub fn forget_unwatched(&mut self, now: Now, steps_max: usize) -> bool {
        let mut steps_left = steps_max;
        while let Some((ends_s, topic)) = self.unwatched_topics.first().copied()
            && ends_s <= now.s
        {
            let Some(watched) = self.watched_topics.get_mut(&topic) else {
                return false;
            };
            if steps_left == 0 {
                return true;
            }
            let forgotten = watched.forget_leaves(steps_left);
            let is_done = watched.leaves.is_empty();
            let steps = forgotten.count.max(1);
            steps_left -= steps;
            self.moved_bytes += steps * STEP_BYTES;
            self.leave_bytes -= forgotten.bytes;
            if is_done {
                self.unwatched_topics.remove(&(ends_s, topic));
                self.watched_topics.remove(&topic);
                self.remove_topic_if_unused(topic);
            }
        }
        false
    }

    /// Reads the members of a topic that joined after change `after`, at most `members_max`.
    pub fn read(&self, name: &[u8], after: u64, members_max: usize) -> PresencePage {
        let mut page = PresencePage {
            position: PresencePosition {
                table: self.table_number,
                change: 0,
            },
            ..PresencePage::default()
        };
        if let Some(id) = self.find(name) {
            let topic = self.topics.get(id);
            page.position.change = topic.last_change;
            page.counts = topic.counts();
            let source = PageSource {
                topic,
                members: &self.members,
                peers: &self.peers,
                table: self.table_number,
                last_change: self.last_change,
            };
            source.push_members(after, members_max, &mut page);
        }
        page
    }

    /// Adds a watcher of a topic. If `from` is a position whose later changes are all remembered, the watcher gets these changes, otherwise a snapshot.
    pub fn add_watcher(
        &mut self,
        name: &[u8],
        (shard, to): (ShardId, ReplyTo),
        from: Option<PresencePosition>,
        now_ns: u64,
    ) {
        let (topic, changed) = self.open_watched(name);
        let (table, watched) = (self.table_number, self.watched_topics.get_mut(&topic));
        let watched = watched.expect("it was opened");
        let is_known = |it: &PresencePosition| {
            it.table == table && it.change >= watched.forgotten_until && it.change <= changed
        };
        let known_change = from.filter(is_known).map(|it| it.change);
        watched.add(shard, Watcher::new(to, known_change, changed), now_ns);
        self.watcher_count += 1;
        self.update_due_time(topic);
    }

    /// Adds a watcher that gets no snapshot, only changes from now on, and is told of each connection.
    pub fn add_change_watcher(
        &mut self,
        name: &[u8],
        (shard, to): (ShardId, ReplyTo),
        now_ns: u64,
    ) {
        let (topic, changed) = self.open_watched(name);
        let watched = self.watched_topics.get_mut(&topic).expect("it was opened");
        watched.add(shard, Watcher::of_changes(to, changed), now_ns);
        self.watcher_count += 1;
        self.update_due_time(topic);
    }

    /// Makes a topic watched. Returns the topic's row and the number of the last change.
    fn open_watched(&mut self, name: &[u8]) -> (u32, u64) {
        let topic = self.find_or_create_topic(name);
        let changed = self.last_change;
        let watched =
            (self.watched_topics.entry(topic)).or_insert_with(|| WatchedTopic::new(changed));
        if watched.is_unwatched() {
            self.unwatched_topics.remove(&(watched.ends_s, topic));
        }
        (topic, changed)
    }

    /// Called when a watcher can take another page.
    pub fn set_ready(&mut self, name: &[u8], shard: ShardId, to: ReplyTo, now_ns: u64) {
        let Some(topic) = self.find(name) else { return };
        let changed = self.topics.get(topic).watched_change;
        if let Some(watched) = self.watched_topics.get_mut(&topic) {
            watched.set_ready(key_of(shard, to), changed, now_ns);
            self.update_due_time(topic);
        }
    }

    /// Removes a watcher.
    pub fn remove_watcher(&mut self, name: &[u8], shard: ShardId, to: ReplyTo, now: Now) {
        let Some(topic) = self.find(name) else { return };
        let Some(watched) = self.watched_topics.get_mut(&topic) else {
            return;
        };
        if !watched.remove(key_of(shard, to)) {
            return;
        }
        self.watcher_count -= 1;
        if watched.is_unwatched() {
            watched.ends_s = now.s.saturating_add(LEAVES_KEPT_S);
            let (ends_s, has_gone) = (watched.ends_s, !watched.leaves.is_empty());
            self.update_due_time(topic);
            // If the topic has neither members nor remembered leaves, a watcher that resumes needs nothing.
            match has_gone || self.topics.get(topic).counts().clients > 0 {
                true => drop(self.unwatched_topics.insert((ends_s, topic))),
                false => {
                    self.watched_topics.remove(&topic);
                    self.remove_topic_if_unused(topic);
                }
            }
            return;
        }
        self.update_due_time(topic);
    }

    /// Sends watchers the changes that they lack, at most `pages_max` pages. Returns how many watchers were examined.
    pub fn send_news(
        &mut self,
        now_ns: u64,
        pages_max: usize,
        mut tell: impl FnMut(ShardId, ReplyTo, PresencePage),
    ) -> usize {
        let (mut sent_pages, mut examined) = (0, 0);
        while sent_pages < pages_max
            && examined < pages_max * EXAMINED_PER_PAGE
            && let Some((at_ns, topic)) = self.due_topics.first().copied()
            && at_ns <= now_ns
            && let Some(watched) = self.watched_topics.get_mut(&topic)
        {
            let source = PageSource {
                topic: self.topics.get(topic),
                members: &self.members,
                peers: &self.peers,
                table: self.table_number,
                last_change: self.last_change,
            };
            let next = |watcher: &mut Watcher, gone: (&_, u64)| source.next_page(watcher, gone);
            if let Some((shard, to, page)) = watched.make_page(now_ns, next) {
                tell(shard, to, page);
                sent_pages += 1;
            }
            examined += 1;
            self.update_due_time(topic);
        }
        examined
    }
}
