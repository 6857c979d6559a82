//! Backpressure while carriers (shards with subscribers) are behind: the parties (addresses or users) that have most deliveries in
//! flight must wait.
//!
//! For each turn, a home (the part of a shard that keeps topics) counts the visits (writes to sockets) that carriers must make for
//! each party's messages and requests ([`VisitsByGroup`]). While too many of its turns are in flight, the home stops the parties that
//! have at least the average in flight ([`StoppedGroups`]). Other parties continue. Every shard checks the [`Valve`] before it takes a
//! publish or a subscription.
//!
//! Parties are hashed into groups, so that a turn has few counts, however many parties it serves. Two parties are in the same group
//! with a probability of 1 in `GROUPS`, and then wait together.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::party::Party;

/// The number of groups of parties.
const GROUPS: usize = 256;

/// The visits that carriers must make for a turn, by group. A list of pairs, since most turns serve few parties. A group may occur several times.
#[derive(Debug, Default)]
pub struct VisitsByGroup(Vec<(u8, u32)>);

impl VisitsByGroup {
    /// Adds visits for this party.
    #[inline]
    pub fn add(&mut self, party: Party, visits: u32) {
        let group = party.group(GROUPS) as u8;
        match self.0.last_mut() {
            Some((last, sum)) if *last == group => *sum = sum.saturating_add(visits),
            _ => self.0.push((group, visits)),
        }
    }

    /// Removes all counts.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Bytes on the heap.
    pub fn own_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u8, u32)>()
    }
}

/// The set of groups that one home stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoppedGroups([u64; GROUPS / 64]);

impl StoppedGroups {
    /// All groups.
    pub const ALL: StoppedGroups = StoppedGroups([u64::MAX; GROUPS / 64]);

    /// The groups that have at least the average number of visits in flight. All groups, if nothing is in flight.
    pub fn heaviest<'a>(turns: impl Iterator<Item = &'a VisitsByGroup>) -> StoppedGroups {
        let mut sums = [0; GROUPS];
        for (group, visits) in turns.flat_map(|turn| &turn.0) {
            sums[usize::from(*group)] += u64::from(*visits);
        }
        let all: u64 = sums.iter().sum();
        let count = sums.iter().filter(|sum| **sum > 0).count() as u64;
        let mut heavy = StoppedGroups::default();
        for (group, sum) in sums.iter().enumerate() {
            heavy.0[group / 64] |= u64::from(sum * count >= all) << (group % 64);
        }
        heavy
    }

    /// Whether the set has any group.
    pub fn has_any(&self) -> bool {
        *self != StoppedGroups::default()
    }

    fn has(&self, group: usize) -> bool {
        self.0[group / 64] >> (group % 64) & 1 == 1
    }
}

/// The parties that must wait: for each group, the number of homes that stop it.
#[derive(Debug)]
pub struct Valve {
    /// The number of homes that stop any group.
    homes: AtomicU32,
    groups: [AtomicU32; GROUPS],
}

impl Default for Valve {
    fn default() -> Self {
        Valve {
            homes: AtomicU32::new(0),
            groups: [const { AtomicU32::new(0) }; GROUPS],
        }
    }
}

impl Valve {
    /// Whether no party waits.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.homes.load(Relaxed) == 0
    }

    /// Whether this party must wait.
    #[inline]
    pub fn must_wait(&self, party: Party) -> bool {
        !self.is_open() && self.groups[party.group(GROUPS)].load(Relaxed) > 0
    }

    /// Records that a home now stops the groups `after`, instead of `before`.
    pub fn replace_stopped(&self, before: &StoppedGroups, after: &StoppedGroups) {
        let change = |count: &AtomicU32, before: bool, after: bool| match (before, after) {
            (false, true) => {
                count.fetch_add(1, Relaxed);
            }
            (true, false) => {
                count.fetch_sub(1, Relaxed);
            }
            _ => {}
        };
        if before == after {
            return;
        }
        for (n, group) in self.groups.iter().enumerate() {
            change(group, before.has(n), after.has(n));
        }
        change(&self.homes, before.has_any(), after.has_any());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parties() -> [Party; 3] {
        ["ann", "bob", "eve"].map(|name| Party::user(name, 1))
    }

    fn has(heavy: &StoppedGroups, party: Party) -> bool {
        heavy.has(party.group(GROUPS))
    }

    #[test]
    fn party_with_less_than_the_average_under_way_does_not_wait() {
        let [ann, bob, eve] = parties();
        let mut weights = VisitsByGroup::default();
        weights.add(ann, 10);
        weights.add(bob, 10);
        weights.add(eve, 1);
        let heavy = StoppedGroups::heaviest([&weights].into_iter());
        assert!(has(&heavy, ann) && has(&heavy, bob) && !has(&heavy, eve));
        assert!(!has(&heavy, Party::user("a newcomer", 1)));
    }

    #[test]
    fn equal_parties_wait_and_so_does_one_that_is_alone() {
        let [ann, bob, _] = parties();
        let mut weights = VisitsByGroup::default();
        weights.add(ann, 7);
        assert!(has(&StoppedGroups::heaviest([&weights].into_iter()), ann));
        weights.add(bob, 7);
        let heavy = StoppedGroups::heaviest([&weights].into_iter());
        assert!(has(&heavy, ann) && has(&heavy, bob));
        weights.clear();
        assert_eq!(
            StoppedGroups::heaviest([&weights].into_iter()),
            StoppedGroups::ALL,
            "it is not known who it was"
        );
    }

    #[test]
    fn a_party_waits_until_no_home_stops_it() {
        let [ann, bob, _] = parties();
        let (none, valve) = (StoppedGroups::default(), Valve::default());
        let mut weights = VisitsByGroup::default();
        weights.add(ann, 7);
        let of_ann = StoppedGroups::heaviest([&weights].into_iter());
        valve.replace_stopped(&none, &StoppedGroups::ALL);
        valve.replace_stopped(&none, &of_ann);
        assert!(valve.must_wait(ann) && valve.must_wait(bob));
        valve.replace_stopped(&StoppedGroups::ALL, &of_ann);
        assert!(valve.must_wait(ann) && !valve.must_wait(bob));
        valve.replace_stopped(&of_ann, &none);
        assert!(valve.must_wait(ann) && !valve.is_open());
        valve.replace_stopped(&of_ann, &none);
        assert!(!valve.must_wait(ann) && valve.is_open());
    }
}
