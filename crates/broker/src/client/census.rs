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
    /// An input of this turn has already tried to make room.
    has_made_room: bool,
    /// The account was at [`MemoryLevel::Tight`](crate::budget::account::MemoryLevel::Tight) or above at the last look.
    is_tight: bool,
    /// The next row of the current walk.
    next_row: u32,
    counting: BTreeMap<Party, usize>,
    /// The bytes that all parties hold, by the last complete walk.
    sum_bytes: usize,
    /// The parties that hold more than a little, by the last complete walk.
    heavy: BTreeMap<Party, usize>,
    /// The party that held most in the last complete walk.
    heaviest: Option<Party>,
    /// The holders of `heaviest` that the current walk has found, with the bytes that each holds.
    heaviest_holders: Vec<(usize, Holder)>,
    /// The holders of `heaviest` that a complete walk has found, in the order of [`Holder::order`]. They are to end.
    holders_to_end: Vec<(usize, Holder)>,
}

impl Census {
    /// Begins a turn.
    pub(crate) fn begin_turn(&mut self) {
        self.has_made_room = false;
    }

    /// Whether an input may make room. True only for the first call in a turn.
    pub(crate) fn begin_making_room(&mut self) -> bool {
        !core::mem::replace(&mut self.has_made_room, true)
    }

    /// The bytes that this party holds, or 0 if it holds little.
    pub(crate) fn heavy_bytes(&self, party: Party) -> usize {
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
        self.next_row > 0 || self.has_holders_to_end()
    }

    /// Whether holders are to end.
    pub(crate) fn has_holders_to_end(&self) -> bool {
        !self.holders_to_end.is_empty()
    }

    /// Takes the next holder that is to end.
    pub(crate) fn take_holder_to_end(&mut self) -> Option<Holder> {
        self.holders_to_end.pop().map(|(_, holder)| holder)
    }

    /// Ends no more holders, because there is room again.
    pub(crate) fn forget_holders_to_end(&mut self) {
        self.holders_to_end.clear();
    }

    /// Tells whether holders must end now. When that begins, the walk begins anew: a list that was made before may name holders that hold little now, and
    /// lack those that hold much.
    pub(crate) fn set_tight(&mut self, is_tight: bool) {
        let was_tight = core::mem::replace(&mut self.is_tight, is_tight);
        if is_tight && !was_tight {
            self.next_row = 0;
            self.counting.clear();
            self.heaviest = None;
            self.heaviest_holders.clear();
            self.holders_to_end.clear();
        }
    }

    /// Forgets all counts, because the account is not near its limit. The census starts again when it is needed.
    pub(crate) fn end(&mut self) {
        if self.next_row > 0 || self.sum_bytes > 0 {
            *self = Census::default();
        }
    }

    /// The next rows to count, of a table that ends at `end`.
    pub(crate) fn next_rows(&self, end: u32) -> Range<u32> {
        self.next_row..end.min(self.next_row + ROWS_PER_TURN)
    }

    /// Counts the `bytes` bytes of a connection or session of this party.
    pub(crate) fn count(&mut self, party: Party, holder: Holder, bytes: usize) {
        *self.counting.entry(party).or_default() += bytes;
        if self.heaviest == Some(party) {
            self.heaviest_holders.push((bytes, holder));
        }
    }

    /// Records that all rows before `until` were counted, of tables that end at `end`. A party that holds up to `little_bytes` is
    /// spared. `absent` gives the bytes that a party's sessions hold at all homes (the parts of shards that keep sessions).
    pub(crate) fn finish_step(
        &mut self,
        until: u32,
        end: u32,
        little_bytes: usize,
        absent: impl Fn(Party) -> usize,
    ) {
        self.next_row = until;
        if until < end {
            return;
        }
        self.next_row = 0;
        self.holders_to_end = core::mem::take(&mut self.heaviest_holders);
        (self.holders_to_end).sort_unstable_by_key(|(bytes, holder)| holder.order(*bytes));
        let mut counts = core::mem::take(&mut self.counting);
        self.sum_bytes = counts.values().sum();
        for (party, bytes) in &mut counts {
            *bytes = absent(*party).max(*bytes);
        }
        let heaviest = counts.iter().max_by_key(|(_, bytes)| **bytes);
        let heaviest = heaviest.map(|(party, _)| *party);
        let before = core::mem::replace(&mut self.heaviest, heaviest);
        counts.retain(|_, bytes| *bytes > little_bytes);
        self.heavy = counts;
        if self.has_heavy() && before.is_some_and(|party| self.heavy_bytes(party) == 0) {
            // This party held most only until the walk found heavier parties, so its holders do not end.
            self.holders_to_end.clear();
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
            assert_eq!(census.next_rows(3), 0..3);
            census.count(heavy, conn(0), 500);
            census.count(light, conn(1), 600);
            census.count(heavy, conn(2), 400);
            census.finish_step(3, 3, 600, nowhere);
        };
        walk(&mut census);
        assert_eq!(
            (census.heavy_bytes(heavy), census.heavy_bytes(light)),
            (900, 0)
        );
        assert!(census.has_heavy() && !census.is_under_way());
        assert_eq!(census.sum_bytes(), 1500);
        walk(&mut census);
        assert_eq!(census.take_holder_to_end(), Some(conn(0)));
        assert_eq!(census.take_holder_to_end(), Some(conn(2)));
        assert_eq!(census.take_holder_to_end(), None);
    }

    #[test]
    fn party_that_held_most_while_the_heavy_one_was_away_keeps_its_connections() {
        let mut census = Census::default();
        let (light, heavy) = (Party::user("light", 1), Party::user("heavy", 1));
        for heavy_bytes in [0, 5_000] {
            assert_eq!(census.next_rows(2), 0..2);
            census.count(light, conn(0), 600);
            census.count(heavy, conn(1), heavy_bytes);
            census.finish_step(2, 2, 1_000, nowhere);
        }
        assert!(census.has_heavy());
        assert_eq!(census.take_holder_to_end(), None);
        assert_eq!(census.next_rows(2), 0..2);
        census.count(light, conn(0), 600);
        census.count(heavy, conn(1), 5_000);
        census.finish_step(2, 2, 1_000, nowhere);
        assert_eq!(census.take_holder_to_end(), Some(conn(1)));
    }

    #[test]
    fn sessions_of_the_heaviest_end_before_its_connections_and_count_what_all_homes_hold() {
        let mut census = Census::default();
        let (light, heavy) = (Party::user("light", 1), Party::user("heavy", 1));
        let absent = Holder::Session(SessionId::none(0));
        let elsewhere = |party| if party == heavy { 5_000 } else { 0 };
        for _ in 0..2 {
            assert_eq!(census.next_rows(3), 0..3);
            census.count(heavy, absent, 10);
            census.count(heavy, conn(1), 20);
            census.count(light, conn(2), 900);
            census.finish_step(3, 3, 1_000, elsewhere);
        }
        assert_eq!(
            (census.heavy_bytes(heavy), census.heavy_bytes(light)),
            (5_000, 0)
        );
        assert_eq!(census.sum_bytes(), 930);
        assert_eq!(census.take_holder_to_end(), Some(absent));
        assert_eq!(census.take_holder_to_end(), Some(conn(1)));
        assert_eq!(census.take_holder_to_end(), None);
    }

    #[test]
    fn incomplete_walk_has_no_result() {
        let mut census = Census::default();
        let (end, party) = (ROWS_PER_TURN + 1, Party::user("one", 1));
        assert_eq!(census.next_rows(end), 0..ROWS_PER_TURN);
        census.count(party, conn(0), 500);
        census.finish_step(ROWS_PER_TURN, end, 10, nowhere);
        assert!(census.is_under_way() && census.heavy_bytes(party) == 0);
        assert_eq!(census.next_rows(end), ROWS_PER_TURN..end);
        census.finish_step(end, end, 10, nowhere);
        assert_eq!(census.heavy_bytes(party), 500);
        census.end();
        assert_eq!(census.heavy_bytes(party), 0);
    }

    #[test]
    fn one_input_of_a_turn_makes_room() {
        let mut census = Census::default();
        assert!(census.begin_making_room() && !census.begin_making_room());
        census.begin_turn();
        assert!(census.begin_making_room());
    }
}
