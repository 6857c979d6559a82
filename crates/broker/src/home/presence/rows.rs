//! The rows of the table of presence: members, topics, and members that have left.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::base::ids::{ConnId, ShardId};
use crate::mail::presence::{Member, MemberConn, PresenceCounts};
use crate::store::index::chained;
use crate::store::slab::{NONE, SlabRow};

/// A member. Its text consists of the length of the user's name, the name, and the info.
pub(super) struct MemberRow {
    pub(super) text: Box<[u8]>,
    /// The number of the member's join; 0 while the connection waits (`peers.rs`).
    pub(super) id: u64,
    pub(super) slot: u32,
    pub(super) generation: u16,
    pub(super) shard: ShardId,
    /// The number of the node of the connection; 0 is this node.
    pub(super) node: u8,
    /// For a member of another node: the number of the last snapshot of that node that has named the member.
    pub(super) snapshot: u16,
    pub(super) topic: u32,
    pub(super) next: u32,
    pub(super) since_s: u32,
    /// The second in which the member leaves, if its connection has ended, or in which the wait of the connection ends; otherwise 0.
    pub(super) leaves_s: u32,
}

const _: () = assert!(size_of::<MemberRow>() == 56);

impl SlabRow for MemberRow {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        MemberRow {
            text: Box::default(),
            id: 0,
            slot: 0,
            generation: 0,
            shard: 0,
            node: 0,
            snapshot: 0,
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

chained!(MemberRow, |row| hash_of_member(row.topic, row.conn()));

impl MemberRow {
    /// The connection of the member.
    pub(super) fn conn(&self) -> MemberConn {
        MemberConn {
            node: self.node,
            shard: self.shard,
            conn: ConnId {
                slot: self.slot,
                generation: self.generation,
            },
        }
    }

    /// Whether the connection in this row has not ended. It may wait (`peers.rs`), or belong to a member who does not leave.
    pub(super) fn has_connection(&self) -> bool {
        self.leaves_s == 0 || self.id == 0
    }

    /// Gives the member another connection.
    pub(super) fn move_to(&mut self, conn: MemberConn) {
        (self.node, self.shard) = (conn.node, conn.shard);
        (self.slot, self.generation) = (conn.conn.slot, conn.conn.generation);
    }

    /// The user's name and the info.
    pub(super) fn user_and_info(&self) -> (&[u8], &[u8]) {
        let (len, texts) = self.text.split_first().unwrap_or((&0, &[]));
        texts.split_at(usize::from(*len))
    }

    /// The member as a page describes it. The process of its connection began with this writer number.
    pub(super) fn member(&self, process: u64) -> Member<'_> {
        let (user, info) = self.user_and_info();
        Member {
            id: self.id,
            at: self.conn(),
            process,
            since_s: self.since_s,
            user,
            info,
        }
    }
}

/// A hash without a key, since clients do not choose the row numbers of a server.
pub(super) fn hash_of_member(topic: u32, conn: MemberConn) -> u32 {
    let node = u64::from(conn.node) << 56;
    let conn = conn.conn.token() ^ u64::from(conn.shard) << 48 ^ node;
    let mixed = (conn ^ u64::from(topic) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u32 ^ topic.wrapping_mul(0x85EB_CA6B)
}

/// A topic with members or watchers.
pub(super) struct PresenceTopic {
    pub(super) name: Box<[u8]>,
    /// The rows of the topic's members, by the numbers of their joins. A double-ended queue, since members that leave are often the oldest.
    pub(super) members_by_join: VecDeque<u32>,
    pub(super) hash: u32,
    pub(super) next: u32,
    /// The number of different users among the members.
    pub(super) user_count: u32,
    /// The number of connections of this node that are only counted.
    pub(super) unlisted_count: u32,
    /// The number of connections of other nodes that are only counted.
    pub(super) unlisted_at_peers: u64,
    /// The last change of which watchers are told.
    pub(super) watched_change: u64,
    /// The last change that a reader can see. Watchers are not told of it if a member continues with another connection.
    pub(super) last_change: u64,
}

impl SlabRow for PresenceTopic {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        PresenceTopic {
            name: Box::default(),
            members_by_join: VecDeque::new(),
            hash: 0,
            next,
            user_count: 0,
            unlisted_count: 0,
            unlisted_at_peers: 0,
            watched_change: 0,
            last_change: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

chained!(PresenceTopic);

impl PresenceTopic {
    /// The connections that are only counted.
    pub(super) fn unlisted(&self) -> u32 {
        let sum = u64::from(self.unlisted_count) + self.unlisted_at_peers;
        u32::try_from(sum).unwrap_or(u32::MAX)
    }

    pub(super) fn counts(&self) -> PresenceCounts {
        let listed = self.members_by_join.len() as u32;
        PresenceCounts {
            clients: listed.saturating_add(self.unlisted()),
            users: self.user_count,
            listed,
        }
    }
}

/// A member that has left.
pub(super) struct Leave {
    /// The number of the leave.
    pub(super) number: u64,
    /// The writer number of the process of the member's connection. The number of the node does not identify the process: some time after the node has
    /// died, another node gets the number.
    pub(super) process: u64,
    pub(super) row: MemberRow,
}

impl Leave {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Leave>() + self.row.text.len()
    }
}
