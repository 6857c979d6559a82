//! The subscriptions of one connection by filter: its parts and groups (see the parent module), and how far each group has read.
//!
//! An *epoch* is a number in each position, which changes with each start on the log.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::store::slab::NONE;

/// A part: the subscription of a connection to one filter.
pub struct FilterPart {
    /// The row of the filter; `NONE` if this entry is free.
    pub row: u32,
    /// The index of the connection among the filter's members.
    pub place: u32,
    /// The serial of the part's group.
    pub group: u32,
    /// The number that the protocol chose for the part.
    pub id: u32,
    /// The next part of the group's list. In a free entry: the next free entry.
    next: u32,
}

/// How far a group has read in one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupPosition {
    /// The offset up to which the group has read the partition; `RETAINED_SENT` if it reads nothing more of the partition.
    pub offset: u64,
    /// The offset at which the subscription began ([`crate::mail::FilterPage`]).
    pub snapshot_end: u64,
    /// The number of the last loss before the subscription began ([`crate::mail::FilterPage`]).
    pub losses_before: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// Whether the group takes live messages of the partition.
    pub live: bool,
    /// Whether a page (a run of past messages) is in flight. Also set if the offset is `RETAINED_SENT`, so that no page is requested.
    pub asked: bool,
    /// Whether the first page, which tells where the subscription begins, has not arrived yet.
    pub new: bool,
    /// Whether the partition was already served in the current round (`next_behind`).
    pub had_turn: bool,
}

/// The offset of a group that reads only retained messages, after all retained messages of a partition were sent. The group requests no
/// more pages of that partition.
pub const RETAINED_SENT: u64 = u64::MAX;

const _: () = assert!(size_of::<GroupPosition>() == 32);

/// A group: the parts of a connection that were subscribed together.
pub struct Group {
    /// The number of the group. The connection never reuses it.
    pub serial: u32,
    /// The head of the list of parts: the part that joined last.
    first: u32,
    /// The number of newest messages of each topic with which the group began; 0 if the group began otherwise.
    pub newest: u32,
    positions: Vec<GroupPosition>,
}

impl Group {
    /// By partition: how far the group has read. Empty if the group is live in all partitions.
    pub fn positions(&self) -> &[GroupPosition] {
        &self.positions
    }

    /// Whether the group is behind in a partition and has not requested its next page.
    pub fn is_waiting(&self) -> bool {
        self.positions.iter().any(|at| !at.live && !at.asked)
    }

    /// Whether the group takes live messages of this partition.
    pub fn is_live(&self, partition: PartitionId) -> bool {
        self.positions
            .get(usize::from(partition))
            .is_none_or(|at| at.live)
    }
}

/// The subscriptions of a connection by filter. Look-ups are by index or binary search, so many filters cost little.
pub struct FilterSubscriptions {
    /// The parts, by index. Free entries are reused.
    parts: Vec<FilterPart>,
    /// The groups, sorted by serial.
    groups: Vec<Group>,
    /// The serial of the next group.
    serials: u32,
    /// The first free entry of `parts`.
    free: u32,
    /// The number of groups that are not live in all partitions.
    behind: u32,
}

impl Default for FilterSubscriptions {
    fn default() -> Self {
        FilterSubscriptions {
            parts: Vec::new(),
            groups: Vec::new(),
            serials: 0,
            free: NONE,
            behind: 0,
        }
    }
}

impl FilterSubscriptions {
    /// Bytes, including the struct. Visits each group.
    pub fn bytes(&self) -> usize {
        let positions: usize = (self.groups.iter())
            .map(|group| group.positions.capacity())
            .sum();
        size_of::<FilterSubscriptions>()
            + self.parts.capacity() * size_of::<FilterPart>()
            + self.groups.capacity() * size_of::<Group>()
            + positions * size_of::<GroupPosition>()
    }

    /// The number of entries for parts, used and free.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Adds a group without parts, live in all partitions. Returns its serial. `newest`: see [`Group::newest`].
    pub fn add_group(&mut self, newest: u32) -> u32 {
        let serial = self.serials;
        self.serials += 1;
        self.groups.push(Group {
            serial,
            first: NONE,
            newest,
            positions: Vec::new(),
        });
        serial
    }

    /// The index that the next part will have.
    pub fn next_place(&self) -> u32 {
        match self.free {
            NONE => self.parts.len() as u32,
            free => free,
        }
    }

    /// Adds a part to a group, at the index [`Self::next_place`]. `place` is the connection's index among the filter's members.
    pub fn add(&mut self, serial: u32, row: u32, place: u32, id: u32) {
        let at = self.next_place();
        let Some(group) = self.number_of(serial).map(|n| &mut self.groups[n]) else {
            return;
        };
        let next = core::mem::replace(&mut group.first, at);
        let part = FilterPart {
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

    /// Removes a part, and its group if no part of it is left. Returns the filter's row and the index among the filter's members; `None` if the entry is
    /// free.
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

    /// Removes a group without parts, if it exists.
    pub fn end_group(&mut self, serial: u32) {
        let Some(number) = self.number_of(serial) else {
            return;
        };
        let group = self.groups.remove(number);
        self.behind -= u32::from(!group.positions.is_empty());
        if self.groups.is_empty() {
            // No part is left, so the memory is freed.
            (self.parts, self.free) = (Vec::new(), NONE);
        }
    }

    /// Sets a part's index among the members of its filter.
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

    /// The groups, sorted by serial.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub fn group(&self, serial: u32) -> Option<&Group> {
        self.number_of(serial).map(|number| &self.groups[number])
    }

    /// How far a group has read this partition, to be changed; `None` if the group is live in all partitions.
    pub fn at_mut(&mut self, serial: u32, partition: PartitionId) -> Option<&mut GroupPosition> {
        let number = self.number_of(serial)?;
        self.groups[number]
            .positions
            .get_mut(usize::from(partition))
    }

    /// Sets how far a group has read, by partition.
    pub fn set_positions(&mut self, serial: u32, positions: Vec<GroupPosition>) {
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

    /// Drops the positions of a group, if the group is live in all partitions by now.
    pub fn settle(&mut self, serial: u32) {
        let positions = (self.number_of(serial)).map(|n| &mut self.groups[n].positions);
        if let Some(positions) = positions {
            let positions = core::mem::take(positions);
            self.behind -= u32::from(!positions.is_empty());
            self.set_positions(serial, positions);
        }
    }

    /// The partition of which the group should request its next page. The partitions in which the group is behind take turns, so that a busy partition does
    /// not block the others. `None` while a page of the group is in flight: this bounds the bytes in flight.
    pub fn next_behind(&mut self, serial: u32) -> Option<PartitionId> {
        let number = self.number_of(serial)?;
        let positions = &mut self.groups[number].positions;
        if positions
            .iter()
            .any(|at| at.asked && at.offset != RETAINED_SENT)
        {
            return None;
        }
        let waits = |at: &GroupPosition| !at.live && !at.asked;
        let next = positions.iter().position(|at| waits(at) && !at.had_turn);
        let next = next.or_else(|| {
            positions.iter_mut().for_each(|at| at.had_turn = false);
            positions.iter().position(waits)
        });
        next.map(|partition| partition as PartitionId)
    }

    /// The groups that are behind in a partition and have not requested its next page, the newest first. There may be thousands of older groups, which are
    /// live, and are not visited.
    pub fn waiting(&self) -> impl Iterator<Item = &Group> {
        let behind = (self.groups.iter().rev()).filter(|group| !group.positions.is_empty());
        behind
            .take(self.behind as usize)
            .filter(|group| group.is_waiting())
    }

    /// Whether any group is behind in a partition and has not requested its next page.
    pub fn is_behind(&self) -> bool {
        self.waiting().next().is_some()
    }

    /// The part with this index, unless it is free.
    pub fn part(&self, at: u32) -> Option<&FilterPart> {
        self.parts.get(at as usize).filter(|part| part.row != NONE)
    }

    /// All parts and their indexes.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &FilterPart)> {
        let all = (0..).zip(&self.parts);
        all.filter(|(_, part)| part.row != NONE)
    }

    /// The parts of a group and their indexes, the last added part first.
    pub fn parts_of(&self, serial: u32) -> impl Iterator<Item = (u32, &FilterPart)> {
        let mut at = self.group(serial).map_or(NONE, |group| group.first);
        core::iter::from_fn(move || {
            let here = at;
            let part = self.parts.get(here as usize)?;
            at = part.next;
            Some((here, part))
        })
    }

    /// Whether a part takes live messages of this partition.
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
