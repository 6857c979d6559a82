//! The census of who makes the shard hold how many bytes: a walk over the connections, some rows in a turn, that adds up the bytes of
//! each address or user. It runs while the account is near its limit, and finds the connections of the one that holds most.
//!
//! Invariant: what the census says comes from a whole walk, never from a part of one.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use crate::base::ids::ConnId;
use crate::budget::admission::Party;

/// Rows of one step of the census: some 100 us. A turn takes a few steps at most.
pub(super) const ROWS_PER_TURN: u32 = 4096;

/// The bytes that each address or user makes this shard hold.
#[derive(Default)]
pub(crate) struct Census {
    /// An input of this turn has made room already.
    looked: bool,
    /// The next row of the walk under way.
    next: u32,
    counting: BTreeMap<Party, usize>,
    /// What all of them hold, as the last whole walk found it.
    sum_bytes: usize,
    /// Those that hold more than a little, likewise.
    heavy: BTreeMap<Party, usize>,
    /// The one that held most then.
    heaviest: Option<Party>,
    /// The connections of `heaviest`, as far as the walk under way has met them, with the bytes that each holds.
    met: Vec<(usize, ConnId)>,
    /// All connections of `heaviest` that a whole walk has met, the largest last: they end.
    ends: Vec<(usize, ConnId)>,
}

impl Census {
    /// A turn begins.
    pub(super) fn begin_turn(&mut self) {
        self.looked = false;
    }

    /// Whether an input may make room: once in a turn.
    pub(super) fn may_look(&mut self) -> bool {
        !core::mem::replace(&mut self.looked, true)
    }

    /// Bytes that this address or user holds; 0 where they are few.
    pub(super) fn held_by(&self, party: Party) -> usize {
        self.heavy.get(&party).copied().unwrap_or(0)
    }

    /// Whether some address or user holds more than a little.
    pub(super) fn has_heavy(&self) -> bool {
        !self.heavy.is_empty()
    }

    /// What all connections hold.
    pub(super) fn sum_bytes(&self) -> usize {
        self.sum_bytes
    }

    /// Whether a walk is under way, or connections are to end.
    pub(super) fn is_under_way(&self) -> bool {
        self.next > 0 || self.has_ends()
    }

    /// Whether connections are to end.
    pub(super) fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }

    /// The next connection that is to end.
    pub(super) fn next_end(&mut self) -> Option<ConnId> {
        self.ends.pop().map(|(_, conn)| conn)
    }

    /// There is room again: no more connections end.
    pub(super) fn forget_ends(&mut self) {
        self.ends.clear();
    }

    /// The account is calm: the census begins anew when it is needed.
    pub(super) fn end(&mut self) {
        if self.next > 0 || self.sum_bytes > 0 {
            *self = Census::default();
        }
    }

    /// The rows that come next, of a table that ends at `end`.
    pub(super) fn rows(&self, end: u32) -> Range<u32> {
        self.next..end.min(self.next + ROWS_PER_TURN)
    }

    /// A connection of this address or user holds so many bytes.
    pub(super) fn count(&mut self, party: Party, conn: ConnId, bytes: usize) {
        *self.counting.entry(party).or_default() += bytes;
        if self.heaviest == Some(party) {
            self.met.push((bytes, conn));
        }
    }

    /// The rows before `until` were counted, of a table that ends at `end`; up to `little_bytes` are few.
    pub(super) fn counted(&mut self, until: u32, end: u32, little_bytes: usize) {
        self.next = until;
        if until < end {
            return;
        }
        self.next = 0;
        self.ends = core::mem::take(&mut self.met);
        self.ends.sort_unstable_by_key(|(bytes, _)| *bytes);
        let mut all = core::mem::take(&mut self.counting);
        self.sum_bytes = all.values().sum();
        let heaviest = all.iter().max_by_key(|(_, bytes)| **bytes);
        self.heaviest = heaviest.map(|(party, _)| *party);
        all.retain(|_, bytes| *bytes > little_bytes);
        self.heavy = all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn conn(slot: u32) -> ConnId {
        ConnId {
            slot,
            generation: 0,
        }
    }

    #[test]
    fn the_second_walk_names_the_connections_of_the_heaviest_the_largest_first() {
        let mut census = Census::default();
        let (light, heavy) = (Party::user("light", 1), Party::user("heavy", 1));
        let walk = |census: &mut Census| {
            assert_eq!(census.rows(3), 0..3);
            census.count(heavy, conn(0), 500);
            census.count(light, conn(1), 600);
            census.count(heavy, conn(2), 400);
            census.counted(3, 3, 600);
        };
        walk(&mut census);
        assert_eq!((census.held_by(heavy), census.held_by(light)), (900, 0));
        assert!(census.has_heavy() && !census.is_under_way());
        assert_eq!(census.sum_bytes(), 1500);
        walk(&mut census);
        assert_eq!(census.next_end(), Some(conn(0)));
        assert_eq!(census.next_end(), Some(conn(2)));
        assert_eq!(census.next_end(), None);
    }

    #[test]
    fn a_walk_in_part_says_nothing() {
        let mut census = Census::default();
        let (end, party) = (ROWS_PER_TURN + 1, Party::user("one", 1));
        assert_eq!(census.rows(end), 0..ROWS_PER_TURN);
        census.count(party, conn(0), 500);
        census.counted(ROWS_PER_TURN, end, 10);
        assert!(census.is_under_way() && census.held_by(party) == 0);
        assert_eq!(census.rows(end), ROWS_PER_TURN..end);
        census.counted(end, end, 10);
        assert_eq!(census.held_by(party), 500);
        census.end();
        assert_eq!(census.held_by(party), 0);
    }

    #[test]
    fn one_input_of_a_turn_makes_room() {
        let mut census = Census::default();
        assert!(census.may_look() && !census.may_look());
        census.begin_turn();
        assert!(census.may_look());
    }
}
