//! Presence: the members of topics (connections that subscribe to them), and the watchers, who are told of each member that comes or leaves.
//!
//! A member whose connection broke stays for some seconds. If the same user with the same info returns within them, the member continues with the new
//! connection, and nobody is told. So a reload of a page shows no leave and no join.
//!
//! All changes of a table have numbers that rise. The number of its join identifies a member. A watcher stands at two numbers: it knows exactly the members
//! that came up to `joined`, as they were after change `left`. In each page it gets first the members that have left since, and then, if these were all, the
//! members that came later. So a watcher may be as slow as it likes: it needs no queue, and gets at most one change of each member in a page.
//!
//! Members that have left are remembered only for topics that are watched, or were a short time ago, and only so many. A watcher from before that gets a
//! new snapshot.
//!
//! Invariants: a member is in the list of its topic, which is ordered by the numbers of joins, and in the index of connections. A topic has a row while it
//! has members, uncounted or not, or is watched.

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::ids::{ConnId, ShardId};
use crate::base::time::Now;
use crate::mail::ReplyTo;
use crate::mail::presence::{
    Member, MemberConn, PresenceChange, PresenceCounts, PresencePage, PresencePosition,
};
use crate::store::index::{Index, chained};
use crate::store::slab::{NONE, Slab, Vacant};

/// The members that have left one topic and are remembered for its watchers.
const GONE_MAX: usize = 1_024;
/// Seconds for which the members that have left are remembered after the last watcher.
const RESUME_S: u32 = 60;
/// The least time between two pages for a watcher that has its snapshot: its changes come together.
const PAGE_INTERVAL_NS: u64 = 100_000_000;
/// The topics that one call forgets because nobody watches them.
const FORGOTTEN_AT_ONCE: usize = 256;
/// The number of members of a page.
const MEMBERS_PER_PAGE: usize = 256;
/// The bytes of a page, about.
const BYTES_PER_PAGE: usize = 64 << 10;

/// A member. Its text is the length of the user's name, the name, and the info.
struct Row {
    text: Box<[u8]>,
    /// The number of its join.
    id: u64,
    slot: u32,
    generation: u16,
    shard: ShardId,
    topic: u32,
    next: u32,
    since_s: u32,
    /// The second in which it leaves, if its connection has gone. Otherwise 0.
    leaves_s: u32,
}

const _: () = assert!(size_of::<Row>() == 48);

impl Vacant for Row {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        Row {
            text: Box::default(),
            id: 0,
            slot: 0,
            generation: 0,
            shard: 0,
            topic: NONE,
            next,
            since_s: 0,
            leaves_s: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

chained!(Row, |row| hash_of_member(row.topic, row.at()));

impl Row {
    fn at(&self) -> MemberConn {
        MemberConn {
            shard: self.shard,
            conn: ConnId {
                slot: self.slot,
                generation: self.generation,
            },
        }
    }

    fn texts(&self) -> (&[u8], &[u8]) {
        let (len, texts) = self.text.split_first().unwrap_or((&0, &[]));
        texts.split_at(usize::from(*len))
    }

    fn member(&self) -> Member<'_> {
        let (user, info) = self.texts();
        Member {
            id: self.id,
            at: self.at(),
            since_s: self.since_s,
            user,
            info,
        }
    }
}

/// Row numbers of a server do not come from clients, so the hash needs no key.
fn hash_of_member(topic: u32, at: MemberConn) -> u32 {
    let conn = at.conn.token() ^ u64::from(at.shard) << 48;
    let mixed = (conn ^ u64::from(topic) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u32 ^ topic.wrapping_mul(0x85EB_CA6B)
}

/// A topic with members or watchers.
struct Topic {
    name: Box<[u8]>,
    /// Its members, by the numbers of their joins.
    order: Vec<u32>,
    hash: u32,
    next: u32,
    /// The different users among the members.
    users: u32,
    /// The connections above the limit of the rule, which are only counted.
    unlisted: u32,
    /// The last change.
    changed: u64,
}

impl Vacant for Topic {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        Topic {
            name: Box::default(),
            order: Vec::new(),
            hash: 0,
            next,
            users: 0,
            unlisted: 0,
            changed: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

chained!(Topic);

impl Topic {
    fn counts(&self) -> PresenceCounts {
        let listed = self.order.len() as u32;
        PresenceCounts {
            clients: listed + self.unlisted,
            users: self.users,
            listed,
        }
    }
}

/// A member that has left.
struct Gone {
    /// The number of this change.
    left: u64,
    row: Row,
}

/// A watcher of one topic.
struct Watcher {
    shard: ShardId,
    to: ReplyTo,
    /// It knows the members that came up to this change,
    joined: u64,
    /// as they were after this change.
    left: u64,
    /// Its next page begins a snapshot.
    begins: bool,
    /// It has a whole snapshot.
    is_whole: bool,
    /// It waits for a page, and gets it even if nothing has changed.
    is_due: bool,
    /// It can take a page.
    is_ready: bool,
    /// The unlisted connections that it was told of.
    unlisted: u32,
    /// When it got its last page.
    told_ns: u64,
}

/// Identifies a watcher by its shard and connection.
type WatcherKey = (ShardId, u32, u16);

fn key_of(shard: ShardId, to: ReplyTo) -> WatcherKey {
    (shard, to.slot, to.generation)
}

/// What a watched topic has besides its members.
#[derive(Default)]
struct Watched {
    watchers: BTreeMap<WatcherKey, Watcher>,
    /// The members that have left, in order.
    gone: VecDeque<Gone>,
    /// Members that left up to this change are forgotten.
    floor: u64,
    /// When all this is forgotten, if there is no watcher.
    ends_s: u32,
}

/// The key of a user's count: the topic and a hash of the name.
type UserKey = (u32, [u32; 2]);

/// The members and watchers of a home's topics.
pub(crate) struct Presence {
    topics: Slab<Topic>,
    topic_index: Index,
    members: Slab<Row>,
    member_index: Index,
    users: BTreeMap<UserKey, u32>,
    /// Members whose connections have gone, by the second in which they leave, and by their user.
    leaving: BTreeSet<(u32, u32)>,
    leaving_users: BTreeSet<(UserKey, u32)>,
    watched: BTreeMap<u32, Watched>,
    /// Watched topics in which a watcher may lack something.
    due: BTreeSet<u32>,
    /// A due watcher waits only for its interval.
    waits: bool,
    watchers: usize,
    /// The second in which topics that nobody watches were last forgotten.
    looked_s: u32,
    /// The last change.
    changed: u64,
    table: u32,
    seed: u64,
    text_bytes: usize,
    order_bytes: usize,
    gone_bytes: usize,
}

impl Presence {
    /// A table that begins `now`.
    pub fn new(seed: u64, now: Now) -> Presence {
        Presence {
            topics: Slab::default(),
            topic_index: Index::default(),
            members: Slab::default(),
            member_index: Index::default(),
            users: BTreeMap::new(),
            leaving: BTreeSet::new(),
            leaving_users: BTreeSet::new(),
            watched: BTreeMap::new(),
            due: BTreeSet::new(),
            waits: false,
            watchers: 0,
            looked_s: 0,
            changed: 0,
            table: xxh3_64_with_seed(&now.unix_s.to_le_bytes(), seed) as u32,
            seed,
            text_bytes: 0,
            order_bytes: 0,
            gone_bytes: 0,
        }
    }

    /// The bytes of all rows, indexes and texts.
    pub fn bytes(&self) -> usize {
        // A B-tree is about two thirds full.
        const USER_BYTES: usize = size_of::<(UserKey, u32)>() * 3 / 2;
        const LEAVING_BYTES: usize =
            (size_of::<(u32, u32)>() + size_of::<(UserKey, u32)>()) * 3 / 2;
        const WATCHER_BYTES: usize = size_of::<(WatcherKey, Watcher)>() * 3 / 2;
        const WATCHED_BYTES: usize = size_of::<(u32, Watched)>() * 3 / 2;
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
    }

    /// Whether there is no member, no watcher and nothing to forget.
    pub fn is_empty(&self) -> bool {
        self.topics.len() == 0
    }

    /// Whether a watcher may lack something that it can take now.
    pub fn has_due(&self) -> bool {
        !self.due.is_empty() && !self.waits
    }

    /// Whether a watcher waits until changes may be told again.
    pub fn waits(&self) -> bool {
        self.waits
    }

    fn hash(&self, name: &[u8]) -> u32 {
        xxh3_64_with_seed(name, self.seed) as u32
    }

    fn user_key(&self, topic: u32, user: &[u8]) -> UserKey {
        let hash = xxh3_64_with_seed(user, !self.seed);
        (topic, [(hash >> 32) as u32, hash as u32])
    }

    fn find(&self, name: &[u8]) -> Option<u32> {
        let is = |topic: &Topic| *topic.name == *name;
        self.topic_index.find(&self.topics, self.hash(name), is)
    }

    fn open(&mut self, name: &[u8]) -> u32 {
        if let Some(id) = self.find(name) {
            return id;
        }
        self.text_bytes += name.len();
        let id = self.topics.insert(Topic {
            name: name.into(),
            hash: self.hash(name),
            ..Topic::vacant(NONE)
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
        self.order_bytes -= topic.order.capacity() * size_of::<u32>();
    }

    fn find_member(&self, topic: u32, at: MemberConn) -> Option<u32> {
        let is = |row: &Row| row.topic == topic && row.at() == at;
        self.member_index
            .find(&self.members, hash_of_member(topic, at), is)
    }

    /// Notes a change of the topic; returns its number.
    fn change(&mut self, topic: u32) -> u64 {
        self.changed += 1;
        self.topics.get_mut(topic).changed = self.changed;
        if self.watched.contains_key(&topic) {
            self.due.insert(topic);
            self.waits = false;
        }
        self.changed
    }

    /// A connection has subscribed to a topic. Above `members_max` members it is only counted.
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
        let id = self.change(topic);
        let row = self.topics.get_mut(topic);
        if row.order.len() >= members_max as usize {
            row.unlisted += 1;
            return;
        }
        let text = [&[user.len() as u8], user, info]
            .concat()
            .into_boxed_slice();
        self.text_bytes += text.len();
        let member = self.members.insert(Row {
            text,
            id,
            slot: at.conn.slot,
            generation: at.conn.generation,
            shard: at.shard,
            topic,
            since_s: now.unix_s,
            ..Row::vacant(NONE)
        });
        self.member_index.insert(&mut self.members, member);
        let row = self.topics.get_mut(topic);
        let before = row.order.capacity();
        if before == 0 {
            row.order.reserve_exact(1);
        }
        row.order.push(member);
        self.order_bytes += (row.order.capacity() - before) * size_of::<u32>();
        let key = self.user_key(topic, user);
        let count = self.users.entry(key).or_default();
        *count += 1;
        self.topics.get_mut(topic).users += u32::from(*count == 1);
    }

    /// Whether a member of this user, whose connection has gone, continues with this connection.
    fn returns(&mut self, topic: u32, at: MemberConn, texts: (&[u8], &[u8])) -> bool {
        let (user, _) = texts;
        if user.is_empty() || self.leaving_users.is_empty() {
            return false;
        }
        let key = self.user_key(topic, user);
        let mut away = self.leaving_users.range((key, 0)..=(key, u32::MAX));
        let Some((_, member)) = away.find(|(_, id)| self.members.get(*id).texts() == texts) else {
            return false;
        };
        let member = *member;
        self.stays(member);
        self.member_index.remove(&mut self.members, member);
        let row = self.members.get_mut(member);
        (row.shard, row.slot, row.generation) = (at.shard, at.conn.slot, at.conn.generation);
        self.member_index.insert(&mut self.members, member);
        true
    }

    /// A member that was about to leave does not.
    fn stays(&mut self, member: u32) {
        let row = self.members.get_mut(member);
        let leaves_s = core::mem::take(&mut row.leaves_s);
        if leaves_s > 0 {
            let row = self.members.get(member);
            let key = self.user_key(row.topic, row.texts().0);
            self.leaving.remove(&(leaves_s, member));
            self.leaving_users.remove(&(key, member));
        }
    }

    /// A connection has ended its subscription to a topic, or has gone: then its member leaves after `linger_s`.
    pub fn leave(&mut self, name: &[u8], at: MemberConn, linger_s: u32, now: Now) {
        let Some(topic) = self.find(name) else {
            return;
        };
        match self.find_member(topic, at) {
            Some(member) if linger_s > 0 => {
                self.stays(member);
                let row = self.members.get_mut(member);
                // One second more, since the present second has begun already.
                row.leaves_s = now.s.saturating_add(linger_s).saturating_add(1);
                let leaves_s = row.leaves_s;
                let key = {
                    let row = self.members.get(member);
                    self.user_key(topic, row.texts().0)
                };
                self.leaving.insert((leaves_s, member));
                self.leaving_users.insert((key, member));
            }
            Some(member) => self.remove(member),
            None if self.topics.get(topic).unlisted > 0 => {
                self.topics.get_mut(topic).unlisted -= 1;
                self.change(topic);
                self.close_if_unused(topic);
            }
            None => {}
        }
    }

    fn remove(&mut self, member: u32) {
        self.stays(member);
        self.member_index.remove(&mut self.members, member);
        let row = self.members.remove(member);
        let topic = row.topic;
        let left = self.change(topic);
        let key = self.user_key(topic, row.texts().0);
        let count = self.users.get_mut(&key).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if count == 0 {
            self.users.remove(&key);
        }
        let members = &self.members;
        let of = self.topics.get_mut(topic);
        of.users -= u32::from(count == 0);
        // The row of the member itself is free.
        let is_before = |other: &u32| *other != member && members.get(*other).id < row.id;
        let at = of.order.partition_point(is_before);
        of.order.remove(at);
        let before = of.order.capacity();
        if before >= 64 && of.order.len() < before / 4 {
            of.order.shrink_to(before / 2);
        }
        self.order_bytes -= (before - of.order.capacity()) * size_of::<u32>();
        self.text_bytes -= row.text.len();
        self.remember(topic, Gone { left, row });
        self.close_if_unused(topic);
    }

    /// Remembers a member that has left, if its topic is watched.
    fn remember(&mut self, topic: u32, gone: Gone) {
        let Some(watched) = self.watched.get_mut(&topic) else {
            return;
        };
        let bytes = |gone: &Gone| size_of::<Gone>() + gone.row.text.len();
        self.gone_bytes += bytes(&gone);
        watched.gone.push_back(gone);
        if watched.gone.len() > GONE_MAX
            && let Some(oldest) = watched.gone.pop_front()
        {
            self.gone_bytes -= bytes(&oldest);
            watched.floor = oldest.left;
        }
    }

    /// Lets members leave whose time has come, at most `most`. Returns whether more are due.
    pub fn end_absent(&mut self, now: Now, most: usize) -> bool {
        for _ in 0..most {
            match self.leaving.first().copied() {
                Some((leaves_s, member)) if leaves_s <= now.s => self.remove(member),
                _ => return false,
            }
        }
        true
    }

    /// Once a second: forgets topics that nobody has watched for some time.
    pub fn end_unwatched(&mut self, now: Now) {
        if core::mem::replace(&mut self.looked_s, now.s) == now.s {
            return;
        }
        let over = |it: &Watched| it.watchers.is_empty() && it.ends_s <= now.s;
        let found = self.watched.iter().filter(|(_, it)| over(it));
        let found: Vec<u32> = found
            .map(|(topic, _)| *topic)
            .take(FORGOTTEN_AT_ONCE)
            .collect();
        for topic in found {
            let watched = self.watched.remove(&topic).unwrap_or_default();
            let gone = watched.gone.iter();
            let bytes = gone.map(|gone| size_of::<Gone>() + gone.row.text.len());
            self.gone_bytes -= bytes.sum::<usize>();
            self.due.remove(&topic);
            self.close_if_unused(topic);
        }
    }

    /// Reads the members of a topic that came after change `after`, at most `most`.
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
            page.position.change = topic.changed;
            page.counts = topic.counts();
            self.push_members(id, after, most, &mut page);
        }
        page
    }

    /// Adds members that came after change `after` to a page. Returns the number of the last one.
    fn push_members(&self, topic: u32, after: u64, most: usize, page: &mut PresencePage) -> u64 {
        let order = &self.topics.get(topic).order;
        let first = order.partition_point(|member| self.members.get(*member).id <= after);
        let mut last = after;
        for (count, member) in order[first..].iter().enumerate() {
            if count >= most || page.changes.len() >= BYTES_PER_PAGE {
                page.more = true;
                break;
            }
            let member = self.members.get(*member).member();
            page.changes.push(&PresenceChange::Join(member));
            last = member.id;
        }
        last
    }

    /// Adds a watcher of a topic. If it comes back with a position that is known, it gets what it missed, otherwise a snapshot.
    pub fn watch(
        &mut self,
        name: &[u8],
        (shard, to): (ShardId, ReplyTo),
        from: Option<PresencePosition>,
    ) {
        let topic = self.open(name);
        let (table, changed) = (self.table, self.changed);
        let watched = self.watched.entry(topic).or_insert_with(|| Watched {
            floor: changed,
            ..Watched::default()
        });
        let known = |it: &PresencePosition| {
            it.table == table && it.change >= watched.floor && it.change <= changed
        };
        let from = from.filter(known).map(|it| it.change);
        let watcher = Watcher {
            shard,
            to,
            joined: from.unwrap_or(0),
            left: from.unwrap_or(changed),
            begins: from.is_none(),
            is_whole: from.is_some(),
            is_due: true,
            is_ready: true,
            unlisted: 0,
            told_ns: 0,
        };
        let former = watched.watchers.insert(key_of(shard, to), watcher);
        debug_assert!(former.is_none(), "a connection watches once");
        self.watchers += 1;
        self.due.insert(topic);
        self.waits = false;
    }

    /// A watcher can take another page.
    pub fn is_ready(&mut self, name: &[u8], shard: ShardId, to: ReplyTo) {
        let Some(topic) = self.find(name) else { return };
        let watched = self.watched.get_mut(&topic);
        if let Some(watcher) = watched.and_then(|it| it.watchers.get_mut(&key_of(shard, to))) {
            watcher.is_ready = true;
            self.due.insert(topic);
            self.waits = false;
        }
    }

    /// Removes a watcher.
    pub fn unwatch(&mut self, name: &[u8], shard: ShardId, to: ReplyTo, now: Now) {
        let Some(topic) = self.find(name) else { return };
        if let Some(watched) = self.watched.get_mut(&topic) {
            let former = watched.watchers.remove(&key_of(shard, to));
            self.watchers -= usize::from(former.is_some());
            if watched.watchers.is_empty() {
                watched.ends_s = now.s.saturating_add(RESUME_S);
            }
        }
    }

    /// Gives watchers what they lack, at most `most` pages. Returns whether more is due now. `now_ns` is 0 if there is no clock.
    pub fn tell(
        &mut self,
        now_ns: u64,
        most: usize,
        mut tell: impl FnMut(ShardId, ReplyTo, PresencePage),
    ) -> bool {
        let mut told = 0;
        let mut early = BTreeSet::new();
        while let Some(topic) = self.due.pop_first() {
            let Some(mut watched) = self.watched.remove(&topic) else {
                continue;
            };
            let ready = watched.watchers.values_mut().filter(|it| it.is_ready);
            let mut is_over = false;
            for watcher in ready {
                if told == most {
                    is_over = true;
                    break;
                }
                if watcher.is_whole
                    && now_ns.saturating_sub(watcher.told_ns) < PAGE_INTERVAL_NS
                    && watcher.told_ns > 0
                    && !watcher.is_due
                {
                    if self.lacks(topic, watcher) {
                        early.insert(topic);
                    }
                    continue;
                }
                let page = self.next_page(topic, watcher, (&watched.gone, watched.floor));
                if let Some(page) = page {
                    (watcher.is_ready, watcher.told_ns) = (false, now_ns);
                    told += 1;
                    tell(watcher.shard, watcher.to, page);
                }
            }
            self.watched.insert(topic, watched);
            if is_over {
                self.due.insert(topic);
                break;
            }
        }
        let more = !self.due.is_empty();
        self.waits = !more && !early.is_empty();
        self.due.append(&mut early);
        more
    }

    fn lacks(&self, topic: u32, watcher: &Watcher) -> bool {
        watcher.left < self.topics.get(topic).changed
    }

    /// The next page of a watcher. `None` if it lacks nothing.
    fn next_page(
        &self,
        topic: u32,
        watcher: &mut Watcher,
        (gone, floor): (&VecDeque<Gone>, u64),
    ) -> Option<PresencePage> {
        if watcher.is_whole && !watcher.is_due && !self.lacks(topic, watcher) {
            return None;
        }
        if watcher.left < floor {
            (watcher.joined, watcher.left) = (0, self.changed);
            (watcher.begins, watcher.is_whole) = (true, false);
        }
        let of = self.topics.get(topic);
        let mut page = PresencePage {
            counts: of.counts(),
            resets: core::mem::take(&mut watcher.begins),
            ..PresencePage::default()
        };
        watcher.is_due = false;
        let first = gone.partition_point(|gone| gone.left <= watcher.left);
        for gone in gone.iter().skip(first) {
            if page.changes.len() >= BYTES_PER_PAGE {
                page.more = true;
                break;
            }
            watcher.left = gone.left;
            if gone.row.id <= watcher.joined {
                page.changes.push(&PresenceChange::Leave(gone.row.member()));
            }
        }
        if !page.more {
            watcher.left = self.changed;
            watcher.joined = self.push_members(topic, watcher.joined, MEMBERS_PER_PAGE, &mut page);
        }
        if !page.more {
            watcher.joined = self.changed;
            page.completes = !core::mem::replace(&mut watcher.is_whole, true);
        }
        page.position = PresencePosition {
            table: self.table,
            change: watcher.left,
        };
        let is_news = !page.changes.is_empty()
            || page.resets
            || page.completes
            || page.more
            || watcher.unlisted != of.unlisted;
        watcher.unlisted = of.unlisted;
        (is_news || watcher.told_ns == 0).then_some(page)
    }
}
