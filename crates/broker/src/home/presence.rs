//! Presence: the members of topics (connections that subscribe to them), and the watchers (connections that are told which members come and leave).
//!
//! A member whose connection broke stays for some seconds. If the same user with the same info returns meanwhile, the member continues with the new
//! connection, and no watcher is told: the reload of a web page shows no leave and no join. Exception: a watcher may ask to be told of each
//! connection.
//!
//! The changes of a table are numbered in order. A member is identified by the number of its join. A watcher has two numbers: of the members that
//! joined up to change `joined`, it knows exactly those that had not left up to change `left`. A page first contains the members that have left since
//! then. If these are all told, it also contains the members that joined later. So a slow watcher needs no queue, and a page contains at most one
//! change of each member.
//!
//! Members that have left are remembered for topics that are watched, or were watched a short time ago, and only a limited number of them. A watcher
//! that has missed a forgotten leave gets a new snapshot.
//!
//! Invariants: a member is in the list of its topic, which is ordered by the numbers of joins, and in the index of connections. A topic has a row
//! while it has members, listed or only counted, and while it is watched or was watched a short time ago.

mod pages;
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
use rows::{Leave, MemberRow, PresenceTopic, hash_of_member};
use streams::MemberStream;
use watchers::{WATCHER_BYTES, Watched, Watcher, key_of};

/// After its last watcher, a topic's members that have left are remembered for this many seconds.
const RESUME_S: u32 = 60;
/// The maximum number of watchers that one call examines, for each page that it may send.
const LOOKS_PER_PAGE: usize = 8;

/// Identifies a user in a topic: the topic, and a hash of the user's name.
type UserKey = (u32, [u32; 2]);

/// The members and watchers of a home's topics.
pub(crate) struct Presence {
    topics: Slab<PresenceTopic>,
    topic_index: Index,
    members: Slab<MemberRow>,
    member_index: Index,
    users: BTreeMap<UserKey, u32>,
    /// Members whose connections have ended, by the second in which they leave.
    leaving: BTreeSet<(u32, u32)>,
    leaving_users: BTreeSet<(UserKey, u32)>,
    /// The same members, by topic and second.
    leaving_topics: BTreeSet<(u32, u32, u32)>,
    watched: BTreeMap<u32, Watched>,
    /// Watched topics with unsent news, by the time from which it may be sent.
    due: BTreeSet<(u64, u32)>,
    watchers: usize,
    /// For the operator's webhooks.
    streams: Vec<MemberStream>,
    /// Topics without watchers, by the second in which the members that have left them are forgotten.
    unwatched: BTreeSet<(u32, u32)>,
    /// The number of the last change.
    changed: u64,
    table: u32,
    seed: u64,
    text_bytes: usize,
    order_bytes: usize,
    gone_bytes: usize,
    /// The result of the next [`Presence::take_moved_bytes`].
    moved_bytes: usize,
}

impl Presence {
    /// An empty table. `now` makes its number differ from that of earlier tables.
    pub fn new(seed: u64, now: Now) -> Presence {
        Presence {
            topics: Slab::default(),
            topic_index: Index::default(),
            members: Slab::default(),
            member_index: Index::default(),
            users: BTreeMap::new(),
            leaving: BTreeSet::new(),
            leaving_users: BTreeSet::new(),
            leaving_topics: BTreeSet::new(),
            watched: BTreeMap::new(),
            due: BTreeSet::new(),
            watchers: 0,
            streams: Vec::new(),
            unwatched: BTreeSet::new(),
            changed: 0,
            table: xxh3_64_with_seed(&now.unix_s.to_le_bytes(), seed) as u32,
            seed,
            text_bytes: 0,
            order_bytes: 0,
            gone_bytes: 0,
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
        // Includes the entry in `due` or in `unwatched`.
        const WATCHED_BYTES: usize =
            (size_of::<(u32, Watched)>() + size_of::<(u64, u32)>()) * 3 / 2;
        self.topics.bytes()
            + self.topic_index.bytes()
            + self.members.bytes()
            + self.member_index.bytes()
            + self.users.len() * USER_BYTES
            + self.leaving.len() * LEAVING_BYTES
            + self.text_bytes
            + self.order_bytes
            + self.gone_bytes
            + self.watched.len() * WATCHED_BYTES
            + self.watchers * WATCHER_BYTES
            + self.streams.iter().map(MemberStream::bytes).sum::<usize>()
    }

    /// Whether there are no members, no watchers and no remembered leaves.
    pub fn is_empty(&self) -> bool {
        self.topics.len() == 0
    }

    /// Whether news may be sent to a watcher now.
    pub fn has_due(&self, now_ns: u64) -> bool {
        self.due.first().is_some_and(|(at_ns, _)| *at_ns <= now_ns)
    }

    /// The time from which the next watcher with unsent news may get it.
    pub fn next_news_ns(&self) -> Option<u64> {
        self.due.first().map(|(at_ns, _)| *at_ns)
    }

    /// The bytes that lists of members have moved since the last call. A member that has left counts as a step more.
    pub fn take_moved_bytes(&mut self) -> usize {
        core::mem::take(&mut self.moved_bytes)
    }

    fn hash(&self, name: &[u8]) -> u32 {
        xxh3_64_with_seed(name, self.seed) as u32
    }

    fn user_key(&self, topic: u32, user: &[u8]) -> UserKey {
        let hash = xxh3_64_with_seed(user, !self.seed);
        (topic, [(hash >> 32) as u32, hash as u32])
    }

    fn find(&self, name: &[u8]) -> Option<u32> {
        let is = |topic: &PresenceTopic| *topic.name == *name;
        self.topic_index.find(&self.topics, self.hash(name), is)
    }

    fn open(&mut self, name: &[u8]) -> u32 {
        if let Some(id) = self.find(name) {
            return id;
        }
        self.text_bytes += name.len();
        let id = self.topics.insert(PresenceTopic {
            name: name.into(),
            hash: self.hash(name),
            ..PresenceTopic::vacant(NONE)
        });
        self.topic_index.insert(&mut self.topics, id);
        id
    }

    fn close_if_unused(&mut self, id: u32) {
        let topic = self.topics.get(id);
        if topic.counts().clients > 0 || self.watched.contains_key(&id) {
            return;
        }
        self.topic_index.remove(&mut self.topics, id);
        let topic = self.topics.remove(id);
        self.text_bytes -= topic.name.len();
        self.order_bytes -= topic.members_by_join.capacity() * size_of::<u32>();
    }

    fn find_member(&self, topic: u32, at: MemberConn) -> Option<u32> {
        let is = |row: &MemberRow| row.topic == topic && row.conn() == at;
        self.member_index
            .find(&self.members, hash_of_member(topic, at), is)
    }

    /// Notes a change of a topic, and returns the number of the change.
    fn change(&mut self, topic: u32) -> u64 {
        self.changed += 1;
        let row = self.topics.get_mut(topic);
        (row.watched_change, row.last_change) = (self.changed, self.changed);
        if let Some(watched) = self.watched.get_mut(&topic) {
            watched.has_changed();
            self.plan(topic);
        }
        self.changed
    }

    /// Updates the entry of a topic in `due`.
    fn plan(&mut self, topic: u32) {
        let Some(watched) = self.watched.get_mut(&topic) else {
            return;
        };
        let next_ns = watched.next_ns();
        let former = core::mem::replace(&mut watched.due_ns, next_ns);
        if former == next_ns {
            return;
        }
        if let Some(at_ns) = former {
            self.due.remove(&(at_ns, topic));
        }
        if let Some(at_ns) = next_ns {
            self.due.insert((at_ns, topic));
        }
    }

    /// Adds a connection that has subscribed to a topic. If the topic has `members_max` members already, the connection is only counted.
    pub fn join(
        &mut self,
        name: &[u8],
        at: MemberConn,
        (user, info): (&[u8], &[u8]),
        members_max: u32,
        now: Now,
    ) {
        let topic = self.open(name);
        if self.returns(topic, at, (user, info)) || self.find_member(topic, at).is_some() {
            return;
        }
        let most = members_max as usize;
        if self.topics.get(topic).members_by_join.len() == most {
            // A member whose connection has ended makes room. Above the limit, it would give way to nobody.
            let mut away = self
                .leaving_topics
                .range((topic, 0, 0)..=(topic, u32::MAX, u32::MAX));
            if let Some((_, _, first)) = away.next().copied() {
                self.take_out(first);
            }
        }
        let id = self.change(topic);
        let row = self.topics.get_mut(topic);
        if row.members_by_join.len() >= most {
            row.unlisted_count += 1;
            return;
        }
        let text = [&[user.len() as u8], user, info]
            .concat()
            .into_boxed_slice();
        self.text_bytes += text.len();
        let member = self.members.insert(MemberRow {
            text,
            id,
            topic,
            since_s: now.unix_s,
            ..MemberRow::vacant(NONE)
        });
        self.members.get_mut(member).move_to(at);
        self.member_index.insert(&mut self.members, member);
        let row = self.topics.get_mut(topic);
        let before = row.members_by_join.capacity();
        if before == 0 {
            row.members_by_join.reserve_exact(1);
        }
        row.members_by_join.push_back(member);
        self.order_bytes += (row.members_by_join.capacity() - before) * size_of::<u32>();
        let key = self.user_key(topic, user);
        let count = self.users.entry(key).or_default();
        *count += 1;
        let is_first = *count == 1;
        self.topics.get_mut(topic).user_count += u32::from(is_first);
        self.push_to_streams((member, None), true, is_first);
    }

    /// Lets a member of this user whose connection has ended continue with this connection. Returns whether there was such a member.
    fn returns(&mut self, topic: u32, at: MemberConn, texts: (&[u8], &[u8])) -> bool {
        let (user, _) = texts;
        if user.is_empty() || self.leaving_users.is_empty() {
            return false;
        }
        let key = self.user_key(topic, user);
        let mut away = self.leaving_users.range((key, 0)..=(key, u32::MAX));
        let Some((_, member)) = away.find(|(_, id)| self.members.get(*id).user_and_info() == texts)
        else {
            return false;
        };
        let member = *member;
        if (self.watched.get(&topic)).is_some_and(Watched::tells_connections) {
            // For such a watcher the new connection must be another member, and so it is for all.
            self.take_out(member);
            return false;
        }
        self.stays(member);
        self.member_index.remove(&mut self.members, member);
        self.members.get_mut(member).move_to(at);
        self.member_index.insert(&mut self.members, member);
        // Readers see the new connection. Watchers get no news.
        self.changed += 1;
        self.topics.get_mut(topic).last_change = self.changed;
        true
    }

    /// Cancels the leave of a member.
    fn stays(&mut self, member: u32) {
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

    /// Lets the member of a connection leave after `linger_s`, or at once if `linger_s` is 0. A member without a user name leaves at once, since it
    /// could not be recognised when it returns.
    pub fn leave(&mut self, name: &[u8], at: MemberConn, linger_s: u32, now: Now) {
        let Some(topic) = self.find(name) else {
            return;
        };
        match self.find_member(topic, at) {
            Some(member)
                if linger_s > 0 && !self.members.get(member).user_and_info().0.is_empty() =>
            {
                self.stays(member);
                let row = self.members.get_mut(member);
                // One second more, since the present second has begun already.
                row.leaves_s = now.s.saturating_add(linger_s).saturating_add(1);
                let leaves_s = row.leaves_s;
                let key = {
                    let row = self.members.get(member);
                    self.user_key(topic, row.user_and_info().0)
                };
                self.leaving.insert((leaves_s, member));
                self.leaving_users.insert((key, member));
                self.leaving_topics.insert((topic, leaves_s, member));
            }
            Some(member) => self.remove(member),
            None if self.topics.get(topic).unlisted_count > 0 => {
                self.topics.get_mut(topic).unlisted_count -= 1;
                self.change(topic);
                self.close_if_unused(topic);
            }
            None => {}
        }
    }

    fn remove(&mut self, member: u32) {
        let topic = self.take_out(member);
        self.close_if_unused(topic);
    }

    /// Removes a member, but keeps the topic's row. Returns the topic.
    fn take_out(&mut self, member: u32) -> u32 {
        self.stays(member);
        self.member_index.remove(&mut self.members, member);
        let row = self.members.remove(member);
        let topic = row.topic;
        let left = self.change(topic);
        let key = self.user_key(topic, row.user_and_info().0);
        let count = self.users.get_mut(&key).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if count == 0 {
            self.users.remove(&key);
        }
        let members = &self.members;
        let of = self.topics.get_mut(topic);
        of.user_count -= u32::from(count == 0);
        // The row of the removed member is free already.
        let is_before = |other: &u32| *other != member && members.get(*other).id < row.id;
        let at = of.members_by_join.partition_point(is_before);
        self.moved_bytes += STEP_BYTES + at.min(of.members_by_join.len() - at) * size_of::<u32>();
        of.members_by_join.remove(at);
        let before = of.members_by_join.capacity();
        if before >= 64 && of.members_by_join.len() < before / 4 {
            of.members_by_join.shrink_to(before / 2);
        }
        self.order_bytes -= (before - of.members_by_join.capacity()) * size_of::<u32>();
        self.text_bytes -= row.text.len();
        let members = of.members_by_join.len();
        self.push_to_streams((member, Some(&row)), false, count == 0);
        if let Some(watched) = self.watched.get_mut(&topic) {
            let (more, less) = watched.remember(Leave { number: left, row }, members);
            self.gone_bytes = self.gone_bytes + more - less;
        }
        topic
    }

    /// Removes members whose connections ended long enough ago, for about `steps_max` steps. Returns whether more are due.
    pub fn end_absent(&mut self, now: Now, steps_max: usize) -> bool {
        let is_due = |first: Option<&(u32, u32)>| match first.copied() {
            Some((leaves_s, member)) if leaves_s <= now.s => Some(member),
            _ => None,
        };
        let moved_before = self.moved_bytes;
        while let Some(member) = is_due(self.leaving.first()) {
            if self.moved_bytes - moved_before >= steps_max * STEP_BYTES {
                return true;
            }
            self.remove(member);
        }
        false
    }

    /// Forgets the leaves of topics that nobody has watched for some time, in at most `most` topics. Returns whether more are due.
    pub fn end_unwatched(&mut self, now: Now, most: usize) -> bool {
        for _ in 0..most {
            match self.unwatched.first().copied() {
                Some((ends_s, topic)) if ends_s <= now.s => {
                    self.unwatched.remove(&(ends_s, topic));
                    self.forget(topic);
                }
                _ => return false,
            }
        }
        (self.unwatched.first()).is_some_and(|(ends_s, _)| *ends_s <= now.s)
    }

    /// Forgets what is remembered for the watchers of a topic, which has none any more.
    fn forget(&mut self, topic: u32) {
        let watched = self.watched.remove(&topic).unwrap_or_default();
        self.gone_bytes -= watched.gone.iter().map(Leave::bytes).sum::<usize>();
        self.close_if_unused(topic);
    }

    /// Reads the members of a topic that joined after change `after`, at most `most`.
    pub fn read(&self, name: &[u8], after: u64, most: usize) -> PresencePage {
        let mut page = PresencePage {
            position: PresencePosition {
                table: self.table,
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
                table: self.table,
                last_change: self.changed,
            };
            source.push_members(after, most, &mut page);
        }
        page
    }

    /// Adds a watcher of a topic. If it resumes from a position that is still known, it gets what it has missed, otherwise a snapshot.
    pub fn watch(
        &mut self,
        name: &[u8],
        (shard, to): (ShardId, ReplyTo),
        from: Option<PresencePosition>,
        now_ns: u64,
    ) {
        let (topic, changed) = self.open_watched(name);
        let (table, watched) = (self.table, self.watched.get_mut(&topic));
        let watched = watched.expect("it was opened");
        let known = |it: &PresencePosition| {
            it.table == table && it.change >= watched.floor && it.change <= changed
        };
        let from = from.filter(known).map(|it| it.change);
        watched.add(shard, Watcher::new(to, from, changed), now_ns);
        self.watchers += 1;
        self.plan(topic);
    }

    /// Adds a watcher that gets no snapshot, only changes from now on, and is told of each connection.
    pub fn watch_changes(&mut self, name: &[u8], (shard, to): (ShardId, ReplyTo), now_ns: u64) {
        let (topic, changed) = self.open_watched(name);
        let watched = self.watched.get_mut(&topic).expect("it was opened");
        watched.add(shard, Watcher::of_changes(to, changed), now_ns);
        self.watchers += 1;
        self.plan(topic);
    }

    /// Makes a topic watched. Returns the topic's row and the number of the last change.
    fn open_watched(&mut self, name: &[u8]) -> (u32, u64) {
        let topic = self.open(name);
        let changed = self.changed;
        let watched = (self.watched.entry(topic)).or_insert_with(|| Watched::new(changed));
        if watched.is_unwatched() {
            self.unwatched.remove(&(watched.ends_s, topic));
        }
        (topic, changed)
    }

    /// Notes that a watcher can take another page.
    pub fn is_ready(&mut self, name: &[u8], shard: ShardId, to: ReplyTo, now_ns: u64) {
        let Some(topic) = self.find(name) else { return };
        let changed = self.topics.get(topic).watched_change;
        if let Some(watched) = self.watched.get_mut(&topic) {
            watched.is_ready(key_of(shard, to), (changed, now_ns));
            self.plan(topic);
        }
    }

    /// Removes a watcher.
    pub fn unwatch(&mut self, name: &[u8], shard: ShardId, to: ReplyTo, now: Now) {
        let Some(topic) = self.find(name) else { return };
        let Some(watched) = self.watched.get_mut(&topic) else {
            return;
        };
        if !watched.remove(key_of(shard, to)) {
            return;
        }
        self.watchers -= 1;
        if watched.is_unwatched() {
            watched.ends_s = now.s.saturating_add(RESUME_S);
            let (ends_s, has_gone) = (watched.ends_s, !watched.gone.is_empty());
            self.plan(topic);
            // Without members and leaves, there is nothing to remember for a watcher that resumes.
            match has_gone || self.topics.get(topic).counts().clients > 0 {
                true => drop(self.unwatched.insert((ends_s, topic))),
                false => self.forget(topic),
            }
            return;
        }
        self.plan(topic);
    }

    /// Sends watchers their news, at most `most` pages. Returns how many watchers were examined.
    pub fn tell(
        &mut self,
        now_ns: u64,
        most: usize,
        mut tell: impl FnMut(ShardId, ReplyTo, PresencePage),
    ) -> usize {
        let (mut told, mut looks) = (0, 0);
        while told < most
            && looks < most * LOOKS_PER_PAGE
            && let Some((at_ns, topic)) = self.due.first().copied()
            && at_ns <= now_ns
            && let Some(watched) = self.watched.get_mut(&topic)
        {
            let source = PageSource {
                topic: self.topics.get(topic),
                members: &self.members,
                table: self.table,
                last_change: self.changed,
            };
            let next = |watcher: &mut Watcher, gone: (&_, u64)| source.next_page(watcher, gone);
            if let Some((shard, to, page)) = watched.tell(now_ns, next) {
                tell(shard, to, page);
                told += 1;
            }
            looks += 1;
            self.plan(topic);
        }
        looks
    }
}
