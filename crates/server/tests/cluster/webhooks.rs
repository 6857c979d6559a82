//! Tests webhooks of a cluster: the steward of a topic's partition tells of the subscribers and members at all nodes, and if it dies, the next steward tells
//! what no endpoint has taken.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::presence::{know_each_other, settings, subscriber_of};
use crate::servers::Servers;
use crate::support::http::once;
use crate::support::webhook_receiver::{Mode, Receiver, Request};
use crate::support::{Server, until};

/// The partitions of a new cluster.
const PARTS: usize = 4;
const OF_TOPICS: &str = "private = true\nevents = ['channel_occupied', 'channel_vacated', 'member_added', 'member_removed']";

/// What an endpoint knows of a part.
#[derive(Clone, Default)]
struct Part {
    term: u64,
    /// The name of the node that has told it.
    node: String,
    topics: BTreeSet<String>,
    /// The users of the members, by topic and number of the member.
    members: BTreeMap<(String, String), String>,
    is_complete: bool,
    /// The topics and users when the last snapshot was complete.
    snapshot: (BTreeSet<String>, BTreeSet<String>),
}

impl Part {
    fn users(&self) -> BTreeSet<String> {
        self.members.values().cloned().collect()
    }

    fn take(&mut self, event: &Value) {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_string();
        let member = || (text("topic"), text("member"));
        let is_change = match event["event"].as_str().expect("a name") {
            "resync" => {
                (self.topics, self.members) = Default::default();
                self.is_complete = false;
                true
            }
            "resync_end" => {
                self.snapshot = (self.topics.clone(), self.users());
                !std::mem::replace(&mut self.is_complete, true)
            }
            "channel_occupied" => self.topics.insert(text("topic")),
            "channel_vacated" => self.topics.remove(&text("topic")),
            "member_added" => self.members.insert(member(), text("user")).is_none(),
            "member_removed" => self.members.remove(&member()).is_some(),
            other => panic!("{other}"),
        };
        assert!(is_change, "{event} is told twice");
    }
}

/// What an endpoint knows if it follows the documentation: it forgets repeated events, and ignores former stewards.
#[derive(Default)]
struct Told {
    parts: BTreeMap<u64, Part>,
    ids: BTreeSet<String>,
}

impl Told {
    /// From the requests that the endpoint has answered well.
    fn by(receiver: &Receiver) -> Told {
        let mut told = Told::default();
        let requests = receiver.requests();
        let taken = requests.iter().filter(|it| it.is_taken);
        taken.for_each(|request| told.take(request));
        told
    }

    fn take(&mut self, request: &Request) {
        let body = request.json();
        let (number, term) = (&body["part"], body["term"].as_u64().expect("a term"));
        let part = (self.parts)
            .entry(number.as_u64().expect("a part"))
            .or_default();
        if term < part.term {
            return;
        }
        let events = request.events();
        if term > part.term {
            assert_eq!(events[0]["event"], "resync", "of a new steward");
            part.node = body["node"].as_str().expect("a node").to_string();
            part.term = term;
        }
        assert_eq!(
            (&body["node"], &body["parts"]),
            (&part.node.as_str().into(), &PARTS.into())
        );
        for event in events {
            if self.ids.insert(event["id"].to_string()) {
                part.take(&event);
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.parts.len() == PARTS && self.parts.values().all(|part| part.is_complete)
    }

    fn all<'a>(&'a self, of: impl Fn(&'a Part) -> BTreeSet<String>) -> BTreeSet<String> {
        self.parts.values().flat_map(of).collect()
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// Waits until an endpoint knows these topics and users, and no others.
fn await_told(receiver: &Receiver, topics: &[&str], users: &[&str]) -> Told {
    let mut told = Told::default();
    until(&format!("{topics:?} with {users:?}"), || {
        told = Told::by(receiver);
        let is_known = told.all(|part| part.topics.clone()) == set(topics);
        told.is_complete() && is_known && told.all(Part::users) == set(users)
    });
    told
}

/// A receiver, and nodes that tell it. The first one is the steward of all partitions.
fn nodes<const N: usize>(servers: &Servers) -> (Receiver, [Server; N]) {
    let receiver = Receiver::start(Mode::Status(204));
    let settings =
        receiver.settings(OF_TOPICS) + "[interest]\ndebounce_s = 0\n" + &settings(servers, 0, true);
    let nodes = std::array::from_fn(|number| {
        let node = Server::with_admin(&settings);
        if number == 0 {
            await_told(&receiver, &[], &[]);
        }
        node
    });
    know_each_other(&nodes);
    (receiver, nodes)
}

#[test]
fn steward_tells_of_all_nodes_once_and_the_next_one_tells_what_was_not_taken() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (receiver, mut nodes) = nodes::<3>(&servers);
    let _ann = subscriber_of(&nodes[0], "room", "ann");
    let _gus = subscriber_of(&nodes[0], "gone", "gus");
    let bob = subscriber_of(&nodes[1], "room", "bob");
    let cid = subscriber_of(&nodes[2], "room", "cid");
    // Whichever node is the next steward, one of these topics has subscribers at the other node only.
    let _eve = subscriber_of(&nodes[1], "one", "eve");
    let _fay = subscriber_of(&nodes[2], "other", "fay");
    let topics = ["gone", "one", "other", "room"];
    let users = ["ann", "bob", "cid", "eve", "fay", "gus"];
    let first = await_told(&receiver, &topics, &users);
    drop(cid);
    await_told(&receiver, &topics, &["ann", "bob", "eve", "fay", "gus"]);
    let events = receiver.events();
    let count = |name: &str| events.iter().filter(|it| it["event"] == name).count();
    let counts = [
        "channel_occupied",
        "channel_vacated",
        "member_added",
        "member_removed",
    ];
    assert_eq!(
        counts.map(count),
        [4, 0, 6, 1],
        "no repeat, since all was taken"
    );

    receiver.set(Mode::Status(500));
    let dan = subscriber_of(&nodes[2], "room", "dan");
    until("a request that is not taken", || {
        receiver.events().iter().any(|event| event["user"] == "dan")
    });
    nodes[0].crash();
    receiver.set(Mode::Status(204));
    let (topics, users) = (["one", "other", "room"], ["bob", "dan", "eve", "fay"]);
    let second = await_told(&receiver, &topics, &users);
    for (number, part) in &second.parts {
        let former = &first.parts[number];
        assert!(part.term > former.term && part.node != former.node);
    }
    assert_eq!(second.all(|part| part.snapshot.0.clone()), set(&topics));
    // The members of the dead node may leave a moment later.
    let in_snapshot = second.all(|part| part.snapshot.1.clone());
    assert!(in_snapshot.is_superset(&set(&users)), "{in_snapshot:?}");
    drop((bob, dan));
    await_told(&receiver, &["one", "other"], &["eve", "fay"]);
}

#[test]
fn steward_that_is_cut_off_tells_nothing_until_it_is_back() {
    let Some(mut servers) = Servers::start(1) else {
        return;
    };
    let (receiver, [steward, _other]) = nodes::<2>(&servers);
    let _zoe = subscriber_of(&steward, "room", "zoe");
    await_told(&receiver, &["room"], &["zoe"]);
    servers.kill(0);
    let age = || {
        let answer = once(&steward, "GET", "/presence/room", &[], "");
        answer.json()["age"].as_u64().unwrap_or_default()
    };
    until("an old view", || age() > 5);
    let _ann = subscriber_of(&steward, "room", "ann");
    let joined_at_age = age();
    // Meanwhile, a webhook has been told long ago where nothing holds it back.
    until("a still older view", || age() > joined_at_age + 2);
    let events = receiver.events();
    assert!(!events.iter().any(|event| event["user"] == "ann"));
    servers.run(0);
    await_told(&receiver, &["room"], &["ann", "zoe"]);
}

#[test]
fn steward_that_stops_for_a_while_is_replaced_and_its_clients_are_told_again_when_it_is_back() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (receiver, [steward, other]) = nodes::<2>(&servers);
    let _ann = subscriber_of(&steward, "room", "ann");
    let _bob = subscriber_of(&other, "room", "bob");
    let first = await_told(&receiver, &["room"], &["ann", "bob"]);
    // With a request that is repeated when it goes on.
    receiver.set(Mode::Status(500));
    let _cid = subscriber_of(&steward, "room", "cid");
    until("a request that is not taken", || {
        receiver.events().iter().any(|event| event["user"] == "cid")
    });
    steward.signal("STOP");
    receiver.set(Mode::Status(204));
    let second = await_told(&receiver, &["room"], &["bob"]);
    for (number, part) in &second.parts {
        let former = &first.parts[number];
        assert!(part.term > former.term && part.node != former.node);
    }
    steward.signal("CONT");
    let last = await_told(&receiver, &["room"], &["ann", "bob", "cid"]);
    assert!(
        last.parts
            .values()
            .all(|part| part.node == second.parts[&0].node)
    );
}
