//! Tests a node whose clock is wrong: other nodes report it, and no client of any node misses a message.

use crate::servers::Servers;
use crate::support::clock::Clock;
use crate::support::http::once;
use crate::support::port::get;
use crate::support::stream::Stream;
use crate::support::until;
use crate::{node, settings};

/// How far the clock is ahead: more than the maximum age of messages by default.
const AHEAD_S: i64 = 7_200;

#[test]
fn clock_that_is_ahead_is_reported_and_loses_no_message() {
    let Some(clock) = Clock::new("cluster", AHEAD_S) else {
        return;
    };
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let correct_node = node(&servers);
    let late_clock_node = clock.server(&settings(&servers));
    late_clock_node.await_log("s ahead of that of NATS");
    for (at, topic) in [(&correct_node, "a"), (&late_clock_node, "b")] {
        let fields = [("Crore-TTL", "600"), ("Idempotency-Key", "\"k\"")];
        let answer = once(at, "POST", &format!("/pub/{topic}"), &fields, "kept");
        assert!([201, 202].contains(&answer.status), "{answer:?}");
        for node in [&correct_node, &late_clock_node] {
            let mut stream = Stream::open(node, &format!("/sub/{topic}?since=oldest"), &[]);
            assert_eq!(stream.data(1), ["kept"]);
            let retry = once(node, "POST", &format!("/pub/{topic}"), &fields, "kept");
            let replayed = retry.header("idempotency-replayed");
            assert_eq!(replayed.as_deref(), Some("true"), "{retry:?}");
        }
    }
    until("the problem at both nodes", || {
        [&correct_node, &late_clock_node].into_iter().all(|node| {
            let status = get(node.admin(), "cluster");
            let problems = status["problems"].as_array().expect("problems");
            let mut texts = problems.iter().filter_map(|problem| problem.as_str());
            texts.any(|text| {
                text.starts_with("the clock of node ") && text.contains("ahead of that of NATS")
            })
        })
    });
}
