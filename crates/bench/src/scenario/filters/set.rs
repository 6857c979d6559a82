//! The sets of filters that the scenario `filters` compares: how they are distributed to clients, and topics that match or do not match.

use super::clients::{Message, NOBODY};
use crate::measure::payload::Random;

/// The number of filters of one client. It is the same in all sets, because the cost of long lists of filters is not measured here.
pub const FILTERS_PER_CLIENT: u32 = 250;
/// The maximum number of clients that receive messages. So the large set writes to no more sockets than the small one.
const RECEIVERS_MAX: u32 = 1_000;
/// The number of different topics. It is about the same for each set, because a publish to a new topic costs the server memory.
const TOPIC_NAMES: u32 = 1_000_000;
/// The server accepts any number of filters with at most this many wildcards each.
const FREE_WILDCARDS: u32 = 2;
/// In a deep set, a filter with more than `FREE_WILDCARDS` wildcards has all of them in this many first levels. These levels have more combinations than
/// the server accepts filters.
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
    pub fn filter_count(&self) -> u32 {
        match self {
            Set::Flat { filters, .. } => *filters,
            Set::Deep { levels } => wildcard_masks(*levels).len() as u32,
        }
    }

    /// The number of clients.
    pub fn client_count(&self) -> u32 {
        match self {
            Set::Flat { clients, .. } => *clients,
            Set::Deep { .. } => self.filter_count().div_ceil(FILTERS_PER_CLIENT),
        }
    }

    /// A function that returns the filters of a client.
    pub fn filters_of(&self) -> impl Fn(u32) -> Vec<String> + use<> {
        let (set, clients) = (*self, self.client_count());
        let wildcard_masks = match set {
            Set::Flat { .. } => Vec::new(),
            Set::Deep { levels } => wildcard_masks(levels),
        };
        move |client| {
            let numbers = (client..set.filter_count()).step_by(clients as usize);
            let text = |number: u32| match set {
                Set::Flat { .. } => format!("a/{number:07}/+"),
                Set::Deep { levels } => deep_filter(levels, wildcard_masks[number as usize]),
            };
            numbers.map(text).collect()
        }
    }

    /// A message that matches one random filter of a flat set, among those of the first [`RECEIVERS_MAX`] clients.
    pub fn matching_message(&self, random: &mut Random) -> Message {
        let Set::Flat { filters, .. } = *self else {
            unreachable!("only flat sets have matching messages")
        };
        let clients = self.client_count();
        let name_count =
            TOPIC_NAMES.div_ceil(filters.div_ceil(clients) * clients.min(RECEIVERS_MAX));
        let number = loop {
            let number = random.below(filters);
            if number % clients < RECEIVERS_MAX {
                break number;
            }
        };
        Message {
            topic: format!("a/{number:07}/{:07}", random.below(name_count)),
            owner: number % clients,
        }
    }

    /// A message that no filter matches. The server finds this out only at the last level of the filters.
    pub fn unmatched_message(&self, random: &mut Random) -> Message {
        let topic = match *self {
            Set::Flat { filters, .. } => {
                let number = random.below(filters);
                format!(
                    "a/{number:07}/{:07}/b",
                    random.below(TOPIC_NAMES.div_ceil(filters))
                )
            }
            Set::Deep { levels } => {
                let last_name = random.below(TOPIC_NAMES);
                format!("{}{last_name:07}", "a/".repeat(levels as usize - 1))
            }
        };
        Message {
            topic,
            owner: NOBODY,
        }
    }
}

/// For each filter of a deep set, a mask of the levels that are `+`; bit 0 is the first level. The filters with few `+`, which the server
/// always accepts, come first.
fn wildcard_masks(levels: u32) -> Vec<u64> {
    let wildcard_levels = levels - 1;
    let mut wildcard_masks = vec![0];
    for first in 0..wildcard_levels {
        wildcard_masks.push(1 << first);
        wildcard_masks.extend((0..first).map(|second| 1 << first | 1 << second));
    }
    let masks = 0..1u64 << wildcard_levels.min(COMBINED_LEVELS);
    wildcard_masks
        .extend(masks.filter(|wildcard_mask| wildcard_mask.count_ones() > FREE_WILDCARDS));
    wildcard_masks
}

fn deep_filter(levels: u32, wildcard_mask: u64) -> String {
    let level = |n: u32| {
        if wildcard_mask >> n & 1 == 1 {
            "+/"
        } else {
            "a/"
        }
    };
    (0..levels - 1).map(level).collect::<String>() + "b"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crore_wire::topic;
    use proptest::prelude::*;

    use super::*;

    fn clients_and_filters(set: Set) -> Vec<(u32, String)> {
        let filters_of = set.filters_of();
        let filters_of_client = |client| {
            filters_of(client)
                .into_iter()
                .map(move |text| (client, text))
        };
        (0..set.client_count())
            .flat_map(filters_of_client)
            .collect()
    }

    #[test]
    fn each_filter_has_one_client() {
        for levels in [8, 16, 64] {
            let set = Set::Deep { levels };
            let filters: BTreeSet<String> = clients_and_filters(set)
                .into_iter()
                .map(|(_, text)| text)
                .collect();
            assert_eq!(filters.len() as u32, set.filter_count());
            let has_all_levels = |text: &String| text.split('/').count() as u32 == levels;
            assert!(filters.iter().all(has_all_levels));
        }
        // All combinations of `a` and `+` in the levels before the last.
        assert_eq!(Set::Deep { levels: 8 }.filter_count(), 128);
    }

    proptest! {
        #[test]
        fn matching_message_matches_one_filter_and_unmatched_message_none(
            filters in 1u32..200, clients in 1u32..20, seed: u64,
        ) {
            let set = Set::Flat { filters, clients };
            let mut random = Random::new(seed);
            let (hit, miss) = (set.matching_message(&mut random), set.unmatched_message(&mut random));
            let matching = |text: &str| -> Vec<u32> {
                let filters = clients_and_filters(set).into_iter();
                let filters = filters.filter(|(_, filter)| topic::matches(filter.as_bytes(), text.as_bytes()));
                filters.map(|(client, _)| client).collect()
            };
            prop_assert_eq!(matching(&hit.topic), vec![hit.owner]);
            prop_assert!(matching(&miss.topic).is_empty());
        }

        #[test]
        fn unmatched_message_of_a_deep_set_fails_at_the_last_level(levels in 3u32..20, seed: u64) {
            let set = Set::Deep { levels };
            let miss = set.unmatched_message(&mut Random::new(seed)).topic;
            let (start, _) = miss.rsplit_once('/').unwrap();
            let matching_topic = format!("{start}/b");
            for (_, filter) in clients_and_filters(set) {
                prop_assert!(!topic::matches(filter.as_bytes(), miss.as_bytes()));
                prop_assert!(topic::matches(filter.as_bytes(), matching_topic.as_bytes()));
            }
        }
    }
}
