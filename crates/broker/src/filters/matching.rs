//! The filters to which a shard's connections subscribe: the members of each filter, and how far each connection has read.
//!
//! A connection has *parts* and *groups*. A part is a subscription of the connection to one filter, with a number that the protocol
//! chooses. A group is the set of parts that were subscribed together. The parts of a group are read together, with one offset for each
//! partition.
//!
//! Invariants: a filter is open here while it has members. The filter is registered at every home (the part of a shard that keeps topics)
//! from the attach (the request to subscribe) of its first member until its last member leaves. A group that is live in all partitions
//! stores no positions: its positions are `Matching::seen`.

mod filter_subscriptions;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::reason::Reason;
use crate::base::work::Steps;
use crate::budget::admission::Client;
use crate::budget::admission::shares::Holders;
use crate::budget::stats::Accounts;
use crate::filters::Filters;
use crate::store::slab::{NONE, SideTable};

pub use filter_subscriptions::{
    FilterPart, FilterSubscriptions, Group, GroupPosition, RETAINED_SENT,
};

/// A member of a filter: a connection, with the part that subscribes to the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The connection's row.
    pub slot: u32,
    /// The index of the part in [`FilterSubscriptions::parts`].
    pub filter_index: u32,
}

/// A filter that matches a topic. Valid until a member joins or leaves.
#[derive(Clone, Copy)]
pub struct MatchedFilter {
    /// The filter's row.
    pub row: u32,
    /// The row of the filter's members.
    members: u32,
}

/// A filter whose members a walk visits, to deliver a message to them. Members may join and leave during the walk.
struct WalkedFilter {
    members: u32,
    /// The members with an index below this are still to be visited. The walk visits the highest index first. A new member is added at the
    /// end. When a member leaves, the last member takes its place, so the walk misses no old member, but it may visit some of them twice
    /// and may visit a few new members.
    unvisited: u32,
}

enum Members {
    One(Member),
    Many(Vec<Member>),
}

impl Members {
    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize {
        match self {
            Members::One(_) => 0,
            Members::Many(all) => all.capacity() * size_of::<Member>(),
        }
    }
}

impl Default for Members {
    fn default() -> Self {
        Members::Many(Vec::new())
    }
}

/// All filters of a carrier (a shard with subscribers).
pub struct Matching {
    filters: Filters,
    members: SideTable<Members>,
    /// Heap bytes of `members`.
    members_bytes: usize,
    /// The clients that opened filters while the table was more than half full.
    holders: Holders,
    /// By home: the filters that the walk for the home's current message has not finished. The last one in the list is next.
    walks: BTreeMap<ShardId, Vec<WalkedFilter>>,
    /// By partition: the offset up to which all live subscribers have read.
    pub seen: Vec<u64>,
}

/// What has changed because a member left.
pub struct Removal {
    /// The member that took the place of the one that left. Its part must learn the new index.
    pub moved_member: Option<Member>,
    /// The text of the filter, if its last member left.
    pub closed_filter: Option<Vec<u8>>,
}

impl Matching {
    /// A table without filters. The work of matching is added to `steps`.
    pub fn new(partitions: usize, seed: u64, steps: &Steps) -> Self {
        Matching {
            filters: Filters::new(seed, steps),
            members: SideTable::default(),
            members_bytes: 0,
            holders: Holders::default(),
            walks: BTreeMap::new(),
            seen: alloc::vec![0; partitions],
        }
    }

    /// Adds the counts of filters and member sets to `accounts`.
    pub fn account(&self, accounts: &mut Accounts) {
        accounts.carrier_filters = self.filters.len();
        accounts.carrier_sets += self.members.len();
    }

    /// Bytes of the filters and of their member sets.
    pub fn bytes(&self) -> usize {
        let rows = self.members.len() as usize * size_of::<Members>();
        self.filters.bytes() + rows + self.members_bytes
    }

    /// The number of filters that have members.
    pub fn len(&self) -> usize {
        self.filters.len() as usize
    }

    /// The row of a filter, if it has members.
    pub fn find(&self, filter: &[u8]) -> Option<u32> {
        self.filters.find(filter)
    }

    /// The text of the filter in a row.
    pub fn name(&self, row: u32) -> Vec<u8> {
        self.filters.name(row)
    }

    /// Adds a member to a filter. Returns the filter's row and the member's index in it. `filters_max` is the limit of the shard's filters.
    ///
    /// # Errors
    /// When the filter is refused.
    pub fn join(
        &mut self,
        filter: &[u8],
        member: Member,
        client: Client,
        filters_max: usize,
    ) -> Result<(u32, u32), Reason> {
        if self.find(filter).is_none() && !self.holders.may_take(client, self.len(), filters_max) {
            return Err(Reason::FiltersFull);
        }
        let row = self.filters.open(filter, client.number().into())?;
        let id = self.filters.value(row);
        if id == NONE {
            self.holders
                .record_row(row, client, self.len(), filters_max);
            let id = self.members.insert(Members::One(member));
            self.filters.set_value(row, id);
            return Ok((row, 0));
        }
        let members = self.members.get_mut(id);
        self.members_bytes -= members.heap_bytes();
        let member_index = match members {
            Members::One(first) => {
                *members = Members::Many(alloc::vec![*first, member]);
                1
            }
            Members::Many(all) => {
                all.push(member);
                all.len() as u32 - 1
            }
        };
        self.members_bytes += members.heap_bytes();
        Ok((row, member_index))
    }

    /// Removes the member with this index of a filter.
    #[must_use]
    pub fn leave(&mut self, row: u32, member_index: u32) -> Removal {
        let id = self.filters.value(row);
        if let Members::Many(all) = self.members.get_mut(id) {
            all.swap_remove(member_index as usize);
            if !all.is_empty() {
                let moved_member = all.get(member_index as usize).copied();
                return Removal {
                    moved_member,
                    closed_filter: None,
                };
            }
        }
        self.members_bytes -= self.members.remove(id).heap_bytes();
        for walk in self.walks.values_mut() {
            walk.retain(|walked| walked.members != id);
        }
        let closed_filter = Some(self.filters.name(row));
        self.filters.close(row);
        self.holders.forget_row(row);
        Removal {
            moved_member: None,
            closed_filter,
        }
    }

    /// Whether a filter matches the topic.
    #[inline]
    pub fn has_match(&self, topic: &[u8]) -> bool {
        self.filters.has_match(topic)
    }

    /// The rows of the filters that match the topic, in order.
    pub fn matching_rows(&self, topic: &[u8]) -> Vec<u32> {
        let mut rows = Vec::new();
        self.filters.matches(topic, |row| rows.push(row));
        rows.sort_unstable();
        rows
    }

    /// Prefetches what the matches of these topics read ([`Filters::prefetch`]).
    pub fn prefetch<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        self.filters.prefetch(topics);
    }

    /// Calls `each` with each filter that matches the topic.
    pub fn for_each_match(&self, topic: &[u8], mut each: impl FnMut(MatchedFilter)) {
        self.filters.matches(topic, |row| {
            let members = self.filters.value(row);
            each(MatchedFilter { row, members });
        });
    }

    /// Begins a walk over the members of these filters, for a message of this home. Each home has at most one walk at a time.
    pub fn begin_walk(&mut self, home: ShardId, sets: impl Iterator<Item = MatchedFilter>) {
        let walked = sets.map(|set| WalkedFilter {
            members: set.members,
            unvisited: self.members(set).len() as u32,
        });
        let walked = walked.collect();
        self.walks.insert(home, walked);
    }

    /// Fills `into` with the next members of the home's walk: at most `members_max`, and none when the walk is over.
    pub fn next_members(&mut self, home: ShardId, members_max: usize, into: &mut Vec<Member>) {
        into.clear();
        let Some(walk) = self.walks.get_mut(&home) else {
            return;
        };
        while let Some(walked) = walk.last_mut() {
            let members = match self.members.get(walked.members) {
                Members::One(member) => core::slice::from_ref(member),
                Members::Many(all) => all,
            };
            let end = (walked.unvisited as usize).min(members.len());
            let start = end.saturating_sub(members_max - into.len());
            into.extend(members[start..end].iter().rev());
            walked.unvisited = start as u32;
            if start > 0 {
                return;
            }
            walk.pop();
        }
        self.walks.remove(&home);
    }

    /// The members of a filter.
    #[inline]
    pub fn members(&self, set: MatchedFilter) -> &[Member] {
        match self.members.get(set.members) {
            Members::One(member) => core::slice::from_ref(member),
            Members::Many(all) => all,
        }
    }
}

#[cfg(test)]
mod tests;
