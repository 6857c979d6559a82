//! Tests that followers of interest (clients that are told which topics have subscribers) are told of the subscribers at all nodes.

use std::collections::BTreeSet;

use crate::servers::Servers;
use crate::settings;
use crate::support::interest::{Follower, Told, names, subscriber};
use crate::support::port::get;
use crate::support::stream::Stream;
use crate::support::{Server, until};

/// Number of connections that subscribe before anybody follows, and of the topics of each. They fill several pages of a snapshot, and
/// several answers of a node.
const CROWD: (usize, usize) = (64, 32);

/// Two nodes that know each other, and that report changes without delay.
fn two_nodes() -> Option<(Servers, Server, Server)> {
    let servers = Servers::start(3)?;
    let settings = format!("{}[interest]\ndebounce_s = 0\n", settings(&servers));
    let (one, other) = (Server::with_admin(&settings), Server::with_admin(&settings));
    until("both nodes at each", || {
        let nodes = |server: &Server| get(server.admin(), "cluster")["nodes"].clone();
        [&one, &other]
            .into_iter()
            .all(|server| nodes(server).as_array().is_some_and(|it| it.len() == 2))
    });
    Some((servers, one, other))
}

#[test]
fn a_topic_has_interest_while_it_has_a_subscriber_at_any_node() {
    let Some((_servers, one, other)) = two_nodes() else {
        return;
    };
    let before = subscriber(&other, "a/1");
    let mut follower = Follower::open(&one, "/interest?match=a/%23");
    let mut there = Follower::open(&other, "/interest?match=a/%23");
    assert_eq!(*there.whole(), names(["a/1"]));
    let told = |follower: &mut Follower| loop {
        match follower.next() {
            Told::Whole(_) => {}
            told => return told,
        }
    };
    // Events for one topic may come several times before this node knows the other node's subscriber, so only the final set is compared.
    let until_present = |follower: &mut Follower, all: BTreeSet<String>| {
        while follower.present != all {
            follower.next();
        }
    };
    let first = |name: &str| Told::First(name.into());
    let last = |name: &str| Told::Last(name.into());
    assert_eq!(told(&mut follower), first("a/1"));
    // A topic has interest until its last subscriber at any node leaves. The follower is not told of topics that it does not follow.
    let same = subscriber(&one, "a/1");
    let _not_followed = subscriber(&other, "b");
    drop(before);
    let more = subscriber(&other, "a/2");
    assert_eq!(told(&mut follower), first("a/2"));
    until_present(&mut there, names(["a/1", "a/2"]));
    drop(same);
    assert_eq!(told(&mut follower), last("a/1"));
    until_present(&mut there, names(["a/2"]));
    drop(more);
    assert_eq!(told(&mut follower), last("a/2"));
    until_present(&mut there, names([]));
    // A follower of another filter receives its own events.
    let mut second = Follower::open(&one, "/interest?match=b");
    assert_eq!(told(&mut second), first("b"));
    // The subscribers of a node that dies no longer count.
    let _gone = subscriber(&other, "a/3");
    assert_eq!(told(&mut follower), first("a/3"));
    other.kill();
    assert_eq!(told(&mut follower), last("a/3"));
    assert_eq!(told(&mut second), last("b"));
}

#[test]
fn a_large_snapshot_of_another_node_comes_whole_and_again_after_its_pause() {
    let Some((_servers, one, other)) = two_nodes() else {
        return;
    };
    let mut all = BTreeSet::new();
    let crowd = (0..CROWD.0).map(|n| {
        let topics = (0..CROWD.1).map(|m| format!("{n}/{m}/{}", "x".repeat(150)));
        let topics: Vec<String> = topics.collect();
        let query: Vec<String> = topics.iter().map(|it| format!("topic={it}")).collect();
        all.extend(topics);
        Stream::open(&other, &format!("/sub?{}", query.join("&")), &[])
    });
    let mut crowd: Vec<Stream> = crowd.collect();
    let mut follower = Follower::open(&one, "/interest");
    while follower.present != all {
        follower.next();
    }
    // Subscribers of a node that others take for dead no longer count. They count again when the node comes back.
    other.signal("STOP");
    while !follower.present.is_empty() {
        follower.next();
    }
    other.signal("CONT");
    while follower.present != all {
        follower.next();
    }
    crowd.truncate(1);
    while follower.present.len() > CROWD.1 {
        follower.next();
    }
    assert!(follower.present.iter().all(|name| name.starts_with("0/")));
}
