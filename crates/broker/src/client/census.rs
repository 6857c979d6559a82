//! The census counts the bytes that each party (address or user) makes the shard hold. It walks over the connections and the
//! sessions of absent clients, some rows in each turn. It runs while the memory account is near its limit, and finds the sessions
//! and connections of the party that holds most. A party that holds at most `little_bytes` (a setting) counts as holding little.
//!
//! Invariant: results come from a complete walk, never from a part of one.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use crate::base::ids::ConnId;
use crate::budget::admission::Party;
use crate::mail::session::SessionId;

/// The rows of one step of the census, which takes some 100 us. A turn takes a few steps at most.
pub(crate) const ROWS_PER_TURN: u32 = 4096;

/// Something that holds bytes for a party, and can be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A connection.
    Connection(ConnId),
    /// A session whose client is away.
    Session(SessionId),
}

impl Holder {
    /// The sort key of a holder. The highest key ends first: sessions, since no client is connected to them, then larger holders.
    fn order(&self, bytes: usize) -> (bool, usize) {
        (matches!(self, Holder::Session(_)), bytes)
    }
}

/// The bytes that each party makes this shard hold.
#[derive(Default)]
pub(crate) struct Census {
    /// An input of this turn has made room already.
    looked: bool,
    /// The next row of the current walk.
    next: u32,
    counting: BTreeMap<Party, usize>,
    /// The bytes that all parties hold, by the last complete walk.
    sum_bytes: usize,
    /// The parties that hold more than a little, by the last complete walk.
    heavy: BTreeMap<Party, usize>,
    /// The party that held most in the last complete walk.
    heaviest: Option<Party>,
    /// The holders of `heaviest` that the current walk has found, with the bytes that each holds.
    met: Vec<(usize, Holder)>,
    /// The holders of `heaviest` that a complete walk has found, in the order of [`Holder::order`]. They are to end.
    ends: Vec<(usize, Holder)>,
}

impl Census {
    /// Begins a turn.
    pub(crate) fn begin_turn(&mut self) {
        self.looked = false;
    }

    /// Whether an input may make room. True once in a turn.
    pub(crate) fn may_make_room(&mut self) -> bool {
        !core::mem::replace(&mut self.looked, true)
    }

    /// The bytes that this party holds, or 0 if it holds little.
    pub(crate) fn held_by(&self, party: Party) -> usize {
        self.heavy.get(&party).copied().unwrap_or(0)
    }

    /// Whether some party holds more than a little.
    pub(crate) fn has_heavy(&self) -> bool {
        !self.heavy.is_empty()
    }

    /// The bytes that all parties hold.
    pub(crate) fn sum_bytes(&self) -> usize {
        self.sum_bytes
    }

    /// Whether a walk is unfinished, or holders are to end.
    pub(crate) fn is_under_way(&self) -> bool {
        self.next > 0 || self.has_ends()
    }

    /// Whether holders are to end.
    pub(crate) fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Takes the next holder that is to end.
    pub(crate) fn next_end(&mut self) -> Option<Holder> {
        self.ends.pop().map(|(_, holder)| holder)
    }

    /// Ends no more holders, because there is room again.
    pub(crate) fn forget_ends(&mut self) {
        self.ends.clear();
    }

    /// Forgets all counts, because the account is not near its limit. The census starts again when it is needed.
    pub(crate) fn end(&mut self) {
        if self.next > 0 || self.sum_bytes > 0 {
            *self = Census::default();
        }
    }

    /// The next rows to count, of a table that ends at `end`.
    pub(crate) fn rows(&self, end: u32) -> Range<u32> {
        self.next..end.min(self.next + ROWS_PER_TURN)
    }

    /// Counts the `bytes` bytes of a connection or session of this party.
    pub(crate) fn count(&mut self, party: Party, holder: Holder, bytes: usize) {
        *self.counting.entry(party).or_default() += bytes;
        if self.heaviest == Some(party) {
            self.met.push((bytes, holder));
        }
    }

    /// Records that all rows before `until` were counted, of tables that end at `end`. A party that holds up to `little_bytes` is
    /// spared. `absent` gives the bytes that a party's sessions hold at all homes (the parts of shards that keep sessions).
    pub(crate) fn counted(
        &mut self,
        until: u32,
        end: u32,
        little_bytes: usize,
        absent: impl Fn(Party) -> usize,
    ) {
        self.next = until;
        if until < end {
            return;
        }
        self.next = 0;
        self.ends = core::mem::take(&mut self.met);
        (self.ends).sort_unstable_by_key(|(bytes, holder)| holder.order(*bytes));
        let mut all = core::mem::take(&mut self.counting);
        self.sum_bytes = all.values().sum();
        for (party, bytes) in &mut all {
            *bytes = absent(*party).max(*bytes);
        }
        let heaviest = all.iter().max_by_key(|(_, bytes)| **bytes);
        let heaviest = heaviest.map(|(party, _)| *party);
        let before = core::mem::replace(&mut self.heaviest, heaviest);
        all.retain(|_, bytes| *bytes > little_bytes);
        self.heavy = all;
        if self.has_heavy() && before.is_some_and(|party| self.held_by(party) == 0) {
            // This party held most only because the heavy parties were not there, so its holders do not end.
            self.ends.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn conn(slot: u32) -> Holder {
        Holder::Connection(ConnId {
            slot,
            generation: 0,
        })
    }

    const fn nowhere(_: Party) -> usize {
        0
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
            census.counted(3, 3, 600, nowhere);
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
    fn party_that_held_most_while_the_heavy_one_was_away_keeps_its_connections() {
        let mut census = Census::default();
        let (light, heavy) = (Party::user("light", 1), Party::user("heavy", 1));
        for heavy_bytes in [0, 5_000] {
            assert_eq!(census.rows(2), 0..2);
            census.count(light, conn(0), 600);
            census.count(heavy, conn(1), heavy_bytes);
            census.counted(2, 2, 1_000, nowhere);
        }
        assert!(census.has_heavy());
        assert_eq!(census.next_end(), None);
        assert_eq!(census.rows(2), 0..2);
        census.count(light, conn(0), 600);
        census.count(heavy, conn(1), 5_000);
        census.counted(2, 2, 1_000, nowhere);
        assert_eq!(census.next_end(), Some(conn(1)));
    }

    #[test]
    fn sessions_of_the_heaviest_end_before_its_connections_and_count_what_all_homes_hold() {
        let mut census = Census::default();
        let (light, heavy) = (Party::user("light", 1), Party::user("heavy", 1));
        let absent = Holder::Session(SessionId::none(0));
        let elsewhere = |party| if party == heavy { 5_000 } else { 0 };
        for _ in 0..2 {
            assert_eq!(census.rows(3), 0..3);
            census.count(heavy, absent, 10);
            census.count(heavy, conn(1), 20);
            census.count(light, conn(2), 900);
            census.counted(3, 3, 1_000, elsewhere);
        }
        assert_eq!((census.held_by(heavy), census.held_by(light)), (5_000, 0));
        assert_eq!(census.sum_bytes(), 930);
        assert_eq!(census.next_end(), Some(absent));
        assert_eq!(census.next_end(), Some(conn(1)));
        assert_eq!(census.next_end(), None);
    }

    #[test]
    fn a_walk_in_part_says_nothing() {
        let mut census = Census::default();
        let (end, party) = (ROWS_PER_TURN + 1, Party::user("one", 1));
        assert_eq!(census.rows(end), 0..ROWS_PER_TURN);
        census.count(party, conn(0), 500);
        census.counted(ROWS_PER_TURN, end, 10, nowhere);
        assert!(census.is_under_way() && census.held_by(party) == 0);
        assert_eq!(census.rows(end), ROWS_PER_TURN..end);
        census.counted(end, end, 10, nowhere);
        assert_eq!(census.held_by(party), 500);
        census.end();
        assert_eq!(census.held_by(party), 0);
    }

    #[test]
    fn one_input_of_a_turn_makes_room() {
        let mut census = Census::default();
        assert!(census.may_make_room() && !census.may_make_room());
        census.begin_turn();
        assert!(census.may_make_room());
    }
}
