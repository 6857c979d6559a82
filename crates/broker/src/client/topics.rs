//! The topics that a shard's connections subscribe to, and the members (subscribed connections) of each topic.
//!
//! A single member is stored in the topic's row. Several members are a dense array, and each member knows its place in the array.
//! While a fan-out walks the array, a member that leaves is replaced by a tombstone, so that no place moves.
//!
//! Invariants: a row lives while it has members or unanswered attaches (subscribe requests to the home, which keeps the topic).
//! Each use of a row has another serial, so mail for a former use is ignored.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::base::planted::{self, Fault};
use crate::budget::stats::Accounts;
use crate::store::blobs::{Blob, BlobOwner};
use crate::store::index::{Index, chained};
use crate::store::names::Names;
use crate::store::slab::{NONE, SideTable, Slab, SlabRow};

const HAS_SET: u8 = 1;

/// The row of a topic at a carrier (a shard with subscribers).
pub struct CarrierTopic {
    /// The keyed hash of the name.
    pub hash: u32,
    next: u32,
    name: Blob,
    /// The connection of the only member, or the set.
    members: u32,
    /// The number of first attaches that the home has not answered.
    pub pending_attaches: u32,
    /// Counts the uses of the row.
    pub serial: u16,
    flags: u8,
}

const _: () = assert!(size_of::<CarrierTopic>() == 24);

impl SlabRow for CarrierTopic {
    fn vacant(next: u32) -> Self {
        CarrierTopic {
            hash: 0,
            next,
            name: Blob::NONE,
            members: NONE,
            pending_attaches: 0,
            serial: 0,
            flags: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
    fn inherit(&mut self, former: &Self) {
        self.serial = former.serial.wrapping_add(1);
    }
}

impl BlobOwner for CarrierTopic {
    fn blob_mut(&mut self) -> Option<&mut Blob> {
        Some(&mut self.name)
    }
}

chained!(CarrierTopic);

/// The members of a topic that has had more than one.
#[derive(Default)]
struct MemberSet {
    members: Vec<u32>,
    is_walked: bool,
    tombstones: u32,
}

/// A member that was moved to another place in its set.
pub struct MovedMember {
    /// The connection.
    pub slot: u32,
    /// Its new place.
    pub index: u32,
}

/// All topics of a carrier.
#[derive(Default)]
pub struct Topics {
    rows: Slab<CarrierTopic>,
    index: Index,
    names: Names,
    sets: SideTable<MemberSet>,
}

impl Topics {
    /// Whether code has looked for a row that does not exist, since the last call.
    pub fn take_missed(&self) -> bool {
        self.rows.take_missed() || self.sets.take_missed()
    }

    /// Adds the counts and bytes of this table to `accounts`.
    pub fn add_to_accounts(&self, accounts: &mut Accounts) {
        accounts.carrier_topics = self.rows.len();
        accounts.carrier_sets = self.sets.len();
        accounts.name_bytes += self.names.bytes();
    }

    /// The topic with this name, if it has a row.
    pub fn find(&self, hash: u32, name: &[u8]) -> Option<u32> {
        let has_name = |row: &CarrierTopic| self.names.get(row.name) == name;
        self.index.find(&self.rows, hash, has_name)
    }

    /// The bytes of the rows and their index.
    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.index.bytes() + self.sets.bytes()
    }

    /// Finds a topic, or creates its row.
    pub fn find_or_create(&mut self, hash: u32, name: &[u8]) -> u32 {
        if let Some(topic) = self.find(hash, name) {
            return topic;
        }
        let mut row = CarrierTopic::vacant(NONE);
        row.hash = hash;
        self.names.compact(&mut self.rows);
        row.name = self.names.insert(name);
        let topic = self.rows.insert(row);
        self.index.insert(&mut self.rows, topic);
        topic
    }

    /// The topic's row.
    pub fn get(&self, topic: u32) -> &CarrierTopic {
        self.rows.get(topic)
    }

    /// The topic's row, mutably.
    pub fn get_mut(&mut self, topic: u32) -> &mut CarrierTopic {
        self.rows.get_mut(topic)
    }

    /// Whether the row is still in the use with this serial.
    #[inline]
    pub fn is_current(&self, topic: u32, serial: u16) -> bool {
        let row = self.rows.get(topic);
        (row.serial == serial || planted::is(Fault::OldSerial)) && row.name != Blob::NONE
    }

    /// The topic's name.
    pub fn name(&self, topic: u32) -> &[u8] {
        self.names.get(self.rows.get(topic).name)
    }

    /// Adds a member. Returns the member's place.
    pub fn add_member(&mut self, topic: u32, conn: u32) -> u32 {
        let row = self.rows.get_mut(topic);
        if row.flags & HAS_SET != 0 {
            let set = self.sets.get_mut(row.members);
            set.members.push(conn);
            return set.members.len() as u32 - 1;
        }
        if row.members == NONE {
            row.members = conn;
            return 0;
        }
        let members = alloc::vec![row.members, conn];
        row.members = self.sets.insert(MemberSet {
            members,
            ..MemberSet::default()
        });
        row.flags |= HAS_SET;
        1
    }

    /// Removes the member at this place. Returns the member that takes the place, if any.
    #[must_use]
    pub fn remove_member(&mut self, topic: u32, index: u32) -> Option<MovedMember> {
        let row = self.rows.get_mut(topic);
        if row.flags & HAS_SET == 0 {
            row.members = NONE;
            return None;
        }
        let set = self.sets.get_mut(row.members);
        if set.is_walked && !planted::is(Fault::NoTombstone) {
            set.members[index as usize] = NONE;
            set.tombstones += 1;
            return None;
        }
        set.members.swap_remove(index as usize);
        if let Some(conn) = set.members.get(index as usize) {
            return Some(MovedMember { slot: *conn, index });
        }
        if set.members.is_empty() {
            self.sets.remove(row.members);
            row.members = NONE;
            row.flags &= !HAS_SET;
        }
        None
    }

    /// The number of places that a walk over the members visits.
    #[inline]
    pub fn place_count(&self, topic: u32) -> u32 {
        let row = self.rows.get(topic);
        match (row.flags & HAS_SET != 0, row.members) {
            (true, set) => self.sets.get(set).members.len() as u32,
            (false, NONE) => 0,
            (false, _) => 1,
        }
    }

    /// The member at a place. `None` if the member has left.
    #[inline]
    pub fn member(&self, topic: u32, place: u32) -> Option<u32> {
        let row = self.rows.get(topic);
        let conn = if row.flags & HAS_SET != 0 {
            self.sets.get(row.members).members[place as usize]
        } else {
            row.members
        };
        (conn != NONE).then_some(conn)
    }

    /// The member at a place of a walk, or `NONE` if the member has left. `None` after the last place.
    #[inline]
    pub fn member_or_gap(&self, topic: u32, place: u32) -> Option<u32> {
        let row = self.rows.get(topic);
        if row.flags & HAS_SET != 0 {
            let members = &self.sets.get(row.members).members;
            return members.get(place as usize).copied();
        }
        (place == 0 && row.members != NONE).then_some(row.members)
    }

    /// The only member of a topic without a set, or `NONE`. The row may be free.
    #[inline]
    pub fn only_member(&self, topic: u32) -> Option<u32> {
        let row = self.rows.get(topic);
        (row.flags & HAS_SET == 0).then_some(row.members)
    }

    /// Whether most places of a walk belong to members that have left.
    pub fn is_sparse(&self, topic: u32) -> bool {
        let row = self.rows.get(topic);
        if row.flags & HAS_SET == 0 {
            return false;
        }
        let set = self.sets.get(row.members);
        set.tombstones as usize * 2 > set.members.len()
    }

    /// Begins a walk: a member that leaves from now on is replaced by a tombstone.
    pub fn begin_walk(&mut self, topic: u32) {
        let row = self.rows.get(topic);
        if row.flags & HAS_SET != 0 {
            self.sets.get_mut(row.members).is_walked = true;
        }
    }

    /// Ends a walk: fills the places of members that have left, and calls `moved` for the members that fill them. Other members,
    /// which may be very many, keep their places.
    pub fn end_walk(&mut self, topic: u32, mut moved: impl FnMut(MovedMember)) {
        let row = self.rows.get_mut(topic);
        if row.flags & HAS_SET == 0 {
            return;
        }
        let set = self.sets.get_mut(row.members);
        set.is_walked = false;
        if set.tombstones == 0 {
            return;
        }
        let mut gaps_left = core::mem::take(&mut set.tombstones);
        let mut index = 0;
        while gaps_left > 0 && index < set.members.len() {
            if set.members[index] != NONE {
                index += 1;
                continue;
            }
            gaps_left -= 1;
            set.members.swap_remove(index);
            if let Some(conn) = set.members.get(index).filter(|conn| **conn != NONE) {
                moved(MovedMember {
                    slot: *conn,
                    index: index as u32,
                });
            }
        }
        if set.members.is_empty() {
            self.sets.remove(row.members);
            row.members = NONE;
            row.flags &= !HAS_SET;
        }
    }

    /// Frees the row if it has no members and no unanswered attaches.
    pub fn free_if_unused(&mut self, topic: u32) {
        let row = self.rows.get(topic);
        if row.members != NONE || row.pending_attaches > 0 {
            return;
        }
        self.index.remove(&mut self.rows, topic);
        let row = self.rows.remove(topic);
        self.names.remove(row.name);
    }
}
