//! Presence: who subscribes to a topic. If the rule of a topic enables presence, the topic's home (the part of a shard that keeps topics) lists the
//! members of the topic, and tells *watchers*, clients that want to know the members, of each change.

use alloc::vec::Vec;

use crate::base::ids::{ConnId, ShardId};
use crate::base::position;
use crate::mail::answer::ReplyTo;

/// The connection of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberConn {
    /// The number by which this node knows the node of the connection; 0 is this node itself.
    pub node: u8,
    /// The shard of the connection.
    pub shard: ShardId,
    /// The connection.
    pub conn: ConnId,
}

impl MemberConn {
    /// A connection of this node.
    pub fn here(shard: ShardId, conn: ConnId) -> MemberConn {
        MemberConn {
            node: 0,
            shard,
            conn,
        }
    }
}

/// A member of a topic: one connection that subscribes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Identifies the member in its topic, and orders the members by the time of joining. A member that returns after a short time keeps the
    /// id.
    pub id: u64,
    /// The connection.
    pub at: MemberConn,
    /// The writer number with which the process of the connection began; 0 if that is this process.
    pub process: u64,
    /// The counted second in which the member joined.
    pub since_s: u32,
    /// The user's name; empty for an anonymous client.
    pub user: &'a [u8],
    /// The public information from the member's token, as JSON; empty if there is none.
    pub info: &'a [u8],
}

/// A change of a topic's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PresenceChange<'a> {
    /// A member has joined, or was a member when the snapshot was taken.
    Join(Member<'a>),
    /// A member has left.
    Leave(Member<'a>),
}

/// Encoded changes. Each is a byte (1: a member has joined, 0: it has left), the id (8 bytes), slot, generation, shard and node of the connection
/// (9 bytes), its process (8 bytes), the second (4 bytes), the lengths of user (1 byte) and info (2 bytes), and both texts.
#[derive(Clone, Debug, Default)]
pub struct PresenceChanges(Vec<u8>);

const HEAD_BYTES: usize = 33;

impl PresenceChanges {
    /// Adds a change.
    pub fn push(&mut self, change: &PresenceChange<'_>) {
        let (has_joined, member) = match change {
            PresenceChange::Join(member) => (1, member),
            PresenceChange::Leave(member) => (0, member),
        };
        let out = &mut self.0;
        out.push(has_joined);
        out.extend_from_slice(&member.id.to_le_bytes());
        out.extend_from_slice(&member.at.conn.slot.to_le_bytes());
        out.extend_from_slice(&member.at.conn.generation.to_le_bytes());
        out.extend_from_slice(&member.at.shard.to_le_bytes());
        out.push(member.at.node);
        out.extend_from_slice(&member.process.to_le_bytes());
        out.extend_from_slice(&member.since_s.to_le_bytes());
        out.push(member.user.len() as u8);
        out.extend_from_slice(&(member.info.len() as u16).to_le_bytes());
        out.extend_from_slice(member.user);
        out.extend_from_slice(member.info);
    }

    /// The changes in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = PresenceChange<'_>> {
        let mut rest = &self.0[..];
        core::iter::from_fn(move || {
            let (head, after) = rest.split_first_chunk::<HEAD_BYTES>()?;
            let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
            let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
            let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
            let (user, after) = after.split_at(head[30].into());
            let (info, after) = after.split_at(u16_at(31).into());
            rest = after;
            let member = Member {
                id: u64_at(1),
                at: MemberConn {
                    node: head[17],
                    conn: ConnId {
                        slot: u32_at(9),
                        generation: u16_at(13),
                    },
                    shard: u16_at(15),
                },
                process: u64_at(18),
                since_s: u32_at(26),
                user,
                info,
            };
            Some(match head[0] {
                0 => PresenceChange::Leave(member),
                _ => PresenceChange::Join(member),
            })
        })
    }

    /// The number of encoded bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether a connection is listed as a member. If not, it is only counted, because memory is short.
pub type IsListed = bool;

/// The maximum number of bytes that a home needs for a member, without user and info.
pub const MEMBER_BYTES: usize = 120;

/// A request about the members of one topic.
#[derive(Clone, Copy, Debug)]
pub enum PresenceAsk {
    /// This connection joins, and is listed or only counted. [`write_member`] writes the text that comes with this request.
    Join(ConnId, IsListed),
    /// This connection ends its membership. If the connection broke, the member leaves only after this many seconds.
    Leave(ConnId, u32),
    /// Send the members that joined after the change with this number.
    Read(ReplyTo, u64),
    /// Send this connection the members, or the changes since a position, and then each change.
    Watch(ReplyTo, Option<PresencePosition>),
    /// Send this connection each change from now on. If a member returns with another connection, the watcher sees it leave and join again.
    WatchChanges(ReplyTo),
    /// The watcher is ready for another page.
    Ready(ReplyTo),
    /// The watcher has ended.
    Unwatch(ReplyTo),
}

/// Writes the text for a connection that becomes a member: the length of the topic's name (2 bytes), the topic's name, the length of the user's
/// name (1 byte), the user's name, and the info.
pub fn write_member(out: &mut Vec<u8>, topic: &[u8], user: &[u8], info: &[u8]) {
    out.extend_from_slice(&(topic.len() as u16).to_le_bytes());
    out.extend_from_slice(topic);
    out.push(user.len() as u8);
    out.extend_from_slice(user);
    out.extend_from_slice(info);
}

/// Reads the text of [`write_member`]: the topic, the user and the info.
pub fn read_member(text: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let (len, rest) = text.split_at(2);
    let (topic, rest) = rest.split_at(usize::from(u16::from_le_bytes([len[0], len[1]])));
    let (user, info) = rest[1..].split_at(rest[0].into());
    (topic, user, info)
}

/// The numbers of members of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PresenceCounts {
    /// All connections.
    pub clients: u32,
    /// The different users among the listed members. All anonymous clients are one user.
    pub users: u32,
    /// The listed members. The topic's rule limits their number.
    pub listed: u32,
}

/// A position in the changes of one topic's members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PresencePosition {
    /// The number of the table that counts the changes. Each start of the server makes a new table.
    pub table: u32,
    /// The number of the last change.
    pub change: u64,
}

impl PresencePosition {
    /// Appends the text of the position.
    pub fn write(&self, out: &mut Vec<u8>) {
        position::write_hex(out, self.table);
        out.push(b'-');
        position::write_decimal(out, self.change);
    }

    /// Reads the text of [`PresencePosition::write`].
    pub fn parse(text: &[u8]) -> Option<PresencePosition> {
        let (table, change) = text.split_at_checked(memchr::memchr(b'-', text)?)?;
        let is_hex = table.iter().all(u8::is_ascii_hexdigit);
        let table = core::str::from_utf8(table).ok().filter(|_| is_hex)?;
        Some(PresencePosition {
            table: u32::from_str_radix(table, 16).ok()?,
            change: position::parse_decimal(&change[1..])?,
        })
    }
}

/// A page: some of the changes that a reader or a watcher of a topic has not got yet. Its length is bounded.
#[derive(Clone, Debug, Default)]
pub struct PresencePage {
    /// The changes; members that have left come first.
    pub changes: PresenceChanges,
    /// The present numbers of members.
    pub counts: PresenceCounts,
    /// For a watcher: a snapshot begins with this page, so the watcher must forget the members that it knows.
    pub resets: bool,
    /// For a watcher: the snapshot ends with this page.
    pub completes: bool,
    /// Whether there are more members after this page.
    pub more: bool,
    /// For a watcher: the watcher's position after this page. For a reader: the last change of the topic.
    pub position: PresencePosition,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_they_were_written() {
        for (table, change) in [(0, 0), (7, 1), (u32::MAX, u64::MAX)] {
            let position = PresencePosition { table, change };
            let mut text = Vec::new();
            position.write(&mut text);
            assert_eq!(PresencePosition::parse(&text), Some(position));
        }
        for wrong in [
            &b""[..],
            b"00000007",
            b"00000007-",
            b"00000007-x",
            b"+0000007-1",
            b"-1",
            b"100000000-1",
            b"00000007-18446744073709551616",
            b"live",
        ] {
            assert_eq!(
                PresencePosition::parse(wrong),
                None,
                "{}",
                wrong.escape_ascii()
            );
        }
    }
}
