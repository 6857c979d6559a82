//! Tests of a connection's subscriptions by filter, and of the members of a shard's filters. The expected results come from plain lists.

use super::*;
use crate::base::ids::PartitionId;
use alloc::collections::BTreeMap;
use alloc::format;
use proptest::prelude::*;

const PARTITIONS: PartitionId = 3;

#[derive(Clone, Debug)]
enum Change {
    /// Adds a group with this number of parts.
    AddGroup(u8),
    /// Removes a part.
    RemovePart(prop::sample::Index),
    /// Sets the state of a group in each partition: whether it is live, and whether a page is in flight.
    SetPositions(prop::sample::Index, [(bool, bool); 3]),
    /// The group becomes live in one partition.
    BecomeLive(prop::sample::Index, PartitionId),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..4u8).prop_map(Change::AddGroup),
        any::<prop::sample::Index>().prop_map(Change::RemovePart),
        (any::<prop::sample::Index>(), any::<[(bool, bool); 3]>())
            .prop_map(|(group, partitions)| Change::SetPositions(group, partitions)),
        (any::<prop::sample::Index>(), 0..PARTITIONS)
            .prop_map(|(group, partition)| Change::BecomeLive(group, partition)),
    ]
}

/// The model of a group: the row and number of each part, and the state in each partition.
type ModelGroup = (Vec<(u32, u32)>, [(bool, bool); 3]);

fn check(subscriptions: &FilterSubscriptions, model: &BTreeMap<u32, ModelGroup>) {
    let serials: Vec<u32> = subscriptions
        .groups()
        .iter()
        .map(|group| group.serial)
        .collect();
    assert_eq!(serials, model.keys().copied().collect::<Vec<_>>());
    let mut expected_parts = Vec::new();
    let mut behind = false;
    for (serial, (parts, partitions)) in model {
        let mut found: Vec<_> = subscriptions
            .parts_of(*serial)
            .map(|(at, part)| (at, part.row))
            .collect();
        found.sort_unstable();
        let mut expected = parts.clone();
        expected.sort_unstable();
        assert_eq!(found, expected, "group {serial}");
        for (partition, (live, asked)) in (0..).zip(partitions) {
            behind |= !live && !asked;
            for (at, _) in parts {
                assert_eq!(subscriptions.is_live(*at, partition), *live);
            }
        }
        let is_live_everywhere = partitions.iter().all(|(live, _)| *live);
        let group = subscriptions.group(*serial).unwrap();
        assert_eq!(group.positions().is_empty(), is_live_everywhere);
        expected_parts.extend(expected);
    }
    expected_parts.sort_unstable();
    let found: Vec<_> = subscriptions
        .parts()
        .map(|(at, part)| (at, part.row))
        .collect();
    assert_eq!(found, expected_parts);
    assert_eq!(subscriptions.has_waiting_group(), behind);
    assert!(
        !subscriptions.is_live(subscriptions.next_index(), 0),
        "a free index"
    );
}

proptest! {
    #[test]
    fn filters_of_a_connection_are_those_of_a_plain_list(changes in prop::collection::vec(change(), 0..60)) {
        let (mut subscriptions, mut rows) = (FilterSubscriptions::default(), 0);
        let mut model: BTreeMap<u32, ModelGroup> = BTreeMap::new();
        for change in changes {
            let group = |index: prop::sample::Index| model.keys().copied().nth(index.index(model.len().max(1)));
            match change {
                Change::AddGroup(parts) => {
                    let serial = subscriptions.add_group(0);
                    prop_assert!(model.keys().all(|former| *former < serial));
                    let mut list = Vec::new();
                    for _ in 0..parts {
                        rows += 1;
                        list.push((subscriptions.next_index(), rows));
                        subscriptions.add(serial, rows, rows + 1, rows + 2);
                    }
                    if parts == 0 {
                        subscriptions.end_group(serial);
                    } else {
                        model.insert(serial, (list, [(true, false); 3]));
                    }
                }
                Change::RemovePart(index) => {
                    let all: Vec<_> = model.iter().flat_map(|(serial, (parts, _))| parts.iter().map(|it| (*serial, *it))).collect();
                    let Some((serial, (at, row))) = all.get(index.index(all.len().max(1))).copied() else { continue };
                    subscriptions.set_member_index(at, row + 7);
                    prop_assert_eq!(subscriptions.remove(at), Some((row, row + 7)));
                    let parts = &mut model.get_mut(&serial).unwrap().0;
                    parts.retain(|it| it.0 != at);
                    if parts.is_empty() {
                        model.remove(&serial);
                    }
                }
                Change::SetPositions(index, partitions) => {
                    let Some(serial) = group(index) else { continue };
                    let position_of = |(is_live, is_requested)| GroupPosition { is_live, is_requested, ..GroupPosition::default() };
                    subscriptions.set_positions(serial, partitions.map(position_of).to_vec());
                    model.get_mut(&serial).unwrap().1 = partitions;
                }
                Change::BecomeLive(index, partition) => {
                    let Some(serial) = group(index) else { continue };
                    if let Some(at) = subscriptions.position_mut(serial, partition) {
                        at.is_live = true;
                    }
                    subscriptions.drop_positions_if_live(serial);
                    model.get_mut(&serial).unwrap().1[usize::from(partition)].0 = true;
                }
            }
            check(&subscriptions, &model);
        }
    }

    #[test]
    fn members_are_found_by_the_filters_that_they_joined(
        changes in prop::collection::vec((0..4u32, 0..5u32, any::<bool>()), 0..60),
    ) {
        // The model: the name of each filter by number, and the filter's members. A member is the row and the place that it was given last.
        let name = |filter: u32| format!("t/{filter}/+");
        let mut matching = Matching::new(1, 7, &Default::default());
        let mut members: BTreeMap<(u32, u32), (u32, u32)> = BTreeMap::new();
        for (filter, slot, joins) in changes {
            let text = name(filter);
            if joins && !members.contains_key(&(filter, slot)) {
                let member = Member { slot, filter_index: filter };
                let at = matching.join(text.as_bytes(), member, Client::NOBODY, 1000).unwrap();
                prop_assert_eq!(matching.name(at.0), text.as_bytes());
                members.insert((filter, slot), at);
            } else if let Some((row, place)) = members.remove(&(filter, slot)) {
                let is_last = members.keys().all(|(other, _)| *other != filter);
                let Removal { moved_member, closed_filter } = matching.leave(row, place);
                prop_assert_eq!(closed_filter, is_last.then(|| text.clone().into_bytes()));
                if let Some(moved) = moved_member {
                    let at = members.get_mut(&(moved.filter_index, moved.slot)).unwrap();
                    prop_assert_eq!(at.0, row);
                    at.1 = place;
                }
            }
            for filter in 0..4 {
                let mut found = Vec::new();
                let topic = format!("t/{filter}/x");
                matching.for_each_match(topic.as_bytes(), |set| {
                    found.extend(matching.members(set).iter().map(|member| (member.filter_index, member.slot)));
                });
                found.sort_unstable();
                let expected: Vec<_> = members.keys().copied().filter(|it| it.0 == filter).collect();
                prop_assert_eq!(matching.find(name(filter).as_bytes()).is_some(), !expected.is_empty());
                prop_assert_eq!(matching.matching_rows(topic.as_bytes()).len(), usize::from(!expected.is_empty()));
                prop_assert_eq!(found, expected);
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
    let position_of = |is_live, offset| GroupPosition {
        is_live,
        offset,
        is_requested: offset == RETAINED_SENT,
        ..GroupPosition::default()
    };
    let positions = alloc::vec![
        position_of(false, 1),
        position_of(true, 2),
        position_of(false, RETAINED_SENT),
        position_of(false, 4)
    ];
    subscriptions.set_positions(serial, positions);
    for expected in [0, 3, 0, 3, 0] {
        assert_eq!(subscriptions.next_behind(serial), Some(expected));
        let at = subscriptions
            .position_mut(serial, expected)
            .expect("it is behind");
        at.is_requested = true;
        assert_eq!(
            subscriptions.next_behind(serial),
            None,
            "a page is under way"
        );
        let at = subscriptions
            .position_mut(serial, expected)
            .expect("it is behind");
        (at.is_requested, at.had_turn) = (false, true);
    }
    subscriptions
        .position_mut(serial, 0)
        .expect("it is behind")
        .is_live = true;
    assert_eq!(subscriptions.next_behind(serial), Some(3));
}
