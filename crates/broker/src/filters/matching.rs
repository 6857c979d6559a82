//! The filters that a shard's connections subscribe to: their members, and how far each connection has read.
//!
//! A connection has *parts* (a filter each) in *groups* (filters that were subscribed together and are read together:
//! one offset for each partition applies to all filters of a group). A part has a number of the protocol's choice.
//!
//! Invariants: a filter is open here while it has members, and registered at every home from the first member's attach
//! to the last one's leave. A group that is live in all partitions keeps no positions of its own: `seen` applies to all of
//! them.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::budget::stats::Accounts;
use crate::filters::{Filters, Refused};
use crate::store::slab::{NONE, Side};

/// A connection, with one of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The connection's row.
    pub slot: u32,
    /// The place of the part in [`Filtered::parts`].
    pub part: u32,
}

/// The members of one filter; valid until a member joins or leaves.
#[derive(Clone, Copy)]
pub struct Set(u32);

/// A filter in the walk of a message over its members, who may leave and join meanwhile.
struct Walked {
    set: u32,
    /// The first so many members are still to come. The last member takes the place of one that leaves, and a new one
    /// becomes the last: so the walk leaves out no member that was there, meets some twice, and meets none or a few of
    /// the new ones.
    left: u32,
}

enum Members {
    One(Member),
    Many(Vec<Member>),
}

impl Default for Members {
    fn default() -> Self {
        Members::Many(Vec::new())
    }
}

/// All filters of a carrier.
pub struct Matching {
    filters: Filters,
    members: Side<Members>,
    /// The filters in the walk of the present message, in reverse.
    walked: Vec<Walked>,
    /// By partition: the offset that all live subscribers have seen.
    pub seen: Vec<u64>,
}

/// The consequences of a member's leave.
pub struct Left {
    /// The member that took its place.
    pub moved: Option<Member>,
    /// The filter, if this was its last member.
    pub ended: Option<Vec<u8>>,
}

impl Matching {
    /// A table without filters.
    pub fn new(partitions: usize, seed: u64) -> Self {
        Matching {
            filters: Filters::new(seed),
            members: Side::new(),
            walked: Vec::new(),
            seen: alloc::vec![0; partitions],
        }
    }

    /// Adds its counts to `accounts`.
    pub fn account(&self, accounts: &mut Accounts) {
        accounts.carrier_filters = self.filters.len();
        accounts.carrier_sets += self.members.len();
        accounts.name_bytes += self.filters.bytes();
    }

    /// Filters that are open.
    pub fn len(&self) -> usize {
        self.filters.len() as usize
    }

    /// The row of a filter that has members.
    pub fn find(&self, filter: &[u8]) -> Option<u32> {
        self.filters.find(filter)
    }

    /// The filter in a row.
    pub fn name(&self, row: u32) -> Vec<u8> {
        self.filters.name(row)
    }

    /// Adds a member; returns the filter's row and the member's place.
    ///
    /// # Errors
    /// When the filter is refused.
    pub fn join(&mut self, filter: &[u8], member: Member) -> Result<(u32, u32), Refused> {
        let row = self.filters.open(filter)?;
        let id = self.filters.value(row);
        if id == NONE {
            let id = self.members.insert(Members::One(member));
            self.filters.set_value(row, id);
            return Ok((row, 0));
        }
        let members = self.members.get_mut(id);
        match members {
            Members::One(first) => {
                *members = Members::Many(alloc::vec![*first, member]);
                Ok((row, 1))
            }
            Members::Many(all) => {
                all.push(member);
                Ok((row, all.len() as u32 - 1))
            }
        }
    }

    /// Removes the member at this place.
    #[must_use]
    pub fn leave(&mut self, row: u32, place: u32) -> Left {
        let id = self.filters.value(row);
        if let Members::Many(all) = self.members.get_mut(id) {
            all.swap_remove(place as usize);
            if !all.is_empty() {
                let moved = all.get(place as usize).copied();
                return Left { moved, ended: None };
            }
        }
        self.members.remove(id);
        self.walked.retain(|walked| walked.set != id);
        let ended = Some(self.filters.name(row));
        self.filters.close(row);
        Left { moved: None, ended }
    }

    /// Whether a filter matches the topic.
    #[inline]
    pub fn has_match(&self, topic: &[u8]) -> bool {
        self.filters.has_match(topic)
    }

    /// The rows of the filters that match the topic.
    pub fn rows(&self, topic: &[u8]) -> Vec<u32> {
        let mut rows = Vec::new();
        self.filters.matches(topic, |row| rows.push(row));
        rows
    }

    /// Reads ahead for the matches of several topics, see [`Filters::warm`].
    pub fn warm<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        self.filters.warm(topics);
    }

    /// Calls `each` with the member set of each filter that matches the topic.
    pub fn sets(&self, topic: &[u8], mut each: impl FnMut(Set)) {
        self.filters
            .matches(topic, |row| each(Set(self.filters.value(row))));
    }

    /// Begins a walk over the members of these filters, for one message at a time.
    pub fn begin_walk(&mut self, sets: impl Iterator<Item = Set>) {
        let walked = sets.map(|set| Walked {
            set: set.0,
            left: self.members(set).len() as u32,
        });
        self.walked = walked.collect();
    }

    /// Puts the next members of the walk into `into`, at most `most`; none when the walk is over.
    pub fn walk(&mut self, most: usize, into: &mut Vec<Member>) {
        into.clear();
        while let Some(walked) = self.walked.last_mut() {
            let members = match self.members.get(walked.set) {
                Members::One(member) => core::slice::from_ref(member),
                Members::Many(all) => all,
            };
            let end = (walked.left as usize).min(members.len());
            let start = end.saturating_sub(most - into.len());
            into.extend(members[start..end].iter().rev());
            walked.left = start as u32;
            if start > 0 {
                return;
            }
            self.walked.pop();
        }
    }

    /// Members of a filter.
    #[inline]
    pub fn members(&self, set: Set) -> &[Member] {
        match self.members.get(set.0) {
            Members::One(member) => core::slice::from_ref(member),
            Members::Many(all) => all,
        }
    }
}

/// One filter of a connection.
pub struct Part {
    /// The filter's row; `NONE` in a free place.
    pub row: u32,
    /// Its place among the filter's members.
    pub place: u32,
    /// The serial of its group.
    pub group: u32,
    /// The protocol's number.
    pub id: u32,
    /// The next part of its group, or the next free place.
    next: u32,
}

/// How far a group has read in one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// The offset that it has seen.
    pub offset: u64,
    /// See [`crate::mail::MatchPage`].
    pub from: u64,
    /// See [`crate::mail::MatchPage`].
    pub base: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// It takes live messages.
    pub live: bool,
    /// A page is under way.
    pub asked: bool,
    /// No page has come yet that says where it begins.
    pub new: bool,
    /// A page was read since every other partition had its turn.
    pub had_turn: bool,
}

/// Stands for the offset in a partition of which nothing more is to be read; no page of it is asked for.
pub const OVER: u64 = u64::MAX;

const _: () = assert!(size_of::<At>() == 32);

/// Filters that were subscribed together.
pub struct Group {
    /// Its number; never used again at this connection.
    pub serial: u32,
    /// The part that joined last.
    first: u32,
    /// By partition; empty when all are live.
    positions: Vec<At>,
}

impl Group {
    /// By partition; empty when all are live.
    pub fn positions(&self) -> &[At] {
        &self.positions
    }

    /// Whether the group takes live messages of this partition.
    pub fn is_live(&self, partition: PartitionId) -> bool {
        self.positions
            .get(usize::from(partition))
            .is_none_or(|at| at.live)
    }
}

/// The filters of a connection. Each operation costs the same for a client with thousands of them, or little more.
pub struct Filtered {
    /// By place; free places are used again.
    parts: Vec<Part>,
    /// By serial.
    groups: Vec<Group>,
    /// Groups made so far.
    serials: u32,
    /// The first free place.
    free: u32,
    /// Groups that are not live in all partitions.
    behind: u32,
}

impl Default for Filtered {
    fn default() -> Self {
        Filtered {
            parts: Vec::new(),
            groups: Vec::new(),
            serials: 0,
            free: NONE,
            behind: 0,
        }
    }
}

impl Filtered {
    /// Heap bytes in use, those of the struct included. Costs a step for each group.
    pub fn bytes(&self) -> usize {
        let positions: usize = (self.groups.iter())
            .map(|group| group.positions.capacity())
            .sum();
        size_of::<Filtered>()
            + self.parts.capacity() * size_of::<Part>()
            + self.groups.capacity() * size_of::<Group>()
            + positions * size_of::<At>()
    }

    /// Begins a group without filters, live in all partitions; returns its serial.
    pub fn add_group(&mut self) -> u32 {
        let serial = self.serials;
        self.serials += 1;
        self.groups.push(Group {
            serial,
            first: NONE,
            positions: Vec::new(),
        });
        serial
    }

    /// The place of the next part.
    pub fn next_place(&self) -> u32 {
        match self.free {
            NONE => self.parts.len() as u32,
            free => free,
        }
    }

    /// Adds a part to a group, at [`Self::next_place`]: the filter's row, the place among its members, and the
    /// protocol's number.
    pub fn add(&mut self, serial: u32, row: u32, place: u32, id: u32) {
        let at = self.next_place();
        let Some(group) = self.number_of(serial).map(|n| &mut self.groups[n]) else {
            return;
        };
        let next = core::mem::replace(&mut group.first, at);
        let part = Part {
            row,
            place,
            group: serial,
            id,
            next,
        };
        match self.parts.get_mut(at as usize) {
            Some(free) => {
                self.free = free.next;
                *free = part;
            }
            None => self.parts.push(part),
        }
    }

    /// Frees a place, and ends the group with its last part; returns the filter's row and the place among its members.
    /// None if the place is free.
    pub fn remove(&mut self, at: u32) -> Option<(u32, u32)> {
        let part = self.parts.get_mut(at as usize)?;
        if part.row == NONE {
            return None;
        }
        let (row, place, serial) = (part.row, part.place, part.group);
        part.row = NONE;
        let next = core::mem::replace(&mut part.next, self.free);
        self.free = at;
        let group = self.number_of(serial).map(|n| &mut self.groups[n])?;
        let mut before = group.first;
        if before == at {
            group.first = next;
        } else {
            while let Some(part) = self.parts.get_mut(before as usize) {
                if part.next == at {
                    part.next = next;
                    break;
                }
                before = part.next;
            }
        }
        if group.first == NONE {
            self.end_group(serial);
        }
        Some((row, place))
    }

    /// Ends a group that has no parts, if it exists.
    pub fn end_group(&mut self, serial: u32) {
        let Some(number) = self.number_of(serial) else {
            return;
        };
        let group = self.groups.remove(number);
        self.behind -= u32::from(!group.positions.is_empty());
        if self.groups.is_empty() {
            // No part is left.
            (self.parts, self.free) = (Vec::new(), NONE);
        }
    }

    /// A member has moved to another place among those of its filter.
    pub fn set_place(&mut self, part: u32, place: u32) {
        if let Some(part) = self.parts.get_mut(part as usize) {
            part.place = place;
        }
    }

    fn number_of(&self, serial: u32) -> Option<usize> {
        self.groups
            .binary_search_by_key(&serial, |group| group.serial)
            .ok()
    }

    /// The groups, by serial.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The group with this serial.
    pub fn group(&self, serial: u32) -> Option<&Group> {
        self.number_of(serial).map(|number| &self.groups[number])
    }

    /// How far a group has read in this partition, unless it is live in all.
    pub fn at_mut(&mut self, serial: u32, partition: PartitionId) -> Option<&mut At> {
        let number = self.number_of(serial)?;
        self.groups[number]
            .positions
            .get_mut(usize::from(partition))
    }

    /// Sets how far a group has read, by partition.
    pub fn set_positions(&mut self, serial: u32, positions: Vec<At>) {
        let Some(group) = self.number_of(serial).map(|n| &mut self.groups[n]) else {
            return;
        };
        self.behind -= u32::from(!group.positions.is_empty());
        group.positions = match positions.iter().all(|at| at.live) {
            true => Vec::new(),
            false => positions,
        };
        self.behind += u32::from(!group.positions.is_empty());
    }

    /// Drops the positions of a group that is live in all partitions.
    pub fn settle(&mut self, serial: u32) {
        let positions = (self.number_of(serial)).map(|n| &mut self.groups[n].positions);
        if let Some(positions) = positions {
            let positions = core::mem::take(positions);
            self.behind -= u32::from(!positions.is_empty());
            self.set_positions(serial, positions);
        }
    }

    /// The partition of which the group should ask for its next page: in turn one of those in which it is behind, so that a busy
    /// partition does not keep it from the others. None while a page of the group is under way, which bounds what comes at once.
    pub fn next_behind(&mut self, serial: u32) -> Option<PartitionId> {
        let number = self.number_of(serial)?;
        let positions = &mut self.groups[number].positions;
        if positions.iter().any(|at| at.asked && at.offset != OVER) {
            return None;
        }
        let waits = |at: &At| !at.live && !at.asked;
        let next = positions.iter().position(|at| waits(at) && !at.had_turn);
        let next = next.or_else(|| {
            positions.iter_mut().for_each(|at| at.had_turn = false);
            positions.iter().position(waits)
        });
        next.map(|partition| partition as PartitionId)
    }

    /// Whether a group is behind in a partition and has not asked for its next page.
    pub fn is_behind(&self) -> bool {
        let waits = |at: &At| !at.live && !at.asked;
        self.behind > 0
            && self
                .groups
                .iter()
                .any(|group| group.positions.iter().any(waits))
    }

    /// The part in this place, if it is not free.
    pub fn part(&self, at: u32) -> Option<&Part> {
        self.parts.get(at as usize).filter(|part| part.row != NONE)
    }

    /// All parts, with their places.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &Part)> {
        let all = (0..).zip(&self.parts);
        all.filter(|(_, part)| part.row != NONE)
    }

    /// The parts of a group, the last one first.
    pub fn parts_of(&self, serial: u32) -> impl Iterator<Item = (u32, &Part)> {
        let mut at = self.group(serial).map_or(NONE, |group| group.first);
        core::iter::from_fn(move || {
            let here = at;
            let part = self.parts.get(here as usize)?;
            at = part.next;
            Some((here, part))
        })
    }

    /// Whether the part takes live messages of this partition.
    #[inline]
    pub fn is_live(&self, part: u32, partition: PartitionId) -> bool {
        self.part(part).is_some_and(|part| {
            self.behind == 0
                || self
                    .group(part.group)
                    .is_some_and(|group| group.is_live(partition))
        })
    }
}

#[cfg(test)]
mod tests;
