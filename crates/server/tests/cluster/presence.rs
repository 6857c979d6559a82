//! Tests presence in a cluster: every node knows the members at all nodes, whatever happens to a node.

use std::collections::BTreeMap;

use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};

use crate::servers::Servers;
use crate::support::http::once;
use crate::support::port::get;
use crate::support::stream::Stream;
use crate::support::ws::Ws;
use crate::support::{Server, until};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

pub fn settings(servers: &Servers, leave_s: u32, presence: bool) -> String {
    let more = format!(
        "presence = {presence}\n[presence]\nleave_s = {leave_s}\n[access.anonymous]\npresence = ['#']\n\
         [access]\n[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n"
    );
    crate::settings(servers) + &more
}

fn node(servers: &Servers, leave_s: u32) -> Server {
    Server::with_admin(&settings(servers, leave_s, true))
}

/// Nodes that know each other.
fn nodes<const N: usize>(leave_s: u32) -> Option<(Servers, [Server; N])> {
    let servers = Servers::start(1)?;
    let nodes = [0; N].map(|_| node(&servers, leave_s));
    know_each_other(&nodes);
    Some((servers, nodes))
}

pub fn know_each_other(nodes: &[Server]) {
    until("all nodes at each", || {
        let known = |server: &Server| get(server.admin(), "cluster")["nodes"].clone();
        let mut nodes_at = nodes.iter().map(known);
        nodes_at.all(|known| known.as_array().map(Vec::len) == Some(nodes.len()))
    });
}

fn subscriber(server: &Server, user: &str) -> Ws {
    subscriber_of(server, "room", user)
}

/// A connection of this user that subscribes to a topic.
pub fn subscriber_of(server: &Server, topic: &str, user: &str) -> Ws {
    let claims = json!({"sub": user, "exp": 4_000_000_000u32, "subscribe": "#", "presence_info": {"name": user}});
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let token = jsonwebtoken::encode(&Header::default(), &claims, &key).expect("a token");
    Ws::open(server, &format!("/sub/{topic}?token={token}"), &[])
}

fn read(server: &Server) -> Value {
    let answer = once(server, "GET", "/presence/room", &[], "");
    assert_eq!(answer.status, 200, "{answer:?}");
    let read = answer.json();
    // Before a node has heard of all others, the age counts from its start.
    assert!(read["age"].as_u64().unwrap_or_default() < 100_000, "{read}");
    read
}

/// The users of the members, as a node lists them.
fn users(server: &Server) -> Vec<String> {
    let read = read(server);
    let members = read["members"].as_array().expect("a list");
    let user = |member: &Value| member["user"].as_str().unwrap_or_default().to_string();
    let mut users: Vec<String> = members.iter().map(user).collect();
    users.sort();
    users
}

fn await_users(server: &Server, wanted: &[&str]) {
    until(&format!("{wanted:?}"), || users(server) == wanted);
}

/// A watcher that checks its events: only members that have not joined join, and only members that have joined leave.
struct Watcher {
    stream: Stream,
    members: BTreeMap<String, Value>,
}

impl Watcher {
    fn open(server: &Server) -> Watcher {
        let mut watcher = Watcher {
            stream: Stream::open(server, "/presence/room", &[]),
            members: BTreeMap::new(),
        };
        while watcher.next().0 != "whole" {}
        watcher
    }

    fn next(&mut self) -> (String, String) {
        let event = self.stream.event().expect("the stream goes on");
        let data: Value = serde_json::from_str(&event.data).expect("JSON");
        let id = || data["id"].as_str().expect("an id").to_string();
        match &*event.kind {
            "reset" => self.members.clear(),
            "join" => {
                let former = self.members.insert(id(), data.clone());
                assert_eq!(former, None, "{data} joins twice");
            }
            "leave" => assert!(self.members.remove(&id()).is_some(), "{data} leaves twice"),
            _ => {}
        }
        let user = data["user"].as_str().unwrap_or_default();
        (event.kind, user.to_string())
    }

    /// The next events, which must be these: `+` and the user for a join, `-` and the user for a leave.
    fn expect(&mut self, wanted: &[&str]) {
        for wanted in wanted {
            let (kind, user) = loop {
                match self.next() {
                    (kind, _) if kind == "count" => {}
                    event => break event,
                }
            };
            let sign = if kind == "join" { '+' } else { '-' };
            assert_eq!(format!("{sign}{user}"), *wanted, "{kind}");
        }
    }
}

#[test]
fn members_of_all_nodes_are_present_at_each_node() {
    let Some((servers, [one, other])) = nodes::<2>(0) else {
        return;
    };
    let mut watchers = [Watcher::open(&one), Watcher::open(&other)];
    let ann = subscriber(&one, "ann");
    watchers.iter_mut().for_each(|it| it.expect(&["+ann"]));
    let bob = subscriber(&other, "bob");
    watchers.iter_mut().for_each(|it| it.expect(&["+bob"]));
    for server in [&one, &other] {
        let read = read(server);
        assert_eq!((&read["clients"], &read["users"]), (&json!(2), &json!(2)));
        assert_eq!(read.get("age"), None, "{read}");
        let members = read["members"].as_array().expect("a list");
        for (member, user) in members.iter().zip(["ann", "bob"]) {
            assert_eq!(member["user"], user);
            assert_eq!(member["info"], json!({"name": user}));
        }
        assert_ne!(members[0]["node"], members[1]["node"]);
    }
    // The same connection has one name at all nodes.
    let names = |server: &Server| {
        let members = read(server)["members"].as_array().expect("a list").clone();
        let name = |it: &Value| (it["node"].clone(), it["client"].clone());
        members.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&one), names(&other));
    // A node that joins learns of those who are there.
    let late = node(&servers, 0);
    await_users(&late, &["ann", "bob"]);
    drop(ann);
    watchers.iter_mut().for_each(|it| it.expect(&["-ann"]));
    await_users(&late, &["bob"]);
    drop(bob);
    watchers.iter_mut().for_each(|it| it.expect(&["-bob"]));
    await_users(&late, &[]);
}

#[test]
fn node_with_presence_turned_off_for_a_while_learns_the_missed_changes() {
    let Some((servers, [one, other])) = nodes::<2>(0) else {
        return;
    };
    let ann = subscriber(&one, "ann");
    await_users(&other, &["ann"]);
    let status = || once(&other, "GET", "/presence/room", &[], "").status;
    other.reload(&settings(&servers, 0, false));
    until("no presence", || status() == 404);
    drop(ann);
    let _bob = subscriber(&one, "bob");
    await_users(&one, &["bob"]);
    other.reload(&settings(&servers, 0, true));
    until("presence", || status() == 200);
    await_users(&other, &["bob"]);
}

#[test]
fn member_that_moves_to_another_node_is_neither_leave_nor_join() {
    let Some((_servers, [one, other])) = nodes::<2>(30) else {
        return;
    };
    let mut watchers = [Watcher::open(&one), Watcher::open(&other)];
    let mut ann = subscriber(&one, "ann");
    watchers.iter_mut().for_each(|it| it.expect(&["+ann"]));
    let node_of_ann = |server: &Server| read(server)["members"][0]["node"].clone();
    for there in [&other, &one, &other] {
        let before = node_of_ann(&one);
        drop(ann);
        ann = subscriber(there, "ann");
        for server in [&one, &other] {
            until("ann has moved", || {
                let has_moved = node_of_ann(server) != before;
                has_moved && users(server) == ["ann"]
            });
        }
    }
    let _bob = subscriber(&one, "bob");
    watchers.iter_mut().for_each(|it| it.expect(&["+bob"]));
}

#[test]
fn members_of_a_dead_node_leave_once_unless_they_reconnect() {
    let Some((_servers, [mut one, other, third])) = nodes::<3>(2) else {
        return;
    };
    let mut watchers = [Watcher::open(&other), Watcher::open(&third)];
    let mut told = |events: &[&str]| watchers.iter_mut().for_each(|it| it.expect(events));
    let _ann = subscriber(&one, "ann");
    told(&["+ann"]);
    let _bob = subscriber(&one, "bob");
    told(&["+bob"]);
    one.crash();
    // The others do not know yet that the node is dead.
    let _bob = subscriber(&other, "bob");
    told(&["-ann"]);
    let _cid = subscriber(&third, "cid");
    told(&["+cid"]);
    for server in [&other, &third] {
        await_users(server, &["bob", "cid"]);
    }
}

#[test]
fn node_cut_off_from_others_keeps_its_view_and_reports_its_age() {
    let Some((mut servers, [one, other])) = nodes::<2>(1) else {
        return;
    };
    let ann = subscriber(&one, "ann");
    let _bob = subscriber(&other, "bob");
    for server in [&one, &other] {
        await_users(server, &["ann", "bob"]);
    }
    servers.kill(0);
    until("an old view", || read(&other)["stale"] == true);
    let cut = read(&other);
    assert!(cut["age"].as_u64().is_some_and(|age| age > 5), "{cut}");
    assert_eq!(users(&other), ["ann", "bob"]);
    let fresh = once(&other, "GET", "/presence/room?stats=1", &[], "");
    assert_eq!(fresh.json()["stale"], true);
    drop(ann);
    await_users(&one, &["bob"]);
    assert_eq!(users(&other), ["ann", "bob"]);
    servers.run(0);
    await_users(&other, &["bob"]);
    until("a fresh view", || read(&other).get("stale").is_none());
    await_users(&one, &["bob"]);
    // Whoever has an old view does not keep it.
    servers.kill(0);
    until("an old view", || read(&other)["stale"] == true);
    let tag = once(&other, "GET", "/presence/room", &[], "").header("etag");
    let tag = tag.expect("a tag");
    servers.run(0);
    until("a fresh view", || read(&other).get("stale").is_none());
    let known = [("If-None-Match", tag.as_str())];
    let fresh = once(&other, "GET", "/presence/room", &known, "");
    assert_eq!(fresh.status, 200, "{tag}");
}
