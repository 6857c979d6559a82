//! Presence between the nodes of a cluster. Every node knows its own members, and polls the other nodes for theirs.
//!
//! By a *stream* one node (the poller) learns the members of one home of another node (the polled node): first a snapshot, then the changes. Each question
//! says how many answers of the stream have arrived. If an answer was lost, if the home has dropped changes for lack of room, or if the polled node does
//! not answer, the poller begins new streams. The members that the old streams have told stay until the new snapshot is complete. Then those that the new
//! snapshot does not name leave.
//!
//! Nodes tell each other the changes of connections, not of members. Each node derives the members from the connections by the same rules: a member whose
//! connection broke stays for some seconds, and continues if its user subscribes again at any node (`home/presence.rs`).
//!
//! Bounds: a node answers only questions. An answer has about [`ANSWER_BYTES`] of a snapshot, or [`PENDING_BYTES_MAX`] of changes.
//!
//! Deliberately not here: how messages travel. The server sends them through NATS, the simulator through its network.

use alloc::vec::Vec;

use crate::base::ids::{ConnId, ShardId};
use crate::mail::fields::check_stored_name;
use crate::mail::presence::MemberConn;

/// The maximum number of other nodes whose members a node knows.
pub const PEERS_MAX: usize = 63;
/// The approximate maximum bytes of a snapshot in one answer.
pub const ANSWER_BYTES: usize = 256 << 10;
/// The maximum bytes of changes that a home keeps for another node until that node asks. If there are more, the node needs a new snapshot.
pub const PENDING_BYTES_MAX: usize = 512 << 10;
/// The maximum bytes of an answer that a node accepts.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The maximum bytes of the `info` of a member.
pub const INFO_BYTES_MAX: usize = 1 << 10;

/// A change of a connection, or of a topic, at the node that tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerChange<'a> {
    /// A connection has subscribed to a topic, or is in the snapshot.
    Join {
        /// The topic.
        topic: &'a [u8],
        /// The connection, without its node.
        conn: MemberConn,
        /// The counted second in which the member joined.
        since_s: u32,
        /// If the connection has ended already: after how many seconds the member leaves. Otherwise 0.
        leaves_in_s: u32,
        /// The user's name; empty for an anonymous client.
        user: &'a [u8],
        /// What the member's token tells others, as JSON; empty if there is nothing.
        info: &'a [u8],
    },
    /// A subscription has ended. The member leaves after this many seconds, since its client may come back; 0: at once.
    Leave {
        /// The topic.
        topic: &'a [u8],
        /// The connection, without its node.
        conn: MemberConn,
        /// The seconds.
        linger_s: u32,
    },
    /// The number of connections that the topic only counts at that node.
    Unlisted {
        /// The topic.
        topic: &'a [u8],
        /// The number.
        count: u32,
    },
}

impl<'a> PeerChange<'a> {
    /// The topic.
    pub fn topic(&self) -> &'a [u8] {
        let (PeerChange::Join { topic, .. }
        | PeerChange::Leave { topic, .. }
        | PeerChange::Unlisted { topic, .. }) = self;
        topic
    }
}

/// Encoded changes. Each is a byte (0 to 2: the variants of [`PeerChange`]), the length of the topic (2 bytes) and the topic. Then for a join and a leave
/// shard, slot and generation of the connection (8 bytes). Then the numbers (4 bytes each), and for a join the lengths of user (1 byte) and info (2 bytes),
/// and both texts. All numbers are little-endian.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerChanges(Vec<u8>);

impl PeerChanges {
    /// Adds a change.
    pub fn push(&mut self, change: &PeerChange<'_>) {
        let out = &mut self.0;
        let topic = change.topic();
        out.push(match change {
            PeerChange::Join { .. } => 0,
            PeerChange::Leave { .. } => 1,
            PeerChange::Unlisted { .. } => 2,
        });
        out.extend_from_slice(&(topic.len() as u16).to_le_bytes());
        out.extend_from_slice(topic);
        let push_conn = |out: &mut Vec<u8>, at: &MemberConn| {
            out.extend_from_slice(&at.shard.to_le_bytes());
            out.extend_from_slice(&at.conn.slot.to_le_bytes());
            out.extend_from_slice(&at.conn.generation.to_le_bytes());
        };
        match change {
            PeerChange::Join {
                conn,
                since_s,
                leaves_in_s,
                user,
                info,
                ..
            } => {
                push_conn(out, conn);
                out.extend_from_slice(&since_s.to_le_bytes());
                out.extend_from_slice(&leaves_in_s.to_le_bytes());
                out.push(user.len() as u8);
                out.extend_from_slice(&(info.len() as u16).to_le_bytes());
                out.extend_from_slice(user);
                out.extend_from_slice(info);
            }
            PeerChange::Leave { conn, linger_s, .. } => {
                push_conn(out, conn);
                out.extend_from_slice(&linger_s.to_le_bytes());
            }
            PeerChange::Unlisted { count, .. } => out.extend_from_slice(&count.to_le_bytes()),
        }
    }

    /// Reads bytes that another node has sent; `None` if they are malformed. They are checked, since every client that may publish to the nodes' subjects can
    /// send any bytes. A change with wrong texts is left out, since one member must not hide all others. The info of members is checked only as text, not
    /// as JSON.
    pub fn parse(bytes: &[u8]) -> Option<PeerChanges> {
        let mut valid = Vec::with_capacity(bytes.len());
        let mut rest = Reader(bytes);
        while !rest.0.is_empty() {
            let from = rest.0;
            if has_valid_texts(&rest.change()?) {
                valid.extend_from_slice(&from[..from.len() - rest.0.len()]);
            }
        }
        Some(PeerChanges(valid))
    }

    /// The changes in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = PeerChange<'_>> {
        let mut rest = Reader(&self.0);
        core::iter::from_fn(move || rest.change())
    }

    /// The encoded bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes of memory.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether the texts of a change are valid. A user's name has no control characters, as in a token. The info may have control characters: JSON has line
/// ends between its values, and allows some of the characters in its strings.
fn has_valid_texts(change: &PeerChange<'_>) -> bool {
    let has_valid_member = match change {
        PeerChange::Join { user, info, .. } => {
            core::str::from_utf8(user).is_ok_and(|it| !it.contains(char::is_control))
                && core::str::from_utf8(info).is_ok()
                && info.len() <= INFO_BYTES_MAX
        }
        PeerChange::Leave { .. } | PeerChange::Unlisted { .. } => true,
    };
    has_valid_member && check_stored_name(change.topic()).is_ok()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, len: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(self.take(len)?);
        Some(u64::from_le_bytes(bytes))
    }

    fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|it| it as u32)
    }

    fn conn(&mut self) -> Option<MemberConn> {
        let shard = self.number(2)? as ShardId;
        let conn = ConnId {
            slot: self.u32()?,
            generation: self.number(2)? as u16,
        };
        Some(MemberConn::here(shard, conn))
    }

    fn change(&mut self) -> Option<PeerChange<'a>> {
        let kind = self.number(1)?;
        let len = self.number(2)? as usize;
        let topic = self.take(len)?;
        Some(match kind {
            0 => {
                let (conn, since_s, leaves_in_s) = (self.conn()?, self.u32()?, self.u32()?);
                let (user_len, info_len) = (self.number(1)?, self.number(2)?);
                PeerChange::Join {
                    topic,
                    conn,
                    since_s,
                    leaves_in_s,
                    user: self.take(user_len as usize)?,
                    info: self.take(info_len as usize)?,
                }
            }
            1 => PeerChange::Leave {
                topic,
                conn: self.conn()?,
                linger_s: self.u32()?,
            },
            2 => PeerChange::Unlisted {
                topic,
                count: self.u32()?,
            },
            _ => return None,
        })
    }
}

/// A question of a node to one home of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerQuestion {
    /// The writer number of the node that asks.
    pub poller: u64,
    /// The poller's number of the stream.
    pub stream: u32,
    /// The answers of this stream that have arrived. 0 begins the stream.
    pub answers: u32,
    /// The home.
    pub home: ShardId,
}

impl PeerQuestion {
    /// The bytes of the question.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(18);
        out.extend_from_slice(&self.poller.to_le_bytes());
        out.extend_from_slice(&self.stream.to_le_bytes());
        out.extend_from_slice(&self.answers.to_le_bytes());
        out.extend_from_slice(&self.home.to_le_bytes());
        out
    }

    /// Reads a question.
    pub fn parse(bytes: &[u8]) -> Option<PeerQuestion> {
        let mut rest = Reader(bytes);
        let question = PeerQuestion {
            poller: rest.number(8)?,
            stream: rest.u32()?,
            answers: rest.u32()?,
            home: rest.number(2)? as ShardId,
        };
        rest.0.is_empty().then_some(question)
    }
}

/// The answer to a [`PeerQuestion`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerAnswer {
    /// The writer number with which the process of the polled node began. It identifies connections of that process.
    pub process: u64,
    /// The number of homes of the polled node.
    pub homes: ShardId,
    /// Whether the snapshot is not complete.
    pub more: bool,
    /// The changes.
    pub changes: PeerChanges,
}

impl PeerAnswer {
    /// The bytes of an answer. They are empty for `None`, which says that the home does not have the stream.
    pub fn encode(answer: Option<&PeerAnswer>) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(answer) = answer {
            out.extend_from_slice(&answer.process.to_le_bytes());
            out.extend_from_slice(&answer.homes.to_le_bytes());
            out.push(u8::from(answer.more));
            out.extend_from_slice(answer.changes.bytes());
        }
        out
    }

    /// Reads an answer. `None` if the home does not have the stream, or if the answer is not valid.
    pub fn parse(bytes: &[u8]) -> Option<PeerAnswer> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return None;
        }
        let mut rest = Reader(bytes);
        Some(PeerAnswer {
            process: rest.number(8)?,
            homes: rest.number(2)? as ShardId,
            more: rest.number(1)? == 1,
            changes: PeerChanges::parse(rest.0)?,
        })
    }
}

/// An order to a home about the members of other nodes. A node is known by a small number, from 1 to [`PEERS_MAX`].
#[derive(Debug)]
pub enum PeerPresence {
    /// Report the next changes of this node's members, for another node.
    Next(PeerQuestion),
    /// A snapshot of the node begins. The process of the node began with this writer number.
    BeginSnapshot(u8, u64),
    /// Apply changes of the node for topics of this home, at most some hundred.
    Apply(u8, PeerChanges),
    /// The node does not answer, until its next snapshot begins.
    Silent(u8),
    /// The snapshot of the node is complete: from this row on, members of the node that are not in it leave.
    EndSnapshot(u8, u32),
    /// The node has died: from this row on, its members leave.
    Drop(u8, u32),
}

/// The answer to a [`PeerPresence`].
#[derive(Debug)]
pub enum PeerPresenceReply {
    /// The changes, and whether the snapshot is not complete; `None` if the home does not have the stream, or has lost changes of it.
    Changes(Option<(PeerChanges, bool)>),
    /// The row with which the next such order must continue; `None` if all is done.
    Next(Option<u32>),
    /// The changes are applied.
    Applied {
        /// Whether there was room in memory. If not, some members are missing, so the node must be asked for all members again when there is room.
        has_room: bool,
    },
}

/// The state of a poller for one polled node: which answers of its streams have arrived.
#[derive(Debug, Default)]
pub struct PolledNode {
    /// The number by which the homes of this node know the polled node.
    slot: u8,
    stream: u32,
    streams: Vec<HomeStream>,
    is_whole: bool,
    heard_s: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct HomeStream {
    answers: u32,
    is_whole: bool,
    /// Whether the home has answered in this round.
    has_answered: bool,
}

/// The steps that a poller must carry out for an answer, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AnswerSteps {
    /// Begin a snapshot of the process with this writer number.
    pub begins: Option<u64>,
    /// Apply these changes.
    pub changes: PeerChanges,
    /// End the snapshot.
    pub ends_snapshot: bool,
}

impl PolledNode {
    /// A node that is polled from this second on.
    pub fn new(slot: u8, now_s: u32) -> PolledNode {
        PolledNode {
            slot,
            heard_s: now_s,
            ..PolledNode::default()
        }
    }

    /// The number by which the homes of this node know the polled node.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// The second in which the node had last told all its changes; before that, the second from which on it is polled.
    pub fn heard_s(&self) -> u32 {
        self.heard_s
    }

    /// Whether all members of the node are known.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Makes the next round begin new streams.
    pub fn begin_again(&mut self) {
        self.streams.clear();
    }

    /// Begins a round, in which each home is asked until it has told all its changes. If the last round is not complete, it is continued instead, so that
    /// each home is asked once before the first home is asked again.
    pub fn begin_round(&mut self) {
        if self.streams.is_empty() {
            self.stream = self.stream.wrapping_add(1);
            self.is_whole = false;
            // The answer of the first home says how many homes there are.
            self.streams.push(HomeStream::default());
        }
        if self.streams.iter().all(|it| it.has_answered) {
            let streams = self.streams.iter_mut();
            streams.for_each(|it| it.has_answered = false);
        }
    }

    /// The next question of this round; `None` if the round is complete.
    pub fn next_question(&self, poller: u64) -> Option<PeerQuestion> {
        let home = self.streams.iter().position(|it| !it.has_answered)?;
        Some(PeerQuestion {
            poller,
            stream: self.stream,
            answers: self.streams[home].answers,
            home: home as ShardId,
        })
    }

    /// Takes the answer to the last question, and returns what must be done with it. `None` if the answer is missing or not valid: then the next round
    /// begins new streams.
    pub fn take_answer(
        &mut self,
        question: &PeerQuestion,
        answer: Option<PeerAnswer>,
        now_s: u32,
    ) -> Option<AnswerSteps> {
        let is_first = question.home == 0 && question.answers == 0;
        let homes = |answer: &PeerAnswer| usize::from(answer.homes);
        let is_valid = |it: &PeerAnswer| {
            (1..=256).contains(&homes(it)) && (is_first || homes(it) == self.streams.len())
        };
        let Some(answer) = answer.filter(is_valid) else {
            self.streams.clear();
            return None;
        };
        if is_first {
            self.streams
                .resize(answer.homes.into(), HomeStream::default());
        }
        let stream = &mut self.streams[usize::from(question.home)];
        stream.answers += 1;
        stream.has_answered = !answer.more;
        stream.is_whole |= !answer.more;
        let is_whole = self.streams.iter().all(|it| it.is_whole);
        let ends_snapshot = is_whole && !core::mem::replace(&mut self.is_whole, is_whole);
        if self.streams.iter().all(|it| it.has_answered) {
            self.heard_s = now_s;
        }
        Some(AnswerSteps {
            begins: is_first.then_some(answer.process),
            changes: answer.changes,
            ends_snapshot,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(slot: u32) -> MemberConn {
        let conn = ConnId {
            slot,
            generation: 3,
        };
        MemberConn::here(255, conn)
    }

    fn join<'a>(topic: &'a [u8], user: &'a [u8], info: &'a [u8]) -> PeerChange<'a> {
        PeerChange::Join {
            topic,
            conn: conn(7),
            since_s: 9,
            leaves_in_s: 1,
            user,
            info,
        }
    }

    #[test]
    fn changes_questions_and_answers_are_read_as_they_were_written() {
        let all = [
            join(b"a/b", b"ann", b"{\"n\":1}"),
            join(b"a", b"", b""),
            PeerChange::Leave {
                topic: b"a/b",
                conn: conn(u32::MAX),
                linger_s: 15,
            },
            PeerChange::Unlisted {
                topic: b"a",
                count: 5,
            },
        ];
        let mut changes = PeerChanges::default();
        all.iter().for_each(|change| changes.push(change));
        let answer = PeerAnswer {
            process: u64::MAX,
            homes: 256,
            more: true,
            changes,
        };
        let bytes = PeerAnswer::encode(Some(&answer));
        let read = PeerAnswer::parse(&bytes).expect("it is valid");
        assert_eq!(read, answer);
        assert!(read.changes.iter().eq(all));
        assert_eq!(PeerAnswer::parse(&PeerAnswer::encode(None)), None);
        let question = PeerQuestion {
            poller: 1 << 40,
            stream: 2,
            answers: 3,
            home: 4,
        };
        assert_eq!(PeerQuestion::parse(&question.encode()), Some(question));
    }

    #[test]
    fn only_what_a_node_may_tell_is_taken_from_other_nodes() {
        let info = [b'1'; INFO_BYTES_MAX + 1];
        for wrong in [
            join(b"", b"", b""),
            join(b"a\n", b"", b""),
            join(b"a", b"\xff", b""),
            join(b"a", b"ann\n", b""),
            join(b"a", b"", b"\xff"),
            join(b"a", b"", &info),
        ] {
            let mut changes = PeerChanges::default();
            changes.push(&wrong);
            changes.push(&join(b"a", b"bob", b""));
            let read = PeerChanges::parse(changes.bytes()).expect("the other member is valid");
            assert!(read.iter().eq([join(b"a", b"bob", b"")]), "{wrong:?}");
        }
        let long = [0; ANSWER_BYTES_MAX + 1];
        assert_eq!(PeerAnswer::parse(&long), None);
        let mut changes = PeerChanges::default();
        changes.push(&join(b"a", b"ann", b"{}"));
        let bytes = changes.bytes();
        for len in 1..bytes.len() {
            assert_eq!(PeerChanges::parse(&bytes[..len]), None, "{len}");
        }
        assert_eq!(PeerChanges::parse(&[&[9], bytes].concat()), None);
    }

    #[test]
    fn control_characters_in_the_info_of_a_member_hide_nobody() {
        for info in ["{\n}", "\"\u{7f}\"", "\"\u{85}\""] {
            let mut changes = PeerChanges::default();
            changes.push(&join(b"a", b"ann", info.as_bytes()));
            changes.push(&join(b"a", b"bob", b""));
            assert_eq!(
                PeerChanges::parse(changes.bytes()),
                Some(changes),
                "{info:?}"
            );
        }
    }

    #[test]
    fn every_home_of_a_node_is_asked_although_no_round_is_completed_at_once() {
        let mut node = PolledNode::new(1, 10);
        let mut asked = Vec::new();
        for _ in 0..4 {
            node.begin_round();
            for _ in 0..2 {
                let question = node.next_question(9).expect("three homes, two questions");
                asked.push(question.home);
                let answer = PeerAnswer {
                    process: 5,
                    homes: 3,
                    ..PeerAnswer::default()
                };
                node.take_answer(&question, Some(answer), 20);
                if node.next_question(9).is_none() {
                    node.begin_round();
                }
            }
        }
        assert_eq!(asked, [0, 1, 2, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn a_lost_answer_begins_a_new_snapshot_and_each_snapshot_ends_once() {
        let mut node = PolledNode::new(1, 10);
        let answer = |more| PeerAnswer {
            process: 5,
            homes: 2,
            more,
            changes: PeerChanges::default(),
        };
        let mut streams = Vec::new();
        for lost in [true, false] {
            node.begin_round();
            let mut ends = 0;
            for (number, more) in [true, false, false].into_iter().enumerate() {
                let question = node.next_question(9).expect("a home has not answered");
                streams.push(question.stream);
                let is_lost = lost && number == 1;
                let news = node.take_answer(&question, Some(answer(more)).filter(|_| !is_lost), 20);
                let Some(news) = news else { break };
                assert_eq!(news.begins, (number == 0).then_some(5));
                ends += u32::from(news.ends_snapshot);
            }
            assert_eq!((ends, node.is_whole()), (u32::from(!lost), !lost));
            assert_eq!(node.heard_s(), if lost { 10 } else { 20 });
        }
        assert_eq!(streams, [1, 1, 2, 2, 2]);
        // From now on there are only changes.
        node.begin_round();
        let question = node.next_question(9).expect("a round asks all homes");
        assert_eq!((question.stream, question.answers), (2, 2));
        let news = node.take_answer(&question, Some(answer(false)), 21);
        assert_eq!(news, Some(AnswerSteps::default()));
    }
}
