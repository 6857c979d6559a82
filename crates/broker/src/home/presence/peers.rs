//! Members at the other nodes of a cluster: what this node tells them, and what it has heard of them (`mail/peer_presence.rs`).
//!
//! Invariants:
//! * A stream knows exactly the members in rows before its cursor, and the topics before its other cursor. The cursors find the others.
//! * A node tells only of its own connections. Each node draws the conclusions from them (who leaves, who continues) by itself.
//! * A row of another node has the number of the snapshot that last named it. When a snapshot is complete, rows with an earlier number have gone.
//!
//! A member may come to this node before the other node knows that it has lost it, or before this node is told so. So a further connection of a user
//! who is a member already *waits* before it becomes a member of its own. If the former connection ends meanwhile, the member continues with this one.
//! While a node does not answer, all wait, since the node may be dead: its clients come to other nodes before the log says so.

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

/// A further connection of a user waits for about this many seconds. A node is polled several times within them.
const WAITS_S: u32 = 3;
/// The maximum number of connections that wait. Further ones become members at once.
const WAITING_MAX: usize = 65_536;
/// The maximum number of connections whose wait ends in one call.
const ENDED_WAITS_MAX: usize = 256;
/// A node that has not asked for this many seconds gets a new snapshot when it asks again.
const STREAM_TIMEOUT_S: u32 = 10;
/// The maximum number of rows and of counts that one call visits to find those that have gone.
const SWEPT_PER_CALL: usize = 4_096;
/// Members that have gone are removed until these bytes are moved; each counts as a step at least.
const SWEPT_BYTES_MAX: usize = 1_024 * STEP_BYTES;
/// The first number for nodes that have died. Living nodes have smaller numbers. The numbers are used in turn, and a member of a dead node leaves long
/// before its number is used again.
const DEAD_NODES: u8 = 64;
/// No member stays for longer after its connection has ended, whatever its node says.
const LEAVES_IN_S_MAX: u32 = 86_400;

const _: () = assert!(PEERS_MAX < DEAD_NODES as usize);

/// What the other nodes tell, and what they are told.
#[derive(Default)]
pub(super) struct Peers {
    /// By the number by which this node knows the node.
    nodes: BTreeMap<u8, Peer>,
    /// The processes of nodes that have died, by the number that their members have now.
    dead_processes: BTreeMap<u8, u64>,
    /// The number of the node that died last, above [`DEAD_NODES`].
    last_dead: u8,
    streams: Vec<PeerStream>,
    /// Connections that other nodes have, and that are only counted: by node and topic.
    counts: BTreeMap<(u8, u32), PeerCount>,
    /// The connections that wait, by the second in which they become members, with the limit of the topic's members.
    waiting: BTreeMap<(u32, u32), u32>,
    waiting_users: BTreeSet<(UserKey, u32)>,
}

#[derive(Default)]
struct Peer {
    process: u64,
    /// The number of the snapshot that the node sends, or has sent last.
    snapshot: u16,
    /// Whether its last answer has not come.
    is_silent: bool,
    /// The topic with which the search for its counts that have gone continues.
    swept_topic: u32,
    /// The number that its members get, since it has died; 0 while it lives.
    dead_number: u8,
}

/// How many connections of a topic a node only counts (`told`), and how many of those that it lists are only counted here, as far as its snapshot has told.
#[derive(Clone, Copy, Default)]
struct PeerCount {
    snapshot: u16,
    told: u32,
    overflowed: u32,
    /// All of them by earlier snapshots, which is valid until the snapshot is complete.
    former: u64,
}

impl PeerCount {
    /// The connections. Other nodes may tell any number, so the sum needs more bits.
    fn connections(self) -> u64 {
        (u64::from(self.told) + u64::from(self.overflowed)).max(self.former)
    }
}

/// What another node knows of the members at this node.
struct PeerStream {
    poller: u64,
    number: u32,
    answers: u32,
    /// The next row of the snapshot, and then the next topic; behind all when the snapshot is complete.
    next_row: u32,
    next_topic: u32,
    changes: PeerChanges,
    has_lost_changes: bool,
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
    /// The bytes of streams, counts and waiting connections, whose rows are counted as members.
    pub(super) fn bytes(&self) -> usize {
        const COUNT_BYTES: usize = size_of::<((u8, u32), PeerCount)>() * 3 / 2;
        const WAITING_BYTES: usize =
            (size_of::<((u32, u32), u32)>() + size_of::<(UserKey, u32)>()) * 3 / 2;
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

    /// The number that the members of a node get, which has died.
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

    /// Whether no connection waits.
    pub(super) fn is_nobody_waiting(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Presence {
    /// The next changes of the stream of another node, of at most `rows_max` rows of a snapshot, and whether the snapshot is not complete. `None` if the
    /// home does not have the stream.
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
            // Rows that are added later are behind the cursor too.
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

    /// Forgets streams of nodes that do not ask any more.
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

    /// Tells the other nodes that the connection of this node that waited in row `from` is now the member in row `to`. A stream whose cursor is between
    /// the rows would otherwise never hear of it, or hear twice of it and not of its end.
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

    /// Counts a connection that is not listed.
    pub(super) fn add_unlisted(&mut self, topic: u32, conn: MemberConn) {
        if conn.node == 0 {
            self.note_change(topic);
            self.topics.get_mut(topic).unlisted_count += 1;
            return self.tell_peers_of_count(topic);
        }
        self.change_count(conn.node, topic, |count| count.overflowed += 1);
    }

    /// Changes how many connections of a topic at another node are only counted.
    fn change_count(&mut self, node: u8, topic: u32, change: impl FnOnce(&mut PeerCount)) {
        let snapshot = self.peers.snapshot_of(node);
        let count = self.peers.counts.entry((node, topic)).or_default();
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
            self.peers.counts.remove(&(node, topic));
        }
        if after != before {
            let row = self.topics.get_mut(topic);
            row.unlisted_at_peers = row.unlisted_at_peers - before + after;
            self.note_change(topic);
        }
    }

    /// A connection that is not listed has gone.
    pub(super) fn remove_unlisted(&mut self, topic: u32, conn: MemberConn) {
        let row = self.topics.get_mut(topic);
        if conn.node == 0 && row.unlisted_count > 0 {
            row.unlisted_count -= 1;
            self.tell_peers_of_count(topic);
            self.note_change(topic);
        } else {
            let snapshot = self.peers.snapshot_of(conn.node);
            let count = self.peers.counts.get(&(conn.node, topic));
            // A connection that the snapshot has not named yet is not in its count.
            if !count.is_some_and(|it| it.snapshot == snapshot && it.overflowed > 0) {
                return;
            }
            self.change_count(conn.node, topic, |count| count.overflowed -= 1);
        }
        self.remove_topic_if_unused(topic);
    }

    /// Whether a connection of this user must wait, because it may be the next one of a member.
    pub(super) fn must_wait(&self, topic: u32, user: &[u8]) -> bool {
        !self.peers.nodes.is_empty()
            && !user.is_empty()
            && self.peers.waiting.len() < WAITING_MAX
            && !self.tells_connections(topic)
            && (self.members_by_user).contains_key(&self.user_key(topic, user))
    }

    /// Lets the connection in this row wait.
    pub(super) fn begin_wait(&mut self, member: u32, members_max: u32, now: Now) {
        let row = self.members.get_mut(member);
        row.leaves_s = now.s.saturating_add(WAITS_S);
        let until_s = row.leaves_s;
        let row = self.members.get(member);
        let key = self.user_key(row.topic, row.user_and_info().0);
        self.peers.waiting.insert((until_s, member), members_max);
        self.peers.waiting_users.insert((key, member));
    }

    /// Ends the wait of a connection. Returns the limit of its topic's members.
    fn end_wait(&mut self, member: u32) -> u32 {
        let until_s = core::mem::take(&mut self.members.get_mut(member).leaves_s);
        let row = self.members.get(member);
        let key = self.user_key(row.topic, row.user_and_info().0);
        self.peers.waiting_users.remove(&(key, member));
        let members_max = self.peers.waiting.remove(&(until_s, member));
        members_max.unwrap_or_default()
    }

    /// Removes a connection that waits.
    pub(super) fn remove_waiting(&mut self, member: u32) {
        self.end_wait(member);
        self.remove_row(member);
    }

    /// A connection that has waited becomes a member of its own.
    fn list_waiting(&mut self, member: u32) {
        let members_max = self.end_wait(member);
        let (topic, conn) = {
            let row = self.members.get(member);
            (row.topic, row.conn())
        };
        if self.makes_room(topic, members_max) {
            return self.list_member(member);
        }
        // The other nodes have been told of a member.
        self.tell_peers_of_leave(member, 0);
        self.remove_row(member);
        self.add_unlisted(topic, conn);
    }

    /// The user has no member any more, so a connection that waits becomes one. The others go on waiting.
    pub(super) fn list_waiting_of(&mut self, key: UserKey) {
        while !self.members_by_user.contains_key(&key)
            && let Some((_, member)) =
                (self.peers.waiting_users.range((key, 0)..=(key, u32::MAX))).next()
        {
            self.list_waiting(*member);
        }
    }

    /// Some connections that have waited long enough become members. Returns whether there are more of them.
    pub(super) fn list_those_who_have_waited(&mut self, now: Now) -> bool {
        if self.peers.nodes.values().any(|peer| peer.is_silent) {
            return false;
        }
        for _ in 0..ENDED_WAITS_MAX {
            match self.peers.waiting.first_key_value() {
                Some(((until_s, member), _)) if *until_s <= now.s => self.list_waiting(*member),
                _ => return false,
            }
        }
        true
    }

    /// The connection that waits and has the user and the info of this member, whose own connection ends.
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

    /// Another node does not answer.
    pub fn note_silent_peer(&mut self, node: u8) {
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
                        self.add(topic, conn, (user, info), (since_s, members_max), now);
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
                self.note_peer_count(node, topic, count);
            }
        }
    }

    /// Whether the topic has a row.
    pub fn has_topic(&self, name: &[u8]) -> bool {
        self.find(name).is_some()
    }

    /// A snapshot names a member that is known.
    fn confirm_member(&mut self, member: u32, leaves_in_s: u32, now: Now) {
        let row = self.members.get_mut(member);
        row.snapshot = self.peers.snapshot_of(row.node);
        match row.has_connection() {
            true if leaves_in_s > 0 => self.end_connection(member, leaves_in_s, now),
            false if leaves_in_s == 0 => self.cancel_leave(member),
            _ => {}
        }
    }

    /// A snapshot names a member that is unknown and whose connection has ended, but its user is known. Either the user has come back already, at a node
    /// that this one has heard earlier. Or the member had continued with this connection unheard; then it stays for longer.
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

    fn note_peer_count(&mut self, node: u8, topic: &[u8], count: u32) {
        let topic = match self.find(topic) {
            Some(topic) => topic,
            None if count == 0 => return,
            None => self.find_or_create_topic(topic),
        };
        self.change_count(node, topic, |it| it.told = count);
        self.remove_topic_if_unused(topic);
    }

    /// From row `from` on, lets the members of another node leave: all of them if the node `has_died`, otherwise those that its last snapshot does not
    /// name. Returns the row with which the next call must continue.
    pub fn remove_gone_members(
        &mut self,
        (node, has_died): (u8, bool),
        from: u32,
        linger_s: u32,
        now: Now,
    ) -> Option<u32> {
        if from == 0 {
            let peer = self.peers.nodes.entry(node).or_default();
            peer.swept_topic = 0;
            // These come first, so that no member continues with a connection that has gone.
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

    /// Removes connections of a node that wait and have gone. Returns whether more have.
    fn remove_gone_waiting(&mut self, node: u8, has_died: bool) -> bool {
        let snapshot = self.peers.snapshot_of(node);
        let waiting = self.peers.waiting.keys().map(|(_, member)| *member);
        let has_gone = |member: &u32| {
            let row = self.members.get(*member);
            row.node == node && (has_died || row.snapshot != snapshot)
        };
        let gone: Vec<u32> = waiting.filter(has_gone).take(SWEPT_PER_CALL).collect();
        gone.iter().for_each(|member| self.remove_waiting(*member));
        gone.len() == SWEPT_PER_CALL
    }

    /// Removes what a node had counted before its last snapshot, or all of its counts. Returns whether more is left.
    fn remove_gone_counts(&mut self, node: u8, has_died: bool) -> bool {
        let Some(peer) = self.peers.nodes.get(&node) else {
            return false;
        };
        let all = self
            .peers
            .counts
            .range((node, peer.swept_topic)..=(node, NONE));
        let topics: Vec<u32> = all
            .map(|((_, topic), _)| *topic)
            .take(SWEPT_PER_CALL)
            .collect();
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
        // While a connection waits, it has no id, and the second is another.
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
