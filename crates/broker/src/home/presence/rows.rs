//! The rows of the table of presence: members, topics, and members that have left.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::base::ids::{ConnId, ShardId};
use crate::mail::presence::{Member, MemberConn, PresenceCounts};
use crate::store::index::chained;
use crate::store::slab::{NONE, SlabRow};

/// A member. Its text consists of the length of the user's name, the name, and the info.
pub(super) struct Row {
    pub(super) text: Box<[u8]>,
    /// The number of the member's join.
    pub(super) id: u64,
    pub(super) slot: u32,
    pub(super) generation: u16,
    pub(super) shard: ShardId,
    pub(super) topic: u32,
    pub(super) next: u32,
    pub(super) since_s: u32,
    /// The second in which the member leaves, if its connection has ended; otherwise 0.
    pub(super) leaves_s: u32,
}

const _: () = assert!(size_of::<Row>() == 48);

impl SlabRow for Row {
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
    /// The connection of the member.
    pub(super) fn at(&self) -> MemberConn {
        MemberConn {
            shard: self.shard,
            conn: ConnId {
                slot: self.slot,
                generation: self.generation,
            },
        }
    }

    /// Gives the member another connection.
    pub(super) fn move_to(&mut self, at: MemberConn) {
        (self.shard, self.slot, self.generation) = (at.shard, at.conn.slot, at.conn.generation);
    }

    /// The user's name and the info.
    pub(super) fn texts(&self) -> (&[u8], &[u8]) {
        let (len, texts) = self.text.split_first().unwrap_or((&0, &[]));
        texts.split_at(usize::from(*len))
    }

    /// The member as a page describes it.
    pub(super) fn member(&self) -> Member<'_> {
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

/// The hash needs no key, since clients do not choose the row numbers of a server.
pub(super) fn hash_of_member(topic: u32, at: MemberConn) -> u32 {
    let conn = at.conn.token() ^ u64::from(at.shard) << 48;
    let mixed = (conn ^ u64::from(topic) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u32 ^ topic.wrapping_mul(0x85EB_CA6B)
}

/// A topic with members or watchers.
pub(super) struct Topic {
    pub(super) name: Box<[u8]>,
    /// The rows of its members, by the numbers of their joins. A double-ended queue, since members that leave are often the oldest.
    pub(super) order: VecDeque<u32>,
    pub(super) hash: u32,
    pub(super) next: u32,
    /// The number of different users among the members.
    pub(super) users: u32,
    /// The number of connections above the rule's limit, which are only counted.
    pub(super) unlisted: u32,
    /// The last change of which watchers are told.
    pub(super) changed: u64,
    /// The last change that a reader can see. It can be a member that continues with another connection, of which watchers are not told.
    pub(super) read_changed: u64,
}

impl SlabRow for Topic {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        Topic {
            name: Box::default(),
            order: VecDeque::new(),
            hash: 0,
            next,
            users: 0,
            unlisted: 0,
            changed: 0,
            read_changed: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

chained!(Topic);

impl Topic {
    pub(super) fn counts(&self) -> PresenceCounts {
        let listed = self.order.len() as u32;
        PresenceCounts {
            clients: listed + self.unlisted,
            users: self.users,
            listed,
        }
    }
}

/// A member that has left.
pub(super) struct Gone {
    /// The number of the leave.
    pub(super) left: u64,
    pub(super) row: Row,
}

impl Gone {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Gone>() + self.row.text.len()
    }
}
