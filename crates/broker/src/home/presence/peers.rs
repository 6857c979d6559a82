//! Members at the other nodes of a cluster: the streams by which this node tells other nodes of its own members, and the members of other nodes that it
//! has heard of (`mail/peer_presence.rs`).
//!
//! Invariants:
//! * A stream has told exactly the members in rows before its first cursor, and the counts of topics before its second cursor. Changes before the
//!   cursors are told at once. Other changes need no message, since the cursors come there later.
//! * A node tells only of its own connections. From these, each node concludes by itself which member leaves, and which continues.
//! * A row of another node has the number of the last snapshot that has named the connection. When a snapshot is complete, the connections in rows with
//!   an earlier number are *gone*: the other node has ended them.
//!
//! The client of a member may lose its connection to another node and connect to this node before the other node notices the loss, or before it has told
//! this node. So a further connection of a user who is a member already *waits* before it becomes a member of its own. If the former connection ends
//! meanwhile, the member continues with the connection that waits. While a node does not answer, no wait ends: that node may be dead, and its clients
//! connect to other nodes before the log says that it is dead.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::rows::{MemberRow, PresenceTopic};
use super::{Presence, UserKey};
use crate::base::time::Now;
use crate::base::work::STEP_BYTES;
use crate::mail::peer_presence::{
    ANSWER_BYTES, PEERS_MAX, PENDING_BYTES_MAX, PeerChange, PeerChanges, PeerQuestion,
};
use crate::mail::presence::MemberConn;
use crate::store::slab::NONE;

/// A further connection of a user waits for about this many seconds. Each node is polled several times in this time.
const WAITS_S: u32 = 3;
/// The maximum number of connections that wait. Further ones become members at once.
const WAITING_MAX: usize = 65_536;
/// The maximum number of connections whose wait ends in one call.
const ENDED_WAITS_MAX: usize = 256;
/// A node that has not asked for this many seconds gets a new snapshot when it asks again.
const STREAM_TIMEOUT_S: u32 = 10;
/// The maximum number of rows, and of counts, that one call visits to find those that are gone.
const SWEPT_PER_CALL: usize = 4_096;
/// One call removes gone members until lists have moved this many bytes. Each member counts for the bytes of a step at least.
const SWEPT_BYTES_MAX: usize = 1_024 * STEP_BYTES;
/// The first number for nodes that have died. Living nodes have smaller numbers. Dead nodes get the numbers in turn, and the members of a dead node leave
/// long before the node's number is used again.
const DEAD_NODES: u8 = 64;
/// A member stays for at most this many seconds after its connection has ended, whatever its node says.
const LEAVES_IN_S_MAX: u32 = 86_400;

const _: () = assert!(PEERS_MAX < DEAD_NODES as usize);

/// What this node has heard of the members of other nodes, and the streams by which it tells them of its own.
#[derive(Default)]
pub(super) struct Peers {
    /// The living nodes, by the numbers that this node has given them.
    nodes: BTreeMap<u8, Peer>,
    /// The processes of nodes that have died, by the numbers that these nodes have got then.
    dead_processes: BTreeMap<u8, u64>,
    /// The number of the node that died last, minus [`DEAD_NODES`].
    last_dead: u8,
    streams: Vec<PeerStream>,
    /// The connections of other nodes that are only counted.
    counts: BTreeMap<TopicAtNode, PeerCount>,
    /// The connections that wait, with the maximum number of members of the topic.
    waiting: BTreeMap<Wait, u32>,
    /// The same connections: the user, and the row.
    waiting_users: BTreeSet<(UserKey, u32)>,
}

/// A topic of another node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TopicAtNode {
    node: u8,
    topic: u32,
}

/// A connection that waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Wait {
    /// The second in which the connection becomes a member.
    ends_s: u32,
    /// Its row.
    member: u32,
}

/// Another node.
#[derive(Default)]
struct Peer {
    /// The writer number with which the node's process began.
    process: u64,
    /// The number of the snapshot that the node sends, or has sent last.
    snapshot: u16,
    /// Whether the node has not answered the last question.
    is_silent: bool,
    /// The topic with which the search for gone counts of the node continues.
    swept_topic: u32,
    /// The number that the node's members get because the node has died; 0 while it lives.
    dead_number: u8,
}

/// The connections of a topic at another node that this node only counts.
#[derive(Clone, Copy, Default)]
struct PeerCount {
    /// The snapshot of that node to which `told` and `overflowed` belong.
    snapshot: u16,
    /// The connections that the other node only counts, too.
    told: u32,
    /// The connections that the other node lists.
    overflowed: u32,
    /// The sum as of earlier snapshots. It is valid until the present snapshot is complete.
    former: u64,
}

impl PeerCount {
    /// The number of connections. Another node may tell any number, so the sum needs more bits.
    fn connections(self) -> u64 {
        (u64::from(self.told) + u64::from(self.overflowed)).max(self.former)
    }
}

/// A stream: another node polls this home for the members of this node.
struct PeerStream {
    /// The writer number of the node that polls.
    poller: u64,
    /// The poller's number of the stream.
    number: u32,
    /// The number of answers so far.
    answers: u32,
    /// The first cursor: the next row of the snapshot, or `u32::MAX` after the last row.
    next_row: u32,
    /// The second cursor: the next topic of the snapshot, or `u32::MAX` when the snapshot is complete.
    next_topic: u32,
    /// The changes for the next answer.
    changes: PeerChanges,
    /// Whether changes were dropped for lack of room.
    has_lost_changes: bool,
    /// The second of the last question.
    asked_s: u32,
}

impl PeerStream {
    fn push(&mut self, change: &PeerChange<'_>) {
        if self.has_lost_changes {
            return;
        }
        self.changes.push(change);
        if self.changes.bytes().len() > PENDING_BYTES_MAX {
            self.has_lost_changes = true;
            self.changes = PeerChanges::default();
        }
    }
}

impl Peers {
    /// The bytes of streams, counts and waits. The rows of waiting connections are counted with those of members.
    pub(super) fn bytes(&self) -> usize {
        const COUNT_BYTES: usize = size_of::<(TopicAtNode, PeerCount)>() * 3 / 2;
        const WAITING_BYTES: usize =
            (size_of::<(Wait, u32)>() + size_of::<(UserKey, u32)>()) * 3 / 2;
        let streams = self.streams.iter();
        streams
            .map(|stream| size_of::<PeerStream>() + stream.changes.capacity())
            .sum::<usize>()
            + self.counts.len() * COUNT_BYTES
            + self.waiting.len() * WAITING_BYTES
    }

    /// The writer number with which the process of a connection began; 0 for this process.
    pub(super) fn process_of(&self, conn: MemberConn) -> u64 {
        let living = self.nodes.get(&conn.node).map(|peer| peer.process);
        let dead = || self.dead_processes.get(&conn.node).copied();
        living.or_else(dead).unwrap_or_default()
    }

    /// The number that the members of this node get, because the node has died.
    fn dead_number_of(&mut self, node: u8) -> u8 {
        let peer = self.nodes.entry(node).or_default();
        if peer.dead_number == 0 {
            self.last_dead = (self.last_dead + 1) % (u8::MAX - DEAD_NODES);
            peer.dead_number = DEAD_NODES + self.last_dead;
            self.dead_processes.insert(peer.dead_number, peer.process);
        }
        peer.dead_number
    }

    /// The number of the snapshot that a node sends; 0 for this node.
    pub(super) fn snapshot_of(&self, node: u8) -> u16 {
        self.nodes.get(&node).map_or(0, |peer| peer.snapshot)
    }

    /// Whether some connection waits.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Presence {
    /// The answer to a question of another node: the next changes of its stream, with at most `rows_max` rows of the snapshot, and whether the snapshot is
    /// not complete. `None` if this home does not have the stream, or has dropped changes of it.
    pub fn next_peer_changes(
        &mut self,
        question: &PeerQuestion,
        rows_max: u32,
        now: Now,
    ) -> Option<(PeerChanges, bool)> {
        let streams = &mut self.peers.streams;
        streams.retain(|it| {
            let begins_again = it.poller == question.poller && question.answers == 0;
            !begins_again && now.s.saturating_sub(it.asked_s) <= STREAM_TIMEOUT_S
        });
        if question.answers == 0 && streams.len() < PEERS_MAX {
            streams.push(PeerStream {
                poller: question.poller,
                number: question.stream,
                answers: 0,
                next_row: 0,
                next_topic: 0,
                changes: PeerChanges::default(),
                has_lost_changes: false,
                asked_s: now.s,
            });
        }
        let is_asked = |it: &PeerStream| {
            it.poller == question.poller
                && (it.number, it.answers) == (question.stream, question.answers)
        };
        let at = streams.iter().position(is_asked)?;
        let mut stream = streams.swap_remove(at);
        if stream.has_lost_changes {
            return None;
        }
        self.continue_snapshot(&mut stream, rows_max, now);
        stream.answers += 1;
        stream.asked_s = now.s;
        let answer = (
            core::mem::take(&mut stream.changes),
            stream.next_topic < u32::MAX,
        );
        self.peers.streams.push(stream);
        Some(answer)
    }

    fn continue_snapshot(&self, stream: &mut PeerStream, rows_max: u32, now: Now) {
        let mut rows_left = rows_max;
        while stream.next_topic < u32::MAX
            && rows_left > 0
            && stream.changes.bytes().len() < ANSWER_BYTES
        {
            rows_left -= 1;
            if stream.next_row < self.members.end() {
                let row = self.members.try_get(stream.next_row);
                if let Some(row) = row.filter(|row| row.topic != NONE && row.node == 0) {
                    stream.push(&join_of(&self.topics.get(row.topic).name, row, now));
                }
                stream.next_row += 1;
                continue;
            }
            // The cursor has passed also the rows that will be added later.
            stream.next_row = u32::MAX;
            if stream.next_topic < self.topics.end() {
                let row = self.topics.try_get(stream.next_topic);
                if let Some(row) = row.filter(|row| row.unlisted_count > 0) {
                    stream.push(&unlisted_of(row));
                }
                stream.next_topic += 1;
                continue;
            }
            stream.next_topic = u32::MAX;
        }
    }

    /// Removes the streams of nodes that do not ask any more.
    pub(super) fn end_silent_streams(&mut self, now: Now) {
        let is_asked = |it: &PeerStream| now.s.saturating_sub(it.asked_s) <= STREAM_TIMEOUT_S;
        self.peers.streams.retain(is_asked);
    }

    /// Tells the other nodes that the member in this row has joined here, or has another connection here.
    pub(super) fn tell_peers_of_join(&mut self, member: u32, now: Now) {
        let row = self.members.get(member);
        if row.node > 0 || self.peers.streams.is_empty() {
            return;
        }
        let change = join_of(&self.topics.get(row.topic).name, row, now);
        let mut streams = self.peers.streams.iter_mut();
        (streams.by_ref().filter(|it| member < it.next_row)).for_each(|it| it.push(&change));
    }

    /// Tells the other nodes that the connection of the member in this row has ended here.
    pub(super) fn tell_peers_of_leave(&mut self, member: u32, linger_s: u32) {
        let row = self.members.get(member);
        if row.node > 0 || self.peers.streams.is_empty() {
            return;
        }
        let change = PeerChange::Leave {
            topic: &self.topics.get(row.topic).name,
            conn: row.conn(),
            linger_s,
        };
        let mut streams = self.peers.streams.iter_mut();
        (streams.by_ref().filter(|it| member < it.next_row)).for_each(|it| it.push(&change));
    }

    /// Tells the other nodes that the connection of this node that waited in row `from` is now the connection of the member in row `to`. If the cursor of
    /// a stream is between these rows, the snapshot would otherwise never tell the connection, or would tell it twice and its end not at all.
    pub(super) fn tell_peers_of_move(&mut self, from: u32, to: u32, now: Now) {
        let row = self.members.get(to);
        if row.node > 0 || self.peers.streams.is_empty() {
            return;
        }
        let topic = &self.topics.get(row.topic).name;
        let join = join_of(topic, row, now);
        // The snapshot will name the connection at its new row, which cancels the leave.
        let leave = PeerChange::Leave {
            topic,
            conn: row.conn(),
            linger_s: STREAM_TIMEOUT_S,
        };
        for stream in &mut self.peers.streams {
            match (from < stream.next_row, to < stream.next_row) {
                (false, true) => stream.push(&join),
                (true, false) => stream.push(&leave),
                _ => {}
            }
        }
    }

    /// Tells the other nodes how many connections of the topic are only counted here.
    fn tell_peers_of_count(&mut self, topic: u32) {
        let change = unlisted_of(self.topics.get(topic));
        let mut streams = self.peers.streams.iter_mut();
        (streams.by_ref().filter(|it| topic < it.next_topic)).for_each(|it| it.push(&change));
    }

    /// Adds a connection that is only counted.
    pub(super) fn add_unlisted(&mut self, topic: u32, conn: MemberConn) {
        if conn.node == 0 {
            self.count_change(topic);
            self.topics.get_mut(topic).unlisted_count += 1;
            return self.tell_peers_of_count(topic);
        }
        self.change_count(conn.node, topic, |count| count.overflowed += 1);
    }

    /// Changes how many connections of a topic at another node are only counted.
    fn change_count(&mut self, node: u8, topic: u32, change: impl FnOnce(&mut PeerCount)) {
        let snapshot = self.peers.snapshot_of(node);
        let at = TopicAtNode { node, topic };
        let count = self.peers.counts.entry(at).or_default();
        let before = count.connections();
        if count.snapshot != snapshot {
            *count = PeerCount {
                snapshot,
                former: before,
                ..PeerCount::default()
            };
        }
        change(count);
        let after = count.connections();
        if after == 0 {
            self.peers.counts.remove(&at);
        }
        if after != before {
            let row = self.topics.get_mut(topic);
            row.unlisted_at_peers = row.unlisted_at_peers - before + after;
            self.count_change(topic);
        }
    }

    /// Removes a connection that is only counted.
    pub(super) fn remove_unlisted(&mut self, topic: u32, conn: MemberConn) {
        let row = self.topics.get_mut(topic);
        if conn.node == 0 && row.unlisted_count > 0 {
            row.unlisted_count -= 1;
            self.tell_peers_of_count(topic);
            self.count_change(topic);
        } else {
            let snapshot = self.peers.snapshot_of(conn.node);
            let node = conn.node;
            let count = self.peers.counts.get(&TopicAtNode { node, topic });
            // A connection that the present snapshot has not named yet is not in `overflowed`.
            if !count.is_some_and(|it| it.snapshot == snapshot && it.overflowed > 0) {
                return;
            }
            self.change_count(conn.node, topic, |count| count.overflowed -= 1);
        }
        self.remove_topic_if_unused(topic);
    }

    /// Whether a connection of this user must wait, because a member of the user may continue with it.
    pub(super) fn must_wait(&self, topic: u32, user: &[u8]) -> bool {
        !self.peers.nodes.is_empty()
            && !user.is_empty()
            && self.peers.waiting.len() < WAITING_MAX
            && !self.tells_connections(topic)
            && (self.members_by_user).contains_key(&self.user_key(topic, user))
    }

    /// Makes the connection in this row wait.
    pub(super) fn begin_wait(&mut self, member: u32, members_max: u32, now: Now) {
        let ends_s = now.s.saturating_add(WAITS_S);
        self.members.get_mut(member).leaves_s = ends_s;
        let row = self.members.get(member);
        let key = self.user_key(row.topic, row.user_and_info().0);
        self.peers
            .waiting
            .insert(Wait { ends_s, member }, members_max);
        self.peers.waiting_users.insert((key, member));
    }

    /// Ends the wait of a connection. Returns the maximum number of members of its topic.
    fn end_wait(&mut self, member: u32) -> u32 {
        let ends_s = core::mem::take(&mut self.members.get_mut(member).leaves_s);
        let row = self.members.get(member);
        let key = self.user_key(row.topic, row.user_and_info().0);
        self.peers.waiting_users.remove(&(key, member));
        let members_max = self.peers.waiting.remove(&Wait { ends_s, member });
        members_max.unwrap_or_default()
    }

    /// Removes a connection that waits.
    pub(super) fn remove_waiting(&mut self, member: u32) {
        self.end_wait(member);
        self.remove_row(member);
    }

    /// Makes a connection that has waited a member of its own, or only counts the connection if there is no room.
    fn list_waiting(&mut self, member: u32) {
        let members_max = self.end_wait(member);
        let (topic, conn) = {
            let row = self.members.get(member);
            (row.topic, row.conn())
        };
        if self.makes_room(topic, members_max) {
            return self.list_member(member);
        }
        // The other nodes were told when the connection began to wait that it has joined.
        self.tell_peers_of_leave(member, 0);
        self.remove_row(member);
        self.add_unlisted(topic, conn);
    }

    /// Called if a user has no member any more: makes a connection of the user that waits a member. Its other connections continue to wait.
    pub(super) fn list_waiting_of_user(&mut self, key: UserKey) {
        while !self.members_by_user.contains_key(&key)
            && let Some((_, member)) =
                (self.peers.waiting_users.range((key, 0)..=(key, u32::MAX))).next()
        {
            self.list_waiting(*member);
        }
    }

    /// Makes some connections that have waited long enough members. Returns whether there are more of them.
    pub(super) fn end_due_waits(&mut self, now: Now) -> bool {
        if self.peers.nodes.values().any(|peer| peer.is_silent) {
            return false;
        }
        for _ in 0..ENDED_WAITS_MAX {
            match self.peers.waiting.first_key_value() {
                Some((wait, _)) if wait.ends_s <= now.s => self.list_waiting(wait.member),
                _ => return false,
            }
        }
        true
    }

    /// A connection that waits and has the same user and info as this member, whose own connection ends.
    pub(super) fn find_waiting(&self, member: u32) -> Option<u32> {
        if self.peers.waiting_users.is_empty() {
            return None;
        }
        let row = self.members.get(member);
        let texts = row.user_and_info();
        let key = self.user_key(row.topic, texts.0);
        let mut waiting = self.peers.waiting_users.range((key, 0)..=(key, u32::MAX));
        let is_same = |(_, id): &&(UserKey, u32)| self.members.get(*id).user_and_info() == texts;
        waiting.find(is_same).map(|(_, id)| *id)
    }

    /// Begins a snapshot of another node, whose process began with this writer number.
    pub fn begin_peer_snapshot(&mut self, node: u8, process: u64) {
        let peer = self.peers.nodes.entry(node).or_default();
        (peer.process, peer.is_silent) = (process, false);
        peer.snapshot = peer.snapshot.wrapping_add(1);
    }

    /// Called if another node does not answer.
    pub fn set_peer_silent(&mut self, node: u8) {
        if let Some(peer) = self.peers.nodes.get_mut(&node) {
            peer.is_silent = true;
        }
    }

    /// Applies a change at another node. `members_max` is the limit of the topic's members here; `None`: nothing is added to the topic.
    pub fn apply_peer_change(
        &mut self,
        node: u8,
        change: &PeerChange<'_>,
        members_max: Option<u32>,
        now: Now,
    ) {
        match *change {
            PeerChange::Join {
                topic,
                conn,
                since_s,
                leaves_in_s,
                user,
                info,
            } => {
                let Some(members_max) = members_max else {
                    return;
                };
                let conn = MemberConn { node, ..conn };
                let leaves_in_s = leaves_in_s.min(LEAVES_IN_S_MAX);
                let known = self.find(topic).and_then(|id| self.find_member(id, conn));
                match known {
                    Some(member) => self.confirm_member(member, leaves_in_s, now),
                    None if leaves_in_s > 0 && self.is_user_here(topic, user) => {
                        self.prolong_absence(topic, conn, (user, info), leaves_in_s, now);
                    }
                    None => {
                        let since_s = since_s.min(now.unix_s);
                        self.add(topic, conn, (user, info), since_s, members_max, now);
                        if leaves_in_s > 0 {
                            self.leave(topic, conn, leaves_in_s, now);
                        }
                    }
                }
            }
            PeerChange::Leave {
                topic,
                conn,
                linger_s,
            } => {
                let conn = MemberConn { node, ..conn };
                self.leave(topic, conn, linger_s.min(LEAVES_IN_S_MAX), now);
            }
            PeerChange::Unlisted { topic, count } => {
                let count = members_max.map_or(0, |_| count);
                self.set_peer_count(node, topic, count);
            }
        }
    }

    /// Whether the topic has a row.
    pub fn has_topic(&self, name: &[u8]) -> bool {
        self.find(name).is_some()
    }

    /// Called if a snapshot names a member that is known already.
    fn confirm_member(&mut self, member: u32, leaves_in_s: u32, now: Now) {
        let row = self.members.get_mut(member);
        row.snapshot = self.peers.snapshot_of(row.node);
        match row.has_connection() {
            true if leaves_in_s > 0 => self.end_connection(member, leaves_in_s, now),
            false if leaves_in_s == 0 => self.cancel_leave(member),
            _ => {}
        }
    }

    /// Called if a snapshot names a connection that this node does not know and that has ended, while its user is known here. Either the user has come
    /// back already, at a node that has answered earlier; then there is nothing to do. Or a member that this node knows had continued with this connection
    /// before it ended; then the member stays as long as the snapshot says.
    fn prolong_absence(
        &mut self,
        topic: &[u8],
        conn: MemberConn,
        texts: (&[u8], &[u8]),
        leaves_in_s: u32,
        now: Now,
    ) {
        let Some(topic) = self.find(topic).filter(|it| !self.tells_connections(*it)) else {
            return;
        };
        let (key, until_s) = (
            self.user_key(topic, texts.0),
            now.s.saturating_add(leaves_in_s),
        );
        let mut leaving = self.leaving_users.range((key, 0)..=(key, u32::MAX));
        let leaves_earlier = |(_, id): &&(UserKey, u32)| {
            let row = self.members.get(*id);
            row.user_and_info() == texts && row.leaves_s <= until_s
        };
        if let Some((_, member)) = leaving.find(leaves_earlier).copied() {
            self.give_connection(member, conn);
            self.end_connection(member, leaves_in_s, now);
        }
    }

    fn is_user_here(&self, topic: &[u8], user: &[u8]) -> bool {
        let key = self.find(topic).map(|topic| self.user_key(topic, user));
        key.is_some_and(|key| self.members_by_user.contains_key(&key))
    }

    /// Sets the number of connections of a topic that another node only counts.
    fn set_peer_count(&mut self, node: u8, topic: &[u8], count: u32) {
        let topic = match self.find(topic) {
            Some(topic) => topic,
            None if count == 0 => return,
            None => self.find_or_create_topic(topic),
        };
        self.change_count(node, topic, |it| it.told = count);
        self.remove_topic_if_unused(topic);
    }

    /// Makes members of another node leave, from row `from` on: all of them if the node `has_died`, otherwise those that are gone. Returns the row with
    /// which the next call must continue; `None` if all is done.
    pub fn remove_gone_members(
        &mut self,
        node: u8,
        has_died: bool,
        from: u32,
        linger_s: u32,
        now: Now,
    ) -> Option<u32> {
        if from == 0 {
            let peer = self.peers.nodes.entry(node).or_default();
            peer.swept_topic = 0;
            // Gone connections that wait come first, so that no member continues with one of them.
            if self.remove_gone_waiting(node, has_died) {
                return Some(0);
            }
        }
        let dead_number = has_died.then(|| self.peers.dead_number_of(node));
        let snapshot = self.peers.snapshot_of(node);
        let end = self
            .members
            .end()
            .min(from.saturating_add(SWEPT_PER_CALL as u32));
        let moved_before = self.moved_bytes;
        for member in from..end {
            if self.moved_bytes - moved_before >= SWEPT_BYTES_MAX {
                return Some(member);
            }
            let has_gone = |row: &&MemberRow| {
                let is_of_node = row.topic != NONE && row.node == node;
                is_of_node && (has_died || row.snapshot != snapshot)
            };
            let Some(row) = self.members.try_get(member).filter(has_gone) else {
                continue;
            };
            let (was_connected, conn) = (row.has_connection(), row.conn());
            self.moved_bytes += STEP_BYTES;
            if let Some(node) = dead_number {
                self.member_index.remove(&mut self.members, member);
                let row = self.members.get_mut(member);
                row.move_to(MemberConn { node, ..conn });
                self.member_index.insert(&mut self.members, member);
            }
            if was_connected {
                self.end_connection(member, linger_s, now);
            }
        }
        if end < self.members.end() || self.remove_gone_counts(node, has_died) {
            return Some(end);
        }
        if has_died {
            self.peers.nodes.remove(&node);
        }
        None
    }

    /// Removes gone connections of a node that wait. Returns whether there may be more of them.
    fn remove_gone_waiting(&mut self, node: u8, has_died: bool) -> bool {
        let snapshot = self.peers.snapshot_of(node);
        let waiting = self.peers.waiting.keys().map(|wait| wait.member);
        let has_gone = |member: &u32| {
            let row = self.members.get(*member);
            row.node == node && (has_died || row.snapshot != snapshot)
        };
        let gone: Vec<u32> = waiting.filter(has_gone).take(SWEPT_PER_CALL).collect();
        gone.iter().for_each(|member| self.remove_waiting(*member));
        gone.len() == SWEPT_PER_CALL
    }

    /// Removes the counts of a node as of earlier snapshots, or all of its counts if it has died. Returns whether counts are left to visit.
    fn remove_gone_counts(&mut self, node: u8, has_died: bool) -> bool {
        let Some(peer) = self.peers.nodes.get(&node) else {
            return false;
        };
        let at = |topic| TopicAtNode { node, topic };
        let all = (self.peers.counts).range(at(peer.swept_topic)..=at(NONE));
        let topics: Vec<u32> = all.map(|(at, _)| at.topic).take(SWEPT_PER_CALL).collect();
        for topic in &topics {
            self.change_count(node, *topic, |count| match has_died {
                true => *count = PeerCount::default(),
                false => count.former = 0,
            });
            self.remove_topic_if_unused(*topic);
        }
        let peer = self.peers.nodes.entry(node).or_default();
        peer.swept_topic = topics.last().map_or(0, |topic| topic + 1);
        topics.len() == SWEPT_PER_CALL
    }
}

fn join_of<'a>(topic: &'a [u8], row: &'a MemberRow, now: Now) -> PeerChange<'a> {
    let (user, info) = row.user_and_info();
    PeerChange::Join {
        topic,
        conn: row.conn(),
        since_s: row.since_s,
        // While a connection waits, it has no id, and `leaves_s` is the second in which the wait ends.
        leaves_in_s: match row.leaves_s {
            0 => 0,
            _ if row.id == 0 => 0,
            leaves_s => leaves_s.saturating_sub(now.s).max(1),
        },
        user,
        info,
    }
}

fn unlisted_of(row: &PresenceTopic) -> PeerChange<'_> {
    PeerChange::Unlisted {
        topic: &row.name,
        count: row.unlisted_count,
    }
}
