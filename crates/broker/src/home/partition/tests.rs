//! Tests a home (the part of a shard that keeps topics) with several partitions: each partition has its own offsets, their logs share one
//! budget, and a group (a shared subscription) reads all partitions.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::placement::Placement;
use crate::base::rules::Rules;
use crate::base::settings::{Rule, Settings};
use crate::base::time::Now;
use crate::budget::admission::{Admission, Client, Party};
use crate::filters::matching::Matching;
use crate::home::{GroupJoin, Home, HomeContext};
use crate::mail::lanes::Lanes;
use crate::mail::message::{Headers, Publish};
use crate::mail::{Change, Fact, Outcome, ReplyTo, Tell, TopicInfo};

const NOW: Now = Now { s: 1, unix_s: 1000 };
const PARTITIONS: PartitionId = 4;
const PLACEMENT: Placement = Placement::new(PARTITIONS, 1);
const BUDGET_BYTES: usize = 64 << 10;

struct Fixture {
    home: Home,
    settings: Settings,
    rules: Rules,
    lanes: Lanes,
}

impl Fixture {
    /// Rules keep `log_messages` messages of each topic.
    fn new(log_messages: u32) -> Fixture {
        let rule = Rule {
            log_messages,
            position_age_s: 0,
            ..Rule::default()
        };
        let mut settings = Settings {
            rules: alloc::vec![rule],
            ..Settings::default()
        };
        settings.limits.log_bytes = BUDGET_BYTES;
        let rules = Rules::new(&settings.rules);
        let admission = Admission::new(&settings, 42);
        let home = Home::new(&settings, &rules, admission, 7, PLACEMENT, 0, 42);
        Fixture {
            home,
            settings,
            rules,
            lanes: Lanes::new(0, 1),
        }
    }

    fn publish(&mut self, name: &str, data: &[u8], retain: bool) -> TopicInfo {
        let message = Publish {
            hash: self.home.topics.hash_of(name.as_bytes()),
            name: name.as_bytes(),
            data,
            headers: Headers {
                retain,
                ..Headers::default()
            },
            dedup: None,
            client: Client::NOBODY,
        };
        self.change(&Fact::Publish(&message))
    }

    fn create(&mut self, name: &str) -> TopicInfo {
        let fact = Fact::Topic {
            change: Change::Create,
            hash: self.home.topics.hash_of(name.as_bytes()),
            name: name.as_bytes(),
            client: Client::NOBODY,
        };
        self.change(&fact)
    }

    fn with_context<T>(&mut self, act: impl FnOnce(&mut Home, &mut HomeContext<'_>) -> T) -> T {
        let mut context = HomeContext {
            settings: &self.settings,
            rules: &self.rules,
            local_filters: &Matching::new(1, 1, &Default::default()),
            now: NOW,
            lanes: &mut self.lanes,
        };
        act(&mut self.home, &mut context)
    }

    fn change(&mut self, fact: &Fact<'_>) -> TopicInfo {
        match self.with_context(|home, context| home.admit_and_apply(fact, context)) {
            Outcome::Done(info) => info,
            other => panic!("{fact:?}: {other:?}"),
        }
    }

    fn messages(&self, name: &str) -> u32 {
        let hash = self.home.topics.hash_of(name.as_bytes());
        let id = self
            .home
            .topics
            .find(hash, name.as_bytes())
            .expect("a topic");
        self.home.topic_info(id, NOW).messages
    }
}

/// The `index`th topic of a partition.
fn topic_name(partition: PartitionId, index: usize) -> String {
    let mut names = (0..).map(|index| alloc::format!("t/{index}"));
    let is_in = |name: &String| PLACEMENT.partition_of(name.as_bytes()) == partition;
    names.by_ref().filter(is_in).nth(index).expect("endless")
}

#[test]
fn each_partition_counts_its_own_offsets() {
    let mut fixture = Fixture::new(10);
    for round in 0..3 {
        for partition in 0..PARTITIONS {
            let first = fixture.publish(&topic_name(partition, 0), b"x", false);
            let second = fixture.publish(&topic_name(partition, 1), b"x", false);
            let expected = (2 * round + 1, 2 * round + 2);
            assert_eq!((first.offset, second.offset), expected);
        }
    }
}

#[test]
fn recreated_topic_continues_after_its_earlier_offsets() {
    let mut fixture = Fixture::new(0);
    let (first, second) = (topic_name(0, 0), topic_name(1, 0));
    for _ in 0..5 {
        fixture.publish(&first, b"x", false);
    }
    fixture.publish(&second, b"x", false);
    while fixture.home.evict_idle_topic(Client::NOBODY, u32::MAX) {}
    let offsets = [&first, &second].map(|name| fixture.create(name).offset);
    assert_eq!(offsets, [5, 1]);
}

#[test]
fn the_logs_share_one_budget_and_the_largest_makes_room() {
    let mut fixture = Fixture::new(1_000);
    let data = [b'x'; 500];
    for _ in 0..80 {
        fixture.publish(&topic_name(0, 0), &data, false);
    }
    for partition in 1..PARTITIONS {
        for _ in 0..10 {
            fixture.publish(&topic_name(partition, 0), &data, false);
        }
    }
    assert_eq!(fixture.messages(&topic_name(0, 0)), 80);
    for _ in 0..30 {
        fixture.publish(&topic_name(1, 0), &data, false);
        assert!(fixture.home.logs.log_bytes() <= BUDGET_BYTES);
    }
    let message_counts: Vec<u32> = (0..PARTITIONS)
        .map(|partition| fixture.messages(&topic_name(partition, 0)))
        .collect();
    assert_eq!(message_counts[1..], [40, 10, 10]);
    assert!((45..60).contains(&message_counts[0]), "{message_counts:?}");
}

#[test]
fn retained_messages_go_last_in_whatever_partition_they_are() {
    let mut fixture = Fixture::new(1);
    let data = [b'x'; 500];
    // The topic's log keeps one message, the empty one. The message before it is kept only as the retained message.
    for n in 0..60 {
        fixture.publish(&topic_name(0, n), &data, true);
        fixture.publish(&topic_name(0, n), b"", false);
    }
    assert_eq!(fixture.home.logs.retained_chains.len(), 60);
    for n in 0..60 {
        fixture.publish(&topic_name(1, n), &data, false);
        assert!(fixture.home.logs.log_bytes() <= BUDGET_BYTES);
    }
    assert_eq!(fixture.home.logs.retained_chains.len(), 60);
}

#[test]
fn a_group_gets_the_messages_of_all_partitions_once() {
    let mut fixture = Fixture::new(100);
    let to = ReplyTo {
        slot: 1,
        generation: 1,
        request: 0,
        part: 0,
    };
    let (home, lanes) = (&mut fixture.home, &mut fixture.lanes);
    let join = GroupJoin {
        filter: b"t/+",
        name: b"workers",
        member: (0, to),
        credit: 0,
        party: Party::of_address(Client::NOBODY),
        is_new: true,
        recorded_for: None,
    };
    home.join_group(&join, lanes, NOW);
    let mut published = BTreeSet::new();
    // While no member has credit, publishes a message to each of some topics of each partition.
    for partition in (0..PARTITIONS).rev() {
        for n in 0..(PARTITIONS - partition).into() {
            let name = topic_name(partition, n);
            let offset = fixture.publish(&name, b"x", false).offset;
            published.insert((name.into_bytes(), offset));
        }
    }
    let mut delivered = BTreeSet::new();
    for credit in [5, 5, 50] {
        for _ in 0..credit {
            fixture.home.return_group_credit(0, 1, to, (0, 0));
        }
        while fixture.with_context(Home::read_queued_page) {}
    }
    let (tells, frames) = fixture.lanes.take_own_tells().expect("messages");
    for tell in &tells {
        if let Tell::Shared { name, record, .. } = tell {
            let topic = frames.name(*name).to_vec();
            assert!(delivered.insert((topic, record.offset)), "delivered twice");
        }
    }
    assert_eq!(delivered, published);
    // The group has caught up: it gets the next message at once.
    drop(frames);
    fixture.lanes.recycle_tells(tells);
    fixture.lanes.flush(|_, _| {});
    fixture.publish(&topic_name(2, 0), b"x", false);
    let (tells, _) = fixture.lanes.take_own_tells().expect("a message");
    assert!(matches!(tells[..], [Tell::Shared { .. }]));
}
