//! Tests of a connection's subscriptions by filter, and of the members of a shard's filters. The expected results come from plain lists.

use super::*;
use crate::base::ids::PartitionId;
use alloc::collections::BTreeMap;
use alloc::format;
use proptest::prelude::*;

const PARTITIONS: PartitionId = 3;

#[derive(Clone, Debug)]
enum Act {
    /// Adds a group with this number of parts.
    Begin(u8),
    /// Removes a part.
    Remove(prop::sample::Index),
    /// Sets the state of a group in each partition: whether it is live, and whether a page is in flight.
    Set(prop::sample::Index, [(bool, bool); 3]),
    /// The group becomes live in one partition.
    Live(prop::sample::Index, PartitionId),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..4u8).prop_map(Act::Begin),
        any::<prop::sample::Index>().prop_map(Act::Remove),
        (any::<prop::sample::Index>(), any::<[(bool, bool); 3]>())
            .prop_map(|(group, partitions)| Act::Set(group, partitions)),
        (any::<prop::sample::Index>(), 0..PARTITIONS)
            .prop_map(|(group, partition)| Act::Live(group, partition)),
    ]
}

/// The model of a group: the row and number of each part, and the state in each partition.
type Plain = (Vec<(u32, u32)>, [(bool, bool); 3]);

fn check(subscriptions: &FilterSubscriptions, plain: &BTreeMap<u32, Plain>) {
    let serials: Vec<u32> = subscriptions
        .groups()
        .iter()
        .map(|group| group.serial)
        .collect();
    assert_eq!(serials, plain.keys().copied().collect::<Vec<_>>());
    let mut places = Vec::new();
    let mut behind = false;
    for (serial, (parts, partitions)) in plain {
        let mut found: Vec<_> = subscriptions
            .parts_of(*serial)
            .map(|(at, part)| (at, part.row))
            .collect();
        found.sort_unstable();
        let mut wanted = parts.clone();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "group {serial}");
        for (partition, (live, asked)) in (0..).zip(partitions) {
            behind |= !live && !asked;
            for (at, _) in parts {
                assert_eq!(subscriptions.is_live(*at, partition), *live);
            }
        }
        let everywhere = partitions.iter().all(|(live, _)| *live);
        let group = subscriptions.group(*serial).unwrap();
        assert_eq!(group.positions().is_empty(), everywhere);
        places.extend(wanted);
    }
    places.sort_unstable();
    let found: Vec<_> = subscriptions
        .parts()
        .map(|(at, part)| (at, part.row))
        .collect();
    assert_eq!(found, places);
    assert_eq!(subscriptions.is_behind(), behind);
    assert!(
        !subscriptions.is_live(subscriptions.next_place(), 0),
        "a free place"
    );
}

proptest! {
    #[test]
    fn a_connection_s_filters_are_as_a_plain_list_has_them(acts in prop::collection::vec(act(), 0..60)) {
        let (mut subscriptions, mut rows) = (FilterSubscriptions::default(), 0);
        let mut plain: BTreeMap<u32, Plain> = BTreeMap::new();
        for act in acts {
            let group = |index: prop::sample::Index| plain.keys().copied().nth(index.index(plain.len().max(1)));
            match act {
                Act::Begin(parts) => {
                    let serial = subscriptions.add_group(0);
                    prop_assert!(plain.keys().all(|former| *former < serial));
                    let mut list = Vec::new();
                    for _ in 0..parts {
                        rows += 1;
                        list.push((subscriptions.next_place(), rows));
                        subscriptions.add(serial, rows, rows + 1, rows + 2);
                    }
                    if parts == 0 {
                        subscriptions.end_group(serial);
                    } else {
                        plain.insert(serial, (list, [(true, false); 3]));
                    }
                }
                Act::Remove(index) => {
                    let all: Vec<_> = plain.iter().flat_map(|(serial, (parts, _))| parts.iter().map(|it| (*serial, *it))).collect();
                    let Some((serial, (at, row))) = all.get(index.index(all.len().max(1))).copied() else { continue };
                    subscriptions.set_place(at, row + 7);
                    prop_assert_eq!(subscriptions.remove(at), Some((row, row + 7)));
                    let parts = &mut plain.get_mut(&serial).unwrap().0;
                    parts.retain(|it| it.0 != at);
                    if parts.is_empty() {
                        plain.remove(&serial);
                    }
                }
                Act::Set(index, partitions) => {
                    let Some(serial) = group(index) else { continue };
                    let at = |(live, asked)| GroupPosition { live, asked, ..GroupPosition::default() };
                    subscriptions.set_positions(serial, partitions.map(at).to_vec());
                    plain.get_mut(&serial).unwrap().1 = partitions;
                }
                Act::Live(index, partition) => {
                    let Some(serial) = group(index) else { continue };
                    if let Some(at) = subscriptions.at_mut(serial, partition) {
                        at.live = true;
                    }
                    subscriptions.settle(serial);
                    plain.get_mut(&serial).unwrap().1[usize::from(partition)].0 = true;
                }
            }
            check(&subscriptions, &plain);
        }
    }

    #[test]
    fn members_are_found_by_the_filters_they_joined(
        acts in prop::collection::vec((0..4u32, 0..5u32, any::<bool>()), 0..60),
    ) {
        // The model: the name of each filter by number, and the filter's members. A member is the row and the place that it was given last.
        let name = |filter: u32| format!("t/{filter}/+");
        let mut matching = Matching::new(1, 7, &Default::default());
        let mut members: BTreeMap<(u32, u32), (u32, u32)> = BTreeMap::new();
        for (filter, slot, joins) in acts {
            let text = name(filter);
            if joins && !members.contains_key(&(filter, slot)) {
                let member = Member { slot, part: filter };
                let at = matching.join(text.as_bytes(), member, Client::NOBODY, 1000).unwrap();
                prop_assert_eq!(matching.name(at.0), text.as_bytes());
                members.insert((filter, slot), at);
            } else if let Some((row, place)) = members.remove(&(filter, slot)) {
                let last = members.keys().all(|(other, _)| *other != filter);
                let Removal { moved, ended } = matching.leave(row, place);
                prop_assert_eq!(ended, last.then(|| text.clone().into_bytes()));
                if let Some(moved) = moved {
                    let at = members.get_mut(&(moved.part, moved.slot)).unwrap();
                    prop_assert_eq!(at.0, row);
                    at.1 = place;
                }
            }
            for filter in 0..4 {
                let mut found = Vec::new();
                let topic = format!("t/{filter}/x");
                matching.sets(topic.as_bytes(), |set| {
                    found.extend(matching.members(set).iter().map(|member| (member.part, member.slot)));
                });
                found.sort_unstable();
                let wanted: Vec<_> = members.keys().copied().filter(|it| it.0 == filter).collect();
                prop_assert_eq!(matching.find(name(filter).as_bytes()).is_some(), !wanted.is_empty());
                prop_assert_eq!(matching.rows(topic.as_bytes()).len(), usize::from(!wanted.is_empty()));
                prop_assert_eq!(found, wanted);
            }
            let open = (0..4).filter(|filter| members.keys().any(|it| it.0 == *filter));
            prop_assert_eq!(matching.len(), open.count());
        }
    }
}

#[test]
fn partitions_in_which_a_group_is_behind_have_turns() {
    let mut subscriptions = FilterSubscriptions::default();
    let serial = subscriptions.add_group(0);
    let at = |live, offset| GroupPosition {
        live,
        offset,
        asked: offset == RETAINED_SENT,
        ..GroupPosition::default()
    };
    let positions = alloc::vec![
        at(false, 1),
        at(true, 2),
        at(false, RETAINED_SENT),
        at(false, 4)
    ];
    subscriptions.set_positions(serial, positions);
    for expected in [0, 3, 0, 3, 0] {
        assert_eq!(subscriptions.next_behind(serial), Some(expected));
        let at = subscriptions
            .at_mut(serial, expected)
            .expect("it is behind");
        at.asked = true;
        assert_eq!(
            subscriptions.next_behind(serial),
            None,
            "a page is under way"
        );
        let at = subscriptions
            .at_mut(serial, expected)
            .expect("it is behind");
        (at.asked, at.had_turn) = (false, true);
    }
    subscriptions.at_mut(serial, 0).expect("it is behind").live = true;
    assert_eq!(subscriptions.next_behind(serial), Some(3));
}
