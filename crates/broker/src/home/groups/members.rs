//! Keeps the members of an MQTT shared subscription (a group) and their credit. A member's credit is the number of messages that the group
//! may still send to the member. Each message goes to one member, and the members with credit take turns.
//!
//! Invariant: a member is in `members_with_credit` exactly while its credit is above 0, so no operation walks over all members.
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
    accounts: BTreeMap<Member, MemberAccount>,
    members_with_credit: BTreeSet<Member>,
    /// The member that got the last message.
    last_served: Option<Member>,
}

impl Members {
    pub fn add(&mut self, member: Member, party: Party, credit: u32) {
        self.accounts
            .insert(member, MemberAccount { credit, party });
        if credit > 0 {
            self.members_with_credit.insert(member);
        }
    }

    /// Adds `count` to a member's credit. Returns false if there is no such member.
    pub fn add_credit(&mut self, member: Member, count: u32) -> bool {
        let Some(MemberAccount { credit, .. }) = self.accounts.get_mut(&member) else {
            return false;
        };
        *credit = credit.saturating_add(count);
        if *credit > 0 {
            self.members_with_credit.insert(member);
        }
        true
    }

    pub fn remove(&mut self, member: Member) {
        self.accounts.remove(&member);
        self.members_with_credit.remove(&member);
        if self.accounts.is_empty() {
            // Each tree would keep an empty leaf, so both are replaced by new trees without leaves.
            (self.accounts, self.members_with_credit) = Default::default();
        }
    }

    /// Chooses the member for the next message, the next in turn with credit, and takes one credit from it.
    pub fn take_credit(&mut self) -> Option<Member> {
        let member = self.next_member()?;
        self.last_served = Some(member);
        let MemberAccount { credit, .. } = self.accounts.get_mut(&member)?;
        *credit -= 1;
        if *credit == 0 {
            self.members_with_credit.remove(&member);
        }
        Some(member)
    }

    /// The party of the member that [`Members::take_credit`] would choose.
    pub fn party_of_next(&self) -> Option<Party> {
        let member = self.next_member()?;
        self.accounts.get(&member).map(|account| account.party)
    }

    fn next_member(&self) -> Option<Member> {
        let after_last = self.last_served.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self
            .members_with_credit
            .range((after_last, Bound::Unbounded));
        rest.next()
            .or_else(|| self.members_with_credit.first())
            .copied()
    }

    pub fn has_credit(&self) -> bool {
        !self.members_with_credit.is_empty()
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        match self.accounts.len() {
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
        let mut next = || members.take_credit().map(|(_, to)| to.slot);
        assert_eq!(
            [next(), next(), next(), next()],
            [Some(1), Some(2), Some(2), None]
        );
        assert!(members.add_credit(member(0), 1) && !members.add_credit(member(9), 1));
        members.add_credit(member(2), 1);
        members.remove(member(2));
        assert_eq!(members.take_credit(), Some(member(0)));
        assert!(!members.has_credit());
        assert_eq!(members.bytes(), LEAVES_BYTES);
    }
}
