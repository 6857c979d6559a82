//! Keeps the members of an MQTT shared subscription (a group) and their credit. A member's credit is the number of messages that the group
//! may still send to the member. Each message goes to one member, and the members with credit take turns.
//!
//! Invariant: a member is in `ready` exactly while its credit is above 0, so no operation walks over all members.
//!
//! A *party* is an address or a user, and gets a fair share of the work.

use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::Bound;

use crate::base::ids::ShardId;
use crate::budget::admission::Party;
use crate::mail::ReplyTo;

/// A member, identified by the shard of its connection, and the connection's row and generation at that shard. Connections of two shards may have the
/// same row and generation.
pub(in crate::home) type Member = (ShardId, ReplyTo);

/// Heap bytes of a member: its entries in two B-trees, whose nodes are two thirds full.
const MEMBER_BYTES: usize = 3 * (size_of::<(Member, MemberAccount)>() + size_of::<Member>()) / 2;

/// Bytes of the first leaves of both trees together. A leaf has room for eleven entries.
const LEAVES_BYTES: usize = 11 * (size_of::<(Member, MemberAccount)>() + size_of::<Member>()) + 32;

struct MemberAccount {
    /// The number of messages that may still be sent to the member.
    credit: u32,
    /// The address or user that is charged for the work.
    party: Party,
}

#[derive(Default)]
pub(super) struct Members {
    all: BTreeMap<Member, MemberAccount>,
    ready: BTreeSet<Member>,
    /// The member that got the last message.
    last: Option<Member>,
}

impl Members {
    pub fn add(&mut self, member: Member, party: Party, credit: u32) {
        self.all.insert(member, MemberAccount { credit, party });
        if credit > 0 {
            self.ready.insert(member);
        }
    }

    /// Adds `count` to a member's credit. Returns false if there is no such member.
    pub fn add_credit(&mut self, member: Member, count: u32) -> bool {
        let Some(MemberAccount { credit, .. }) = self.all.get_mut(&member) else {
            return false;
        };
        *credit = credit.saturating_add(count);
        if *credit > 0 {
            self.ready.insert(member);
        }
        true
    }

    pub fn remove(&mut self, member: Member) {
        self.all.remove(&member);
        self.ready.remove(&member);
        if self.all.is_empty() {
            // Each tree would keep an empty leaf, so both are replaced by new trees without leaves.
            (self.all, self.ready) = Default::default();
        }
    }

    /// Chooses the member for the next message, the next in turn with credit, and takes one credit from it.
    pub fn next(&mut self) -> Option<Member> {
        let member = self.first_ready()?;
        self.last = Some(member);
        let MemberAccount { credit, .. } = self.all.get_mut(&member)?;
        *credit -= 1;
        if *credit == 0 {
            self.ready.remove(&member);
        }
        Some(member)
    }

    /// The party of the member that [`Members::next`] would choose.
    pub fn party_of_next(&self) -> Option<Party> {
        let member = self.first_ready()?;
        self.all.get(&member).map(|account| account.party)
    }

    fn first_ready(&self) -> Option<Member> {
        let behind = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.ready.range((behind, Bound::Unbounded));
        rest.next().or_else(|| self.ready.first()).copied()
    }

    pub fn has_credit(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        match self.all.len() {
            0 => 0,
            count => LEAVES_BYTES.max(count * MEMBER_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(slot: u32) -> Member {
        let to = ReplyTo {
            slot,
            generation: 0,
            request: 0,
            part: 0,
        };
        (0, to)
    }

    #[test]
    fn members_with_credit_are_given_messages_in_turn() {
        let mut members = Members::default();
        for slot in 0..3 {
            members.add(member(slot), Party::user("a", 0), slot);
        }
        let mut next = || members.next().map(|(_, to)| to.slot);
        assert_eq!(
            [next(), next(), next(), next()],
            [Some(1), Some(2), Some(2), None]
        );
        assert!(members.add_credit(member(0), 1) && !members.add_credit(member(9), 1));
        members.add_credit(member(2), 1);
        members.remove(member(2));
        assert_eq!(members.next(), Some(member(0)));
        assert!(!members.has_credit());
        assert_eq!(members.bytes(), LEAVES_BYTES);
    }
}
