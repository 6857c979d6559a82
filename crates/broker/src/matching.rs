//! The filters that a shard's connections subscribe to: who they are, and how far each connection is.
//!
//! A connection has *parts* (a filter each) in *groups* (what was subscribed together, and is read together: one
//! offset for each home stands for all filters of a group). A part has a number of the protocol's choice.
//!
//! Invariants: a filter is open here while it has members, and registered at every home from the first member's attach
//! to the last one's leave. A group that is live at all homes keeps no positions: `seen` is what all of them have seen.

use alloc::vec::Vec;

use crate::filters::{Filters, Refused};
use crate::mail::ShardId;
use crate::slab::{NONE, Side};
use crate::stats::Accounts;

/// A connection, with one of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The connection's row.
    pub slot: u32,
    /// The place of the part in [`Filtered::parts`].
    pub part: u32,
}

enum Members {
    One(Member),
    Many(Vec<Member>),
}

/// All filters of a carrier.
pub struct Matching {
    filters: Filters,
    members: Side<Members>,
    /// Up to where all live subscribers have seen each home.
    pub seen: Vec<u64>,
}

/// What became of a filter that a member left.
pub struct Left {
    /// Somebody took its place.
    pub moved: Option<Member>,
    /// It was the last member of this filter.
    pub ended: Option<Vec<u8>>,
}

impl Matching {
    /// Without filters.
    pub fn new(homes: usize, seed: u64) -> Self {
        Matching {
            filters: Filters::new(seed),
            members: Side::new(),
            seen: alloc::vec![0; homes],
        }
    }

    /// Adds what it holds.
    pub fn account(&self, accounts: &mut Accounts) {
        accounts.carrier_filters = self.filters.len();
        accounts.carrier_sets += self.members.len();
        accounts.name_bytes += self.filters.bytes();
    }

    /// Filters that are open.
    pub fn len(&self) -> usize {
        self.filters.len() as usize
    }

    /// Whether this filter has members.
    pub fn has(&self, filter: &[u8]) -> bool {
        self.filters.find(filter).is_some()
    }

    /// The filter of a row.
    pub fn name(&self, row: u32) -> Vec<u8> {
        self.filters.name(row)
    }

    /// Adds a member; returns the filter's row and the member's place.
    ///
    /// # Errors
    /// When the filter is not taken.
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
        let ended = Some(self.filters.name(row));
        self.filters.close(row);
        Left { moved: None, ended }
    }

    /// Calls `each` with every member of a filter that matches the topic.
    pub fn each(&self, topic: &[u8], mut each: impl FnMut(Member)) {
        self.filters.matches(topic, |row| {
            match self.members.get(self.filters.value(row)) {
                Members::One(member) => each(*member),
                Members::Many(all) => all.iter().copied().for_each(&mut each),
            }
        });
    }
}

/// One filter of a connection.
pub struct Part {
    /// Its row; `NONE` in a free place.
    pub row: u32,
    /// The place among the filter's members.
    pub place: u32,
    /// The serial of its group.
    pub group: u32,
    /// The protocol's number.
    pub id: u32,
}

/// How far a group is at one home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// What was seen.
    pub offset: u64,
    /// See [`crate::mail::MatchPage`].
    pub from: u64,
    /// See [`crate::mail::MatchPage`].
    pub base: u64,
    /// The life of the log.
    pub epoch: u32,
    /// Live messages are its own.
    pub live: bool,
    /// A page is under way.
    pub asked: bool,
}

/// Filters that were subscribed together.
pub struct Group {
    /// Its life.
    pub serial: u32,
    /// By home; empty when all are live.
    pub homes: Vec<At>,
}

impl Group {
    /// Whether what this home tells is the group's own.
    pub fn is_live(&self, home: ShardId) -> bool {
        self.homes.get(home as usize).is_none_or(|at| at.live)
    }
}

/// The filters of a connection.
#[derive(Default)]
pub struct Filtered {
    /// By place; a place is used again.
    pub parts: Vec<Part>,
    /// In no order.
    pub groups: Vec<Group>,
    /// Groups so far.
    pub serials: u32,
}

impl Filtered {
    /// The group with this serial.
    pub fn group(&self, serial: u32) -> Option<&Group> {
        self.groups.iter().find(|group| group.serial == serial)
    }

    /// The group with this serial.
    pub fn group_mut(&mut self, serial: u32) -> Option<&mut Group> {
        self.groups.iter_mut().find(|group| group.serial == serial)
    }

    /// The rows of a group's filters.
    pub fn rows(&self, serial: u32) -> impl Iterator<Item = u32> {
        let of = move |part: &&Part| part.row != NONE && part.group == serial;
        self.parts.iter().filter(of).map(|part| part.row)
    }

    /// Whether live messages of this home are the part's own.
    pub fn is_live(&self, part: u32, home: ShardId) -> bool {
        let part = self
            .parts
            .get(part as usize)
            .filter(|part| part.row != NONE);
        part.is_some_and(|part| {
            self.group(part.group)
                .is_some_and(|group| group.is_live(home))
        })
    }
}
