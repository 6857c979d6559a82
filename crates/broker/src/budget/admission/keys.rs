//! Counts the idempotency keys of all homes (the parts of shards that keep topics). With a log on disk, no key may be evicted
//! early, so a new key needs a free place. The limit is for all homes together, so a publisher to one topic may use the places of
//! all homes.
//!
//! Publishers (users, or addresses of clients without a name) are hashed into [`GROUPS`] groups. A group may take one more place while it holds less
//! than [`MOST`] times the free places.
//!
//! Invariant: each added key is removed once. Homes that reserve at the same time may each take the last place, so the limit may be
//! exceeded by the number of homes less one.

use core::array::from_fn;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::party::Party;
use super::shares::{MOST, may_take};

/// The number of groups of publishers.
pub const GROUPS: usize = 64;

/// The number of keys: of all publishers, and of each group.
#[derive(Debug)]
pub struct KeyCounts {
    all: AtomicU32,
    groups: [AtomicU32; GROUPS],
}

impl Default for KeyCounts {
    fn default() -> Self {
        KeyCounts {
            all: AtomicU32::new(0),
            groups: from_fn(|_| AtomicU32::new(0)),
        }
    }
}

/// The group of a publisher.
pub fn group(publisher: Party) -> usize {
    publisher.group(GROUPS)
}

impl KeyCounts {
    /// Takes a place for a key of this group. `places` is the number of places for all groups. False if there is no place for the group.
    pub fn reserve(&self, group: usize, places: usize) -> bool {
        let group_count = self.groups[group].load(Relaxed) as usize;
        let free = places.saturating_sub(self.all.load(Relaxed) as usize);
        let has_room = may_take(group_count, free, MOST);
        if has_room {
            self.add(group);
        }
        has_room
    }

    /// Takes a place without a check.
    pub fn add(&self, group: usize) {
        self.all.fetch_add(1, Relaxed);
        self.groups[group].fetch_add(1, Relaxed);
    }

    /// Frees places of this group.
    pub fn remove(&self, group: usize, count: u32) {
        self.all.fetch_sub(count, Relaxed);
        self.groups[group].fetch_sub(count, Relaxed);
    }

    /// The number of keys of the largest group, and the number of keys that this group may have at most. `places` is the number of places for all groups.
    pub fn largest_group(&self, places: usize) -> (u64, u64) {
        let groups = self.groups.iter().map(|group| group.load(Relaxed));
        let group_count = groups.max().unwrap_or(0) as usize;
        let free = places.saturating_sub(self.all.load(Relaxed) as usize);
        // If the group takes a key, one place less is free.
        let more = (MOST * free).saturating_sub(group_count).div_ceil(MOST + 1);
        (group_count as u64, (group_count + more) as u64)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use core::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::budget::admission::Client;

    /// With a poor hash, many publishers would share a group.
    #[test]
    fn publishers_spread_over_all_groups() {
        let names = (0..2_000).map(|n| Party::user(&alloc::format!("user {n}"), 1));
        let addresses =
            (0..2_000).map(|n| Client::from_address(IpAddr::V4(Ipv4Addr::from_bits(n)), 1));
        let parties: [Vec<Party>; 3] = [
            names.collect(),
            addresses.clone().map(Party::of_address).collect(),
            (addresses.map(Client::as_relayed).map(Party::of_address)).collect(),
        ];
        for parties in parties {
            let groups: BTreeSet<usize> = parties.into_iter().map(group).collect();
            assert_eq!(groups.len(), GROUPS);
        }
    }

    #[test]
    fn largest_group_gets_as_many_keys_as_its_reported_limit() {
        let keys = KeyCounts::default();
        (0..7).for_each(|_| keys.add(1));
        let (_, told) = keys.largest_group(100);
        let own = 7 + (0..100).take_while(|_| keys.reserve(1, 100)).count() as u64;
        assert_eq!((own, told), (80, 80));
        assert_eq!(keys.largest_group(100), (80, 80));
        assert!(keys.reserve(2, 100), "others find room");
        keys.remove(1, 80);
        assert_eq!(keys.largest_group(100), (1, 80));
    }
}
