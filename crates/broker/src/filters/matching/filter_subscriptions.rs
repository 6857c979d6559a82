//! The subscriptions of one connection by filter: its parts and groups (see the parent module), and how far each group has read.
//!
//! An *epoch* is a number in each position. Each start on the log begins a new epoch.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::store::slab::NONE;

/// A part: the subscription of a connection to one filter.
pub struct FilterPart {
    /// The row of the filter; `NONE` if this entry is free.
    pub row: u32,
    /// The index of the connection among the filter's members.
    pub member_index: u32,
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
    pub is_live: bool,
    /// Whether a page (a run of past messages) is requested and has not arrived. Also set if the offset is `RETAINED_SENT`, so that no page is requested.
    pub is_requested: bool,
    /// Whether the first page, which tells where the subscription begins, has not arrived yet.
    pub awaits_first_page: bool,
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
        self.positions
            .iter()
            .any(|at| !at.is_live && !at.is_requested)
    }

    /// Whether the group takes live messages of this partition.
    pub fn is_live(&self, partition: PartitionId) -> bool {
        self.positions
            .get(usize::from(partition))
            .is_none_or(|at| at.is_live)
    }
}

/// The subscriptions of a connection by filter. Look-ups are by index or binary search, so many filters cost little.
pub struct FilterSubscriptions {
    /// The parts, by index. Free entries are reused.
    parts: Vec<FilterPart>,
    /// The groups, sorted by serial.
    groups: Vec<Group>,
    /// The serial of the next group.
    next_serial: u32,
    /// The first free entry of `parts`.
    free: u32,
    /// The number of groups that are not live in all partitions.
    groups_behind: u32,
}

impl Default for FilterSubscriptions {
    fn default() -> Self {
        FilterSubscriptions {
            parts: Vec::new(),
            groups: Vec::new(),
            next_serial: 0,
            free: NONE,
            groups_behind: 0,
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
        let serial = self.next_serial;
        self.next_serial += 1;
        self.groups.push(Group {
            serial,
            first: NONE,
            newest,
            positions: Vec::new(),
        });
        serial
    }

    /// The index that the next part will have.
    pub fn next_index(&self) -> u32 {
        match self.free {
            NONE => self.parts.len() as u32,
            free => free,
        }
    }

    /// Adds a part to a group, at the index [`Self::next_index`]. `member_index` is the connection's index among the filter's members.
    pub fn add(&mut self, serial: u32, row: u32, member_index: u32, id: u32) {
        let index = self.next_index();
        let Some(group) = self.index_of(serial).map(|index| &mut self.groups[index]) else {
            return;
        };
        let next = core::mem::replace(&mut group.first, index);
        let part = FilterPart {
            row,
            member_index,
            group: serial,
            id,
            next,
        };
        match self.parts.get_mut(index as usize) {
            Some(free) => {
                self.free = free.next;
                *free = part;
            }
            None => self.parts.push(part),
        }
    }

    /// Removes a part, and its group if no part of it is left. Returns the filter's row and the index among the filter's members; `None` if the entry is
    /// free.
    pub fn remove(&mut self, index: u32) -> Option<(u32, u32)> {
        let part = self.parts.get_mut(index as usize)?;
        if part.row == NONE {
            return None;
        }
        let (row, member_index, serial) = (part.row, part.member_index, part.group);
        part.row = NONE;
        let next = core::mem::replace(&mut part.next, self.free);
        self.free = index;
        let group = self.index_of(serial).map(|index| &mut self.groups[index])?;
        let mut before = group.first;
        if before == index {
            group.first = next;
        } else {
            while let Some(part) = self.parts.get_mut(before as usize) {
                if part.next == index {
                    part.next = next;
                    break;
                }
                before = part.next;
            }
        }
        if group.first == NONE {
            self.end_group(serial);
        }
        Some((row, member_index))
    }

    /// Removes a group without parts, if it exists.
    pub fn end_group(&mut self, serial: u32) {
        let Some(group_index) = self.index_of(serial) else {
            return;
        };
        let group = self.groups.remove(group_index);
        self.groups_behind -= u32::from(!group.positions.is_empty());
        if self.groups.is_empty() {
            // No part is left, so the memory is freed.
            (self.parts, self.free) = (Vec::new(), NONE);
        }
    }

    /// Sets a part's index among the members of its filter.
    pub fn set_member_index(&mut self, index: u32, member_index: u32) {
        if let Some(part) = self.parts.get_mut(index as usize) {
            part.member_index = member_index;
        }
    }

    fn index_of(&self, serial: u32) -> Option<usize> {
        self.groups
            .binary_search_by_key(&serial, |group| group.serial)
            .ok()
    }

    /// The groups, sorted by serial.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub fn group(&self, serial: u32) -> Option<&Group> {
        self.index_of(serial).map(|index| &self.groups[index])
    }

    /// How far a group has read this partition, to be changed; `None` if the group is live in all partitions.
    pub fn position_mut(
        &mut self,
        serial: u32,
        partition: PartitionId,
    ) -> Option<&mut GroupPosition> {
        let index = self.index_of(serial)?;
        self.groups[index].positions.get_mut(usize::from(partition))
    }

    /// Sets how far a group has read, by partition.
    pub fn set_positions(&mut self, serial: u32, positions: Vec<GroupPosition>) {
        let Some(group) = self.index_of(serial).map(|index| &mut self.groups[index]) else {
            return;
        };
        self.groups_behind -= u32::from(!group.positions.is_empty());
        group.positions = match positions.iter().all(|at| at.is_live) {
            true => Vec::new(),
            false => positions,
        };
        self.groups_behind += u32::from(!group.positions.is_empty());
    }

    /// Drops the positions of a group, if the group is live in all partitions by now.
    pub fn drop_positions_if_live(&mut self, serial: u32) {
        let positions = (self.index_of(serial)).map(|index| &mut self.groups[index].positions);
        if let Some(positions) = positions {
            let positions = core::mem::take(positions);
            self.groups_behind -= u32::from(!positions.is_empty());
            self.set_positions(serial, positions);
        }
    }

    /// The partition of which the group should request its next page. The partitions in which the group is behind take turns, so that a busy partition does
    /// not block the others. `None` while a page of the group is in flight: this bounds the bytes in flight.
    pub fn next_behind(&mut self, serial: u32) -> Option<PartitionId> {
        let index = self.index_of(serial)?;
        let positions = &mut self.groups[index].positions;
        if positions
            .iter()
            .any(|at| at.is_requested && at.offset != RETAINED_SENT)
        {
            return None;
        }
        let is_waiting = |at: &GroupPosition| !at.is_live && !at.is_requested;
        let next = positions
            .iter()
            .position(|at| is_waiting(at) && !at.had_turn);
        let next = next.or_else(|| {
            positions.iter_mut().for_each(|at| at.had_turn = false);
            positions.iter().position(is_waiting)
        });
        next.map(|partition| partition as PartitionId)
    }

    /// The groups that are behind in a partition and have not requested its next page, the newest first. There may be thousands of older groups, which are
    /// live, and are not visited.
    pub fn waiting_groups(&self) -> impl Iterator<Item = &Group> {
        let behind = (self.groups.iter().rev()).filter(|group| !group.positions.is_empty());
        behind
            .take(self.groups_behind as usize)
            .filter(|group| group.is_waiting())
    }

    /// Whether any group is behind in a partition and has not requested its next page.
    pub fn has_waiting_group(&self) -> bool {
        self.waiting_groups().next().is_some()
    }

    /// The part with this index, unless it is free.
    pub fn part(&self, index: u32) -> Option<&FilterPart> {
        self.parts
            .get(index as usize)
            .filter(|part| part.row != NONE)
    }

    /// All parts and their indexes.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &FilterPart)> {
        let all = (0..).zip(&self.parts);
        all.filter(|(_, part)| part.row != NONE)
    }

    /// The parts of a group and their indexes, the last added part first.
    pub fn parts_of(&self, serial: u32) -> impl Iterator<Item = (u32, &FilterPart)> {
        let mut next = self.group(serial).map_or(NONE, |group| group.first);
        core::iter::from_fn(move || {
            let index = next;
            let part = self.parts.get(index as usize)?;
            next = part.next;
            Some((index, part))
        })
    }

    /// Whether a part takes live messages of this partition.
    #[inline]
    pub fn is_live(&self, index: u32, partition: PartitionId) -> bool {
        self.part(index).is_some_and(|part| {
            self.groups_behind == 0
                || self
                    .group(part.group)
                    .is_some_and(|group| group.is_live(partition))
        })
    }
}
