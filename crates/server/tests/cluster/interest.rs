//! Tests followers of interest: clients that are told which topics have subscribers. They are told of the subscribers at all nodes.

use std::collections::BTreeSet;

use crate::servers::Servers;
use crate::settings;
use crate::support::interest::{Event, Follower, subscriber, topic_set};
use crate::support::port::get;
use crate::support::stream::Stream;
use crate::support::{Server, until};

/// The number of connections that subscribe before the follower connects, and the number of topics of each. The topics fill several pages
/// of a snapshot, and several answers of a node.
const CROWD: (usize, usize) = (64, 32);

/// Two nodes that know each other, and that report changes without delay.
fn two_nodes() -> Option<(Servers, Server, Server)> {
    let servers = Servers::start(3)?;
    let settings = format!("{}[interest]\ndebounce_s = 0\n", settings(&servers));
    let (node_a, node_b) = (Server::with_admin(&settings), Server::with_admin(&settings));
    until("both nodes at each", || {
        let nodes = |server: &Server| get(server.admin(), "cluster")["nodes"].clone();
        [&node_a, &node_b]
            .into_iter()
            .all(|server| nodes(server).as_array().is_some_and(|it| it.len() == 2))
    });
    Some((servers, node_a, node_b))
}

#[test]
fn topic_has_interest_while_any_node_has_a_subscriber() {
    let Some((_servers, node_a, node_b)) = two_nodes() else {
        return;
    };
    let subscriber_before = subscriber(&node_b, "a/1");
    let mut follower = Follower::open(&node_a, "/interest?match=a/%23");
    let mut follower_b = Follower::open(&node_b, "/interest?match=a/%23");
    assert_eq!(*follower_b.read_snapshot(), topic_set(["a/1"]));
    let next_change = |follower: &mut Follower| loop {
        match follower.next() {
            Event::Whole(_) => {}
            next_change => return next_change,
        }
    };
    // Events for one topic may come several times before this node knows the other node's subscriber, so only the final set is compared.
    let read_until_all = |follower: &mut Follower, topics_seen: BTreeSet<String>| {
        while follower.topics != topics_seen {
            follower.next();
        }
    };
    let first = |name: &str| Event::First(name.into());
    let last = |name: &str| Event::Last(name.into());
    assert_eq!(next_change(&mut follower), first("a/1"));
    // A topic has interest until its last subscriber at any node leaves. The follower is not told of topics that it does not follow.
    let also_at_a = subscriber(&node_a, "a/1");
    let _not_followed = subscriber(&node_b, "b");
    drop(subscriber_before);
    let second_topic = subscriber(&node_b, "a/2");
    assert_eq!(next_change(&mut follower), first("a/2"));
    read_until_all(&mut follower_b, topic_set(["a/1", "a/2"]));
    drop(also_at_a);
    assert_eq!(next_change(&mut follower), last("a/1"));
    read_until_all(&mut follower_b, topic_set(["a/2"]));
    drop(second_topic);
    assert_eq!(next_change(&mut follower), last("a/2"));
    read_until_all(&mut follower_b, topic_set([]));
    // A follower of another filter receives its own events.
    let mut second = Follower::open(&node_a, "/interest?match=b");
    assert_eq!(next_change(&mut second), first("b"));
    // The subscribers of a node that dies no longer count.
    let _gone = subscriber(&node_b, "a/3");
    assert_eq!(next_change(&mut follower), first("a/3"));
    node_b.kill();
    assert_eq!(next_change(&mut follower), last("a/3"));
    assert_eq!(next_change(&mut second), last("b"));
}

#[test]
fn large_snapshot_of_another_node_is_complete_also_after_a_pause() {
    let Some((_servers, node_a, node_b)) = two_nodes() else {
        return;
    };
    let mut topics_seen = BTreeSet::new();
    let crowd = (0..CROWD.0).map(|n| {
        let topics = (0..CROWD.1).map(|m| format!("{n}/{m}/{}", "x".repeat(150)));
        let topics: Vec<String> = topics.collect();
        let query: Vec<String> = topics.iter().map(|it| format!("topic={it}")).collect();
        topics_seen.extend(topics);
        Stream::open(&node_b, &format!("/sub?{}", query.join("&")), &[])
    });
    let mut crowd: Vec<Stream> = crowd.collect();
    let mut follower = Follower::open(&node_a, "/interest");
    while follower.topics != topics_seen {
        follower.next();
    }
    // Subscribers of a node that others take for dead no longer count. They count again when the node comes back.
    node_b.signal("STOP");
    while !follower.topics.is_empty() {
        follower.next();
    }
    node_b.signal("CONT");
    while follower.topics != topics_seen {
        follower.next();
    }
    crowd.truncate(1);
    while follower.topics.len() > CROWD.1 {
        follower.next();
    }
    assert!(follower.topics.iter().all(|name| name.starts_with("0/")));
}
