//! Tests that a home (the part of a shard that keeps topics) counts the subscribers at each carrier (a shard with subscribers), sends a
//! message once to each carrier, and forgets carriers without subscribers. Subscribers come and leave in any order, on any shards.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::base::placement::Placement;
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::budget::admission::{Admission, Client};
use crate::home::topic_row::WANTS_DEFLATE;
use crate::home::{Home, HomeContext};
use crate::mail::Fact;
use crate::mail::message::{Headers, Publish};

const NAMES: [&[u8]; 2] = [b"a", b"b"];
/// The hash of both topics: only their carriers distinguish them.
const HASH: u32 = 9;
const NOW: Now = Now { s: 1, unix_s: 1000 };

/// Topic, shard, the carrier's row and its serial.
type TellPlace = (usize, ShardId, u32, u16);

struct Fixture {
    home: Home,
    settings: Settings,
    rules: Rules,
    ids: Vec<u32>,
}

impl Fixture {
    fn new() -> Fixture {
        let settings = Settings::default();
        let rules = Rules::new(&settings.rules);
        let mut home = Home::new(
            &settings,
            &rules,
            Admission::new(&settings, 42),
            7,
            Placement::new(1, 1),
            0,
            42,
        );
        let create = |name: &&[u8]| home.insert_topic(HASH, name, Client::NOBODY, &rules, NOW);
        let ids = NAMES.iter().map(create).collect();
        Fixture {
            home,
            settings,
            rules,
            ids,
        }
    }

    fn join(&mut self, (topic, shard, row, serial): TellPlace) {
        let carrier = Carrier {
            shard,
            serial,
            carrier_row: row,
            subscribers: 1,
        };
        self.home.add_subscriber(self.ids[topic], carrier);
    }

    fn leave(&mut self, (_, shard, row, serial): TellPlace) {
        self.home.remove_subscriber(shard, HASH, row, serial, NOW);
    }

    /// The carriers and their numbers of subscribers, in order.
    fn carriers(&self, topic: usize) -> Vec<(TellPlace, u32)> {
        let mut carriers = Vec::new();
        self.home
            .topics
            .for_each_carrier(self.ids[topic], |carrier| {
                let place = (topic, carrier.shard, carrier.carrier_row, carrier.serial);
                carriers.push((place, carrier.subscribers));
            });
        carriers.sort_unstable();
        carriers
    }

    /// The carriers to which a message is sent, in order.
    fn told(&mut self, topic: usize) -> Vec<TellPlace> {
        let mut lanes = Lanes::new(0, 3);
        let message = Publish {
            hash: HASH,
            name: NAMES[topic],
            data: b"x",
            headers: Headers::default(),
            dedup: None,
            client: Client::NOBODY,
        };
        let mut context = HomeContext {
            settings: &self.settings,
            rules: &self.rules,
            local_filters: &Matching::new(1, 1, &Default::default()),
            now: NOW,
            lanes: &mut lanes,
        };
        (self.home).admit_and_apply(&Fact::Publish(&message), &mut context);
        let mut told = Vec::new();
        for (shard, lane) in lanes.to.iter().enumerate() {
            for tell in &lane.tells {
                let Tell::Live {
                    topic: row, serial, ..
                } = *tell
                else {
                    panic!("only live messages are told");
                };
                told.push((topic, shard as ShardId, row, serial));
            }
        }
        told.sort_unstable();
        told
    }
}

fn place() -> impl Strategy<Value = TellPlace> {
    // A carrier has one row for a topic at a time; the row may have been that of another topic before.
    (0..2_usize, 0..3_u16, 0..2_u16)
        .prop_map(|(topic, shard, serial)| (topic, shard, topic as u32, serial))
}

proptest! {
    #[test]
    fn each_carrier_is_known_with_its_subscribers(
        steps in prop::collection::vec((place(), any::<bool>()), 0..120),
    ) {
        let mut fixture = Fixture::new();
        let mut model = BTreeMap::new();
        let mut left = 0;
        for (place, joins) in steps {
            let count = model.entry(place).or_insert(0);
            if joins {
                fixture.join(place);
                *count += 1;
            } else if *count > 0 {
                fixture.leave(place);
                *count -= 1;
                left += 1;
            }
            model.retain(|_, count| *count > 0);
            for topic in 0..NAMES.len() {
                let of = model.iter().filter(|(place, _)| place.0 == topic);
                let expected: Vec<(TellPlace, u32)> = of.map(|(place, n)| (*place, *n)).collect();
                prop_assert_eq!(&fixture.carriers(topic), &expected);
                let sum = expected.iter().map(|(_, count)| count).sum::<u32>();
                prop_assert_eq!(fixture.home.topics.subscriber_count(fixture.ids[topic]), sum);
                let places: Vec<TellPlace> = expected.iter().map(|(place, _)| *place).collect();
                prop_assert_eq!(fixture.told(topic), places);
            }
        }
        prop_assert_eq!(fixture.home.stats().detaches, left);
        for (place, count) in model {
            (0..count).for_each(|_| fixture.leave(place));
        }
        let mut accounts = crate::budget::stats::Accounts::default();
        fixture.home.fill_accounts(&mut accounts);
        prop_assert_eq!(accounts.home_sets, 0);
    }
}

/// Tests that a topic gets a set of carriers if one carrier has more subscribers than a row can count, which is 65,535.
#[test]
fn carrier_may_have_more_subscribers_than_its_row_can_count() {
    let mut fixture = Fixture::new();
    let place = (0, 2, 0, 1);
    let most = u32::from(u16::MAX) + 2;
    for count in 1..=most {
        fixture.join(place);
        if count >= u32::from(u16::MAX) - 1 {
            assert_eq!(fixture.carriers(0), [(place, count)]);
        }
        let needs_set = count > u32::from(u16::MAX);
        assert_eq!(
            fixture.home.topics.carriers.set_count(),
            u32::from(needs_set),
            "{count}"
        );
    }
    for _ in 0..most {
        fixture.leave(place);
    }
    assert!(fixture.carriers(0).is_empty());
}

/// Tests that messages are compressed as long as a subscriber that takes compressed messages may be left.
#[test]
fn nobody_is_compressed_for_when_all_have_left() {
    for several in [false, true] {
        let mut fixture = Fixture::new();
        let (one, other) = ((0, 1, 0, 1), (0, 2, 0, 1));
        fixture.join(one);
        let id = fixture.ids[0];
        fixture.home.topics.rows.get_mut(id).flags |= WANTS_DEFLATE;
        if several {
            fixture.join(other);
            fixture.leave(other);
            assert!(
                fixture.home.topics.rows.get(id).has(WANTS_DEFLATE),
                "one is there"
            );
        }
        fixture.leave(one);
        assert!(!fixture.home.topics.rows.get(id).has(WANTS_DEFLATE));
        fixture.join(other);
        assert_eq!(fixture.carriers(0), [(other, 1)]);
    }
}
