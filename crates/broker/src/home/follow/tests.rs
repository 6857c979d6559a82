//! Tests that followers (clients that are told which topics have subscribers) know exactly these topics, while snapshots run and topics
//! change in any order.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crore_wire::topic;
use proptest::prelude::*;

use super::*;
use crate::base::placement::Placement;
use crate::base::rules::Rules;
use crate::base::settings::{Rule, Settings};
use crate::budget::admission::{Admission, Client as Owner};
use crate::filters::matching::Matching;
use crate::home::carriers::Carrier;
use crate::home::{Home, HomeContext};
use crate::mail::{Change, Fact, InterestPart, Tell};

const NOBODY: Owner = Owner::NOBODY;
const TOPICS: usize = 12;
const FILTERS: [&str; 3] = ["#", "a/+", "a/3"];

#[derive(Clone, Debug)]
enum Step {
    Join(usize, ShardId),
    Part(usize),
    Publish(usize),
    Follow(usize),
    Unfollow(usize),
    /// Another node begins to follow.
    NodeFollows(usize),
    /// The operator's webhook begins a stream, of all topics or of one of two partitions.
    WebhookFollows(usize, Option<u16>),
    /// A stream of another node reports that a topic's interest begins or ends there.
    Remote(usize, u8, bool),
    /// A stream is forgotten.
    Forget(u8),
    /// The followers request their next pages and read their news.
    Turn,
    Seconds(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..TOPICS, 0..3_u16).prop_map(|(topic, shard)| Step::Join(topic, shard)),
        6 => any::<usize>().prop_map(Step::Part),
        2 => (0..TOPICS).prop_map(Step::Publish),
        1 => (0..FILTERS.len()).prop_map(Step::Follow),
        1 => any::<usize>().prop_map(Step::Unfollow),
        1 => (0..FILTERS.len()).prop_map(Step::NodeFollows),
        1 => (0..FILTERS.len(), prop::option::of(0..2_u16)).prop_map(|(filter, partition)| Step::WebhookFollows(filter, partition)),
        6 => (0..TOPICS, 0..2_u8, any::<bool>()).prop_map(|(topic, stream, begins)| Step::Remote(topic, stream, begins)),
        1 => (0..2_u8).prop_map(Step::Forget),
        6 => Just(Step::Turn),
        2 => (1..4_u32).prop_map(Step::Seconds),
    ];
    prop::collection::vec(step, 0..200)
}

/// The partitions of the webhooks' streams.
const TWO_PARTITIONS: Placement = Placement::new(2, 1);

/// A connection that follows, another node, or a webhook.
struct Client {
    key: FollowerKey,
    filter: &'static str,
    /// The partition of a webhook's stream.
    partition: Option<u16>,
    present: BTreeSet<String>,
    whole: bool,
    asked: bool,
}

impl Client {
    fn new(key: FollowerKey, filter: &'static str) -> Client {
        let (present, whole, asked) = (BTreeSet::new(), false, true);
        Client {
            key,
            filter,
            partition: None,
            present,
            whole,
            asked,
        }
    }

    /// Takes news; returns the topics whose interest has ended and has not begun again.
    fn take(&mut self, news: &InterestChanges) -> Vec<String> {
        let mut ended = Vec::new();
        for (begins, name) in news.iter() {
            let name = String::from_utf8(name.to_vec()).unwrap();
            if begins {
                assert!(self.present.insert(name), "begins twice");
            } else {
                assert!(self.present.remove(&name), "ends twice");
                ended.push(name);
            }
        }
        ended.retain(|name| !self.present.contains(name));
        ended
    }

    /// Lets a node or a webhook request its news.
    fn take_from(&mut self, home: &mut Home, begins: bool) {
        let filters: Vec<Box<[u8]>> = [self.filter.as_bytes().into()].into();
        let topics = || SelectedTopics {
            filters: filters.clone(),
            partition: self.partition.map(|it| (TWO_PARTITIONS, it)),
        };
        let told = match self.key {
            FollowerKey::Node(stream) => {
                let order = Interest::Next(stream, begins.then(|| filters.clone()));
                let InterestReply::Changes(told) = home.handle_interest_order(order) else {
                    panic!("no changes")
                };
                told
            }
            FollowerKey::Webhook(stream) => home.next_webhook_news(stream, begins.then(topics)),
            FollowerKey::Connection(..) => panic!("a connection is told"),
        };
        let (news, more) = told.expect("nothing is lost");
        self.take(&news);
        self.whole |= !more;
    }
}

struct Fixture {
    home: Home,
    lanes: Lanes,
    rules: Rules,
    settings: Settings,
    now: Now,
    clients: Vec<Client>,
    subscribers: Vec<(usize, ShardId)>,
    remote: BTreeSet<(usize, u8)>,
    followed: u32,
    /// By topic: the second in which the topic lost its last subscriber.
    left_s: BTreeMap<String, u32>,
    /// Whether no topic is evicted, since there is enough room. An eviction would end a debounce early.
    has_room: bool,
}

fn name(topic: usize) -> String {
    format!(
        "{}/{topic}",
        if topic.is_multiple_of(2) { "b" } else { "a" }
    )
}

impl Fixture {
    fn new(debounce_s: u32, topics_max: usize) -> Fixture {
        let mut settings = Settings::default();
        settings.interest.debounce_s = debounce_s;
        settings.limits.topics_per_shard = topics_max;
        // Idle topics are forgotten at once, so that other topics reuse the rows all the time.
        settings.rules.push(Rule {
            log_messages: 1,
            log_age_s: 2,
            position_age_s: 1,
            ..Rule::default()
        });
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
        home.turn_limits.interest_page_topics = 2;
        Fixture {
            home,
            lanes: Lanes::new(0, 3),
            rules,
            settings,
            now: Now { s: 1, unix_s: 1000 },
            clients: Vec::new(),
            subscribers: Vec::new(),
            remote: BTreeSet::new(),
            followed: 0,
            left_s: BTreeMap::new(),
            has_room: topics_max >= TOPICS,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Join(topic, shard) => self.join(topic, shard),
            Step::Part(which) => {
                if !self.subscribers.is_empty() {
                    let which = which % self.subscribers.len();
                    let (topic, shard) = self.subscribers.swap_remove(which);
                    let hash = self.home.topics.hash_of(name(topic).as_bytes());
                    self.home
                        .remove_subscriber(shard, hash, topic as u32, 1, self.now);
                    if !self.subscribers.iter().any(|(other, _)| *other == topic) {
                        self.left_s.insert(name(topic), self.now.s);
                    }
                }
            }
            Step::Publish(topic) => {
                let create = Fact::Topic {
                    change: Change::Create,
                    hash: self.home.topics.hash_of(name(topic).as_bytes()),
                    name: &name(topic).into_bytes(),
                    client: NOBODY,
                };
                let mut context = HomeContext {
                    settings: &self.settings,
                    rules: &self.rules,
                    local_filters: &Matching::new(1, 1, &Default::default()),
                    now: self.now,
                    lanes: &mut self.lanes,
                };
                self.home.admit_and_apply(&create, &mut context);
            }
            Step::Follow(filter) => self.follow(FILTERS[filter]),
            Step::Unfollow(which) => {
                if !self.clients.is_empty() {
                    let which = which % self.clients.len();
                    let client = self.clients.swap_remove(which);
                    match client.key {
                        FollowerKey::Connection(shard, to) => self.home.remove_follower(shard, to),
                        FollowerKey::Node(stream) => {
                            self.home.handle_interest_order(Interest::End(stream));
                        }
                        FollowerKey::Webhook(stream) => self.home.end_webhook_news(stream),
                    }
                }
            }
            Step::NodeFollows(filter) => {
                self.stream_begins(FollowerKey::Node, FILTERS[filter], None);
            }
            Step::WebhookFollows(filter, partition) => {
                self.stream_begins(FollowerKey::Webhook, FILTERS[filter], partition);
            }
            Step::Remote(topic, stream, begins) => self.remote(topic, stream, begins),
            Step::Forget(stream) => self.forget(stream),
            Step::Turn => self.turn(),
            Step::Seconds(s) => {
                self.now.s += s;
                self.now.unix_s += s;
                self.home.tick(self.now.unix_s);
                while self.home.remove_expired(&self.rules, self.now) {}
            }
        }
    }

    fn join(&mut self, topic: usize, shard: ShardId) {
        let name = name(topic);
        let (key, rules) = (name.as_bytes(), &self.rules);
        let hash = self.home.topics.hash_of(key);
        let room = self.home.admit_topic(hash, key, NOBODY, self.now);
        if room.is_ok() {
            let found = self.home.topics.find(hash, key);
            let id =
                found.unwrap_or_else(|| self.home.insert_topic(hash, key, NOBODY, rules, self.now));
            let (serial, carrier_row, subscribers) = (1, topic as u32, 1);
            self.home.add_subscriber(
                id,
                Carrier {
                    shard,
                    serial,
                    carrier_row,
                    subscribers,
                },
            );
            self.subscribers.push((topic, shard));
            self.left_s.remove(&name);
        }
    }

    fn stream_begins(
        &mut self,
        key: fn(u64) -> FollowerKey,
        filter: &'static str,
        partition: Option<u16>,
    ) {
        self.followed += 1;
        let mut client = Client::new(key(self.followed.into()), filter);
        client.partition = partition;
        client.take_from(&mut self.home, true);
        self.clients.push(client);
    }

    fn remote(&mut self, topic: usize, stream: u8, begins: bool) {
        // Interest at another node ends without a debounce here.
        self.left_s.remove(&name(topic));
        let mut news = InterestChanges::default();
        news.push(begins, name(topic).as_bytes());
        let order = Interest::ApplyRemote(stream, news);
        let taken = self.home.handle_interest_order(order);
        let InterestReply::Refused(refused) = taken else {
            panic!("{taken:?}")
        };
        let pair = (topic, stream);
        match begins {
            true if refused == 0 => self.remote.insert(pair),
            _ => self.remote.remove(&pair),
        };
    }

    fn forget(&mut self, stream: u8) {
        let order = Interest::DropStream(stream, [].into());
        let forgot = self.home.handle_interest_order(order);
        assert!(matches!(forgot, InterestReply::Dropped(None)), "{forgot:?}");
        for (topic, _) in self.remote.extract_if(.., |(_, of)| *of == stream) {
            // Interest at another node ends without a debounce here.
            self.left_s.remove(&name(topic));
        }
    }

    fn follow(&mut self, filter: &'static str) {
        self.followed += 1;
        let to = ReplyTo {
            slot: self.followed,
            generation: 0,
            request: 0,
            part: 0,
        };
        self.home
            .follow(1, to, Party::of_address(NOBODY), filter.as_bytes());
        self.clients
            .push(Client::new(FollowerKey::Connection(1, to), filter));
    }

    fn turn(&mut self) {
        self.home.end_turn();
        self.home.send_interest_news(self.now, &mut self.lanes);
        for tell in core::mem::take(&mut self.lanes.to[1].tells) {
            let Tell::Interest { to, news, part } = tell else {
                panic!("{tell:?} to a follower")
            };
            let is = |client: &&mut Client| matches!(client.key, FollowerKey::Connection(_, it) if it == to);
            let Some(client) = self.clients.iter_mut().find(is) else {
                continue;
            };
            for name in client.take(&news) {
                let debounce_s = self.settings.interest.debounce_s;
                if let Some(left_s) = self.left_s.get(&name).filter(|_| self.has_room) {
                    assert!(self.now.s - left_s >= debounce_s, "{name} ends early");
                }
            }
            client.asked &= part == InterestPart::Live;
            client.whole |= part == InterestPart::LastSnapshotPage;
        }
        for client in &mut self.clients {
            match client.key {
                FollowerKey::Connection(shard, to) if !client.whole && !client.asked => {
                    client.asked = true;
                    self.home
                        .continue_snapshot(shard, to, Party::of_address(NOBODY));
                }
                FollowerKey::Connection(..) => {}
                FollowerKey::Node(_) | FollowerKey::Webhook(_) => {
                    client.take_from(&mut self.home, false);
                }
            }
        }
    }

    /// Waits until everything has settled: snapshots are complete, and no interest is left that only the debounce prolongs.
    fn settle(&mut self) {
        for _ in 0..2 * TOPICS {
            self.turn();
        }
        self.now.s += self.settings.interest.debounce_s + 1;
        self.turn();
        let expected = |client: &Client| {
            let here = self.subscribers.iter().map(|(topic, _)| name(*topic));
            let others = self.remote.iter().map(|(topic, _)| name(*topic));
            let is_node = matches!(client.key, FollowerKey::Node(_));
            let all = here.chain(others.filter(|_| !is_node));
            all.filter(|name| topic::matches(client.filter.as_bytes(), name.as_bytes()))
                .filter(|name| {
                    let partition = TWO_PARTITIONS.partition_of(name.as_bytes());
                    client.partition.is_none_or(|it| it == partition)
                })
                .collect::<BTreeSet<_>>()
        };
        for client in &self.clients {
            assert!(client.whole);
            assert_eq!(client.present, expected(client), "{}", client.filter);
        }
        assert!(self.home.interest.followers.nothing_lingers());
    }
}

proptest! {
    #[test]
    fn followers_are_told_the_exact_interest(
        steps in steps(),
        debounce_s in 0..4_u32,
        topics_max in prop::sample::select(alloc::vec![TOPICS / 2, 10 * TOPICS]),
    ) {
        let mut fixture = Fixture::new(debounce_s, topics_max);
        for step in &steps {
            fixture.step(step);
        }
        fixture.settle();
    }
}
