//! The sets of filters that the scenario `filters` compares: how they are distributed to clients, and topics that match or do not match.

use super::clients::{Message, NOBODY};
use crate::measure::payload::Random;

/// The number of filters of one client. It is the same in all sets, because the cost of long lists of filters is not measured here.
pub const PER_CLIENT: u32 = 250;
/// The maximum number of clients that receive messages. So the large set writes to no more sockets than the small one.
const RECEIVERS: u32 = 1_000;
/// The number of different topics. It is about the same for each set, because a publish to a new topic costs the server memory.
const NAMES: u32 = 1_000_000;
/// The server accepts any number of filters with at most this many wildcards each.
const FREE_WILDCARDS: u32 = 2;
/// The filters of a deep set that have more than `FREE_WILDCARDS` wildcards have them in the first levels only: in this many. These levels
/// have more combinations than the server accepts filters.
const COMBINED_LEVELS: u32 = 12;

/// A set of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// `filters` filters `a/{n}/+`, distributed to `clients` clients. If there are fewer filters than clients, some clients have none.
    Flat { filters: u32, clients: u32 },
    /// Filters with `levels` levels, each `a` or `+` except the last. There is a filter for every combination with at most two `+`. There
    /// is also one for each combination with more `+`, if all its `+` are in the first levels.
    Deep { levels: u32 },
}

impl Set {
    /// The number of filters to which clients subscribe.
    pub fn offered(&self) -> u32 {
        match self {
            Set::Flat { filters, .. } => *filters,
            Set::Deep { levels } => shapes(*levels).len() as u32,
        }
    }

    /// The number of clients.
    pub fn clients(&self) -> u32 {
        match self {
            Set::Flat { clients, .. } => *clients,
            Set::Deep { .. } => self.offered().div_ceil(PER_CLIENT),
        }
    }

    /// The filters of each client.
    pub fn deal(&self) -> impl Fn(u32) -> Vec<String> + use<> {
        let (set, clients) = (*self, self.clients());
        let shapes = match set {
            Set::Flat { .. } => Vec::new(),
            Set::Deep { levels } => shapes(levels),
        };
        move |client| {
            let numbers = (client..set.offered()).step_by(clients as usize);
            let text = |number: u32| match set {
                Set::Flat { .. } => format!("a/{number:07}/+"),
                Set::Deep { levels } => deep(levels, shapes[number as usize]),
            };
            numbers.map(text).collect()
        }
    }

    /// A message that matches one random filter of a flat set, among those of the first [`RECEIVERS`] clients.
    pub fn hit(&self, random: &mut Random) -> Message {
        let Set::Flat { filters, .. } = *self else {
            unreachable!("deep sets are missed only")
        };
        let clients = self.clients();
        let names = NAMES.div_ceil(filters.div_ceil(clients) * clients.min(RECEIVERS));
        let number = loop {
            let number = random.below(filters);
            if number % clients < RECEIVERS {
                break number;
            }
        };
        Message {
            topic: format!("a/{number:07}/{:07}", random.below(names)),
            owner: number % clients,
        }
    }

    /// A message that no filter matches. The server finds this out only at the last level of the filters.
    pub fn miss(&self, random: &mut Random) -> Message {
        let topic = match *self {
            Set::Flat { filters, .. } => {
                let number = random.below(filters);
                format!(
                    "a/{number:07}/{:07}/b",
                    random.below(NAMES.div_ceil(filters))
                )
            }
            Set::Deep { levels } => {
                let last = random.below(NAMES);
                format!("{}{last:07}", "a/".repeat(levels as usize - 1))
            }
        };
        Message {
            topic,
            owner: NOBODY,
        }
    }
}

/// For each filter of a deep set, the levels that are `+`, as bits: bit 0 is the first level. The filters with few `+`, which the server
/// always accepts, come first.
fn shapes(levels: u32) -> Vec<u64> {
    let wild = levels - 1;
    let mut shapes = vec![0];
    for first in 0..wild {
        shapes.push(1 << first);
        shapes.extend((0..first).map(|second| 1 << first | 1 << second));
    }
    let combined = 0..1u64 << wild.min(COMBINED_LEVELS);
    shapes.extend(combined.filter(|shape| shape.count_ones() > FREE_WILDCARDS));
    shapes
}

fn deep(levels: u32, shape: u64) -> String {
    let level = |n: u32| if shape >> n & 1 == 1 { "+/" } else { "a/" };
    (0..levels - 1).map(level).collect::<String>() + "b"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crore_wire::topic;
    use proptest::prelude::*;

    use super::*;

    fn texts(set: Set) -> Vec<(u32, String)> {
        let deal = set.deal();
        let of = |client| deal(client).into_iter().map(move |text| (client, text));
        (0..set.clients()).flat_map(of).collect()
    }

    #[test]
    fn filters_are_all_different_and_all_dealt() {
        for levels in [8, 16, 64] {
            let set = Set::Deep { levels };
            let all: BTreeSet<String> = texts(set).into_iter().map(|(_, text)| text).collect();
            assert_eq!(all.len() as u32, set.offered());
            let count = |text: &String| text.split('/').count() as u32 == levels;
            assert!(all.iter().all(count));
        }
        // All combinations of `a` and `+` in the levels before the last.
        assert_eq!(Set::Deep { levels: 8 }.offered(), 128);
    }

    proptest! {
        #[test]
        fn a_hit_matches_one_filter_and_a_miss_none(
            filters in 1u32..200, clients in 1u32..20, seed: u64,
        ) {
            let set = Set::Flat { filters, clients };
            let mut random = Random::new(seed);
            let (hit, miss) = (set.hit(&mut random), set.miss(&mut random));
            let matching = |text: &str| -> Vec<u32> {
                let all = texts(set).into_iter();
                let all = all.filter(|(_, filter)| topic::matches(filter.as_bytes(), text.as_bytes()));
                all.map(|(client, _)| client).collect()
            };
            prop_assert_eq!(matching(&hit.topic), vec![hit.owner]);
            prop_assert!(matching(&miss.topic).is_empty());
        }

        #[test]
        fn a_deep_miss_fails_at_the_last_level_only(levels in 3u32..20, seed: u64) {
            let set = Set::Deep { levels };
            let miss = set.miss(&mut Random::new(seed)).topic;
            let (start, _) = miss.rsplit_once('/').unwrap();
            let near = format!("{start}/b");
            for (_, filter) in texts(set) {
                prop_assert!(!topic::matches(filter.as_bytes(), miss.as_bytes()));
                prop_assert!(topic::matches(filter.as_bytes(), near.as_bytes()));
            }
        }
    }
}
