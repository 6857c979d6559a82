//! Tests checkpoints in the object store: the state that an empty node reads from them, and what may then be removed from the log.

use std::path::Path;

use crore_wire::mqtt::Version;
use crore_wire::sse::GAP_EVENT;
use serde_json::Value;

use crate::jetstream::{JetStream, sequence};
use crate::join::refusal;
use crate::servers::Servers;
use crate::settings;
use crate::support::clock::Clock;
use crate::support::http::{once, publish};
use crate::support::mqtt::{self, message};
use crate::support::stream::Stream;
use crate::support::{Server, eventually, port, program, until};

pub const PARTITIONS: u64 = 16;
const KEY: [(&str, &str); 1] = [("Idempotency-Key", "\"k\"")];

/// A node that makes checkpoints soon, and whose topics keep much.
fn node(servers: &Servers, more: &str) -> Server {
    node_of(&program(), servers, more)
}

/// Such a node from another build.
pub fn node_of(program: &Path, servers: &Servers, more: &str) -> Server {
    Server::of(program, &settings_of(servers, more))
}

fn settings_of(servers: &Servers, more: &str) -> String {
    let first = format!(
        "checkpoint_bytes = \"1MiB\"\n{more}\n[[rule]]\nmatch = \"fill/#\"\nlog_messages = 0\n[[rule]]"
    );
    let settings = settings(servers).replace("[[rule]]", &first);
    format!("partitions = {PARTITIONS}\n{settings}log_bytes = \"64MiB\"\n")
}

/// The partitions, as a node's API shows them.
pub fn partitions(node: &Server) -> Vec<Value> {
    let shown = port::get(node.admin(), "cluster");
    shown["partitions"].as_array().expect("partitions").clone()
}

/// Publishes enough to make a checkpoint due in each partition. The messages are not kept.
fn fill(node: &Server) {
    let text = "x".repeat(50_000);
    for n in 0..80 {
        publish(node, &format!("fill/{n}"), &text);
        publish(node, &format!("fill/{n}"), &text);
    }
}

/// Waits until each partition has a checkpoint of all that this node has read so far. Returns the places in the log.
fn await_checkpoints(node: &Server) -> Vec<u64> {
    let read = |it: &Value| it["read"].as_u64().expect("a place");
    let now: Vec<u64> = partitions(node).iter().map(read).collect();
    fill(node);
    eventually("checkpoints", || {
        let shown = partitions(node);
        let newest = shown.iter().map(|it| it["checkpoint"].as_u64());
        let newest: Vec<u64> = newest.collect::<Option<_>>()?;
        let are_there = newest.iter().zip(&now).all(|(newest, now)| newest >= now);
        are_there.then_some(newest)
    })
}

/// Publishes a retained value.
fn retain(node: &Server, topic: &str, value: &[u8]) {
    let mut publisher = mqtt::Conn::at(node, Version::V5);
    publisher.connect(&mqtt::plain(Version::V5, "publisher"));
    let mut retained = message(topic, 1, 1, value);
    retained.retain = true;
    publisher.publish(&retained);
    publisher.packet();
}

/// The retained value that a new subscriber receives.
fn retained(node: &Server, topic: &str) -> Vec<u8> {
    let mut subscriber = mqtt::Conn::at(node, Version::V5);
    subscriber.connect(&mqtt::plain(Version::V5, "subscriber"));
    subscriber.subscribe(topic, 0);
    let came = subscriber.packet();
    assert!(came.publish().retain);
    came.publish().payload.to_vec()
}

/// Makes this node keep something of each kind. Returns the positions of ten messages.
pub fn keep_all_kinds(one: &Server) -> Vec<String> {
    for n in 0..40 {
        retain(one, &format!("state/{n}"), format!("old {n}").as_bytes());
        retain(one, &format!("state/{n}"), format!("new {n}").as_bytes());
    }
    let first = once(one, "POST", "/pub/keyed", &KEY, "once");
    assert!([201, 202].contains(&first.status), "{first:?}");
    for n in 0..10 {
        publish(one, "a", n.to_string());
    }
    publish(one, "gone", "x");
    assert_eq!(once(one, "PUT", "/pub/made", &[], "").status, 201);
    assert_eq!(once(one, "DELETE", "/pub/gone", &[], "").status, 200);
    let mut stream = Stream::open(one, "/sub/a?since=oldest", &[]);
    let ids = (0..10).map(|_| stream.event().expect("an event").id);
    ids.collect()
}

/// Checks that a node has at once all that `keep_all_kinds` published.
pub fn has_all_kinds(late: &Server, ids: &[String]) {
    for n in 0..40 {
        let value = retained(late, &format!("state/{n}"));
        assert_eq!(value, format!("new {n}").as_bytes());
    }
    let again = once(late, "POST", "/pub/keyed", &KEY, "once");
    let replayed = again.header("idempotency-replayed");
    assert_eq!(replayed.as_deref(), Some("true"), "{again:?}");
    assert_eq!(once(late, "GET", "/pub/made", &[], "").status, 200);
    assert_eq!(once(late, "GET", "/pub/gone", &[], "").status, 404);
    for (n, id) in ids.iter().enumerate() {
        let mut stream = Stream::open(late, "/sub/a", &[("Last-Event-ID", id)]);
        let rest: Vec<String> = (n + 1..10).map(|n| n.to_string()).collect();
        assert_eq!(stream.data(rest.len()), rest);
    }
}

/// Waits for checkpoints of all that this node has read so far, and removes the log that they cover.
pub fn purge_what_checkpoints_have(servers: &Servers, node: &Server) {
    let jetstream = JetStream::of(servers);
    for (partition, newest) in (0..).zip(await_checkpoints(node)) {
        jetstream.purge(partition, newest + 1);
    }
}

#[test]
fn an_empty_node_that_joins_after_a_purge_has_all_that_was_kept() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let one = node(&servers, "");
    let ids = keep_all_kinds(&one);
    purge_what_checkpoints_have(&servers, &one);
    one.kill();
    let late = node(&servers, "");
    has_all_kinds(&late, &ids);
    let mut stream = Stream::open(&late, "/sub/a", &[("Last-Event-ID", &ids[9])]);
    publish(&late, "a", "goes on");
    assert_eq!(stream.data(1), ["goes on"]);
    let log = late.log();
    assert!(log.contains(&format!("checkpoints={PARTITIONS}")), "{log}");
    // The dead node was the steward (the node that makes the checkpoints of a partition). This node makes the next ones.
    let before = partitions(&late)[0]["checkpoint"].as_u64();
    until("a checkpoint of another steward", || {
        fill(&late);
        partitions(&late)[0]["checkpoint"].as_u64() > before
    });
    let jetstream = JetStream::of(&servers);
    for partition in 0..PARTITIONS {
        assert!(jetstream.checkpoints(partition).len() <= 3);
    }
}

#[test]
fn checkpoints_that_are_damaged_or_were_never_ended_are_passed_over() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let one = node(&servers, "");
    retain(&one, "state", b"value");
    await_checkpoints(&one);
    let jetstream = JetStream::of(&servers);
    let two = |partition: u64| {
        until("two checkpoints", || {
            fill(&one);
            jetstream.checkpoints(partition).len() >= 2
        });
    };
    (0..PARTITIONS).for_each(two);
    one.kill();
    jetstream.leave_chunks();
    for partition in 0..PARTITIONS {
        let newest = jetstream.checkpoints(partition).remove(0);
        match partition % 2 {
            0 => jetstream.damage(&newest),
            _ => jetstream.replace(&newest, b"crore state\nsomething else"),
        }
    }
    let late = node(&servers, "");
    assert_eq!(retained(&late, "state"), b"value");
    let count = |text: &str| late.log().matches(text).count();
    assert_eq!(
        count("the previous checkpoint is used") as u64,
        PARTITIONS,
        "{}",
        late.log()
    );
    // The next checkpoints go on from the undamaged ones.
    let now: Vec<u64> = partitions(&late)
        .iter()
        .map(|it| it["read"].as_u64().expect("a place"))
        .collect();
    until("newer checkpoints", || {
        fill(&late);
        let newest = |partition: u64| jetstream.checkpoints(partition).remove(0);
        (0..PARTITIONS).all(|it| sequence(&newest(it)) > now[it as usize])
    });
    let third = node(&servers, "");
    assert_eq!(retained(&third, "state"), b"value");
    assert!(!third.log().contains("the previous checkpoint is used"));
}

#[test]
fn a_node_whose_log_goes_on_from_a_damaged_checkpoint_only_does_not_start() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let one = node(&servers, "");
    await_checkpoints(&one);
    let jetstream = JetStream::of(&servers);
    until("two checkpoints", || {
        fill(&one);
        jetstream.checkpoints(0).len() >= 2
    });
    one.kill();
    let mut kept = jetstream.checkpoints(0);
    let newest = kept.remove(0);
    jetstream.damage(&newest);
    jetstream.purge(0, sequence(&newest) + 1);
    let refuses = || {
        let said = refusal(&settings_of(&servers, ""));
        for words in [
            "the previous checkpoint is used",
            "partition 0 lacks batches",
        ] {
            assert_eq!(said.matches(words).count(), 1, "{words:?} in: {said}");
        }
    };
    // The older checkpoints do not help, since the log after them was removed.
    refuses();
    kept.iter().for_each(|it| jetstream.delete(it));
    refuses();
}

#[test]
fn position_in_a_log_that_has_gone_back_while_no_node_ran_gets_a_gap_when_the_log_has_grown_again()
{
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let one = node(&servers, "");
    for n in 0..10 {
        publish(&one, "a", n.to_string());
    }
    let seen = (Stream::open(&one, "/sub/a?since=oldest", &[]).event())
        .expect("an event")
        .id;
    await_checkpoints(&one);
    one.kill();
    let jetstream = JetStream::of(&servers);
    (0..PARTITIONS).for_each(|it| jetstream.make_anew(jetstream.config(it)));
    let one = node(&servers, "");
    fill(&one);
    for n in 0..20 {
        publish(&one, "a", format!("other {n}"));
    }
    let mut stream = Stream::open(&one, "/sub/a", &[("Last-Event-ID", &seen)]);
    assert_eq!(stream.event().expect("an event").kind, GAP_EVENT);
}

/// What seems damaged may be whole: NATS may not find all of it, soon after an election.
#[test]
fn damaged_checkpoint_is_kept_while_no_newer_one_can_be_made() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let one = node(&servers, "");
    await_checkpoints(&one);
    let jetstream = JetStream::of(&servers);
    let mut newest = None;
    until("a checkpoint that fails", || {
        if !one.log().contains("no checkpoint of partition 0") {
            let checkpoint = jetstream.checkpoints(0).remove(0);
            if newest.as_ref() != Some(&checkpoint.name) {
                jetstream.damage(&checkpoint);
                jetstream.purge(0, sequence(&checkpoint) + 1);
                newest = Some(checkpoint.name);
            }
            fill(&one);
        }
        one.log().contains("no checkpoint of partition 0")
    });
    let kept = jetstream.checkpoints(0);
    assert!(kept.iter().any(|it| Some(&it.name) == newest.as_ref()));
}

#[test]
fn partition_whose_checkpoints_fail_does_not_stop_those_of_the_others() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let one = node(&servers, "");
    fill(&one);
    let jetstream = JetStream::of(&servers);
    jetstream.purge(0, 3);
    until("a checkpoint that fails", || {
        // Partition 0 lacks batches that no checkpoint contains. It is checked before the others.
        let contained = jetstream.checkpoints(0);
        contained.iter().for_each(|it| jetstream.delete(it));
        fill(&one);
        one.log().contains("no checkpoint of partition 0")
    });
    let read = |it: &Value| it["read"].as_u64().expect("a place");
    let now: Vec<u64> = partitions(&one).iter().map(read).collect();
    fill(&one);
    until("checkpoints of the others", || {
        let shown = partitions(&one);
        let mut others = shown.iter().zip(&now).skip(1);
        others.all(|(it, now)| it["checkpoint"].as_u64() >= Some(*now))
    });
}

#[test]
fn a_node_that_is_killed_while_it_writes_checkpoints_stops_nobody() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let mut count = 0;
    for round in 0..4 {
        let node = node(&servers, "");
        for n in 0..count {
            assert_eq!(retained(&node, &format!("state/{n}")), b"value");
        }
        retain(&node, &format!("state/{round}"), b"value");
        count = round + 1;
        let jetstream = JetStream::of(&servers);
        let newest = |partition| jetstream.checkpoints(partition).first().map(sequence);
        let before: Vec<_> = (0..PARTITIONS).map(newest).collect();
        until("a checkpoint under way", || {
            fill(&node);
            (0..PARTITIONS).any(|it| newest(it) > before[it as usize])
        });
        // The next rounds' nodes go on from what this node has left.
        node.kill();
    }
}

#[test]
fn a_purge_by_the_steward_loses_nothing_to_those_that_resume() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let history = "history_bytes = \"64MiB\"";
    let one = node(&servers, history);
    let text = "x".repeat(100_000);
    let mut all = Vec::new();
    let mut write = |node: &Server| {
        let text = format!("{} {text}", all.len());
        publish(node, "a", &text);
        all.push(text);
    };
    write(&one);
    let first = Stream::open(&one, "/sub/a?since=oldest", &[]).event();
    let first = first.expect("an event").id;
    let jetstream = JetStream::of(&servers);
    let purged = || (0..PARTITIONS).any(|it| jetstream.first(it) > 1);
    let of = |node: &Server, at: usize| partitions(node)[at]["checkpoint"].as_u64();
    let has_it = |it: &Value| {
        let bytes = |of: &str| it[of].as_u64().unwrap_or(0);
        bytes("behind_bytes").max(bytes("checkpoint_bytes")) > 100_000
    };
    let at = eventually("the partition", || partitions(&one).iter().position(has_it));
    // This is less than the limit at which NATS itself would drop batches.
    for _ in 0..5 {
        let before = of(&one, at);
        (0..12).for_each(|_| write(&one));
        until("a checkpoint", || of(&one, at) > before);
    }
    until("a purge", purged);
    let kept = jetstream.checkpoints(at as u64);
    assert!(
        jetstream.first(at as u64) <= sequence(&kept[1]),
        "the older one can be read on from"
    );
    let late = node(&servers, history);
    for node in [&one, &late] {
        let mut stream = Stream::open(node, "/sub/a", &[("Last-Event-ID", &first)]);
        assert_eq!(stream.data(all.len() - 1), all[1..]);
        assert_eq!(port::ask(node.admin(), "GET /readyz", None).status, 200);
    }
}

#[test]
fn status_and_metrics_show_the_newest_checkpoint_of_each_partition() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let one = node(&servers, "");
    await_checkpoints(&one);
    for of in partitions(&one) {
        assert!(of["checkpoint_age_s"].is_u64(), "{of}");
        assert!(of["checkpoint_bytes"].as_u64() > Some(0), "{of}");
    }
    let mut command = std::process::Command::new(program());
    let url = format!("http://{}", one.admin());
    command.args(["cluster", "status", "--url", &url]);
    let shown = program::output(&mut command).stdout;
    let shown = String::from_utf8(shown).expect("text").to_lowercase();
    assert!(shown.contains("checkpoint_age_s"), "{shown}");
    let metric = |name: &str| port::metric(one.admin(), name);
    // A checkpoint is listed before it is counted.
    until("the count of the checkpoints", || {
        metric("crore_checkpoints_total{result=\"made\"}") >= Some(PARTITIONS as f64)
    });
    assert!(metric("crore_cluster_checkpoints_bytes") > Some(0.0));
    port::await_metric(one.admin(), "crore_cluster_late_checkpoints", 0.0);
    assert!(metric("crore_checkpoint_timestamp_seconds") > Some(0.0));
}

#[test]
fn checkpoints_of_a_node_whose_clock_is_ahead_keep_what_has_not_expired() {
    let Some(clock) = Clock::new("checkpoint", 7_200) else {
        return;
    };
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let fields = [("Crore-TTL", "600"), KEY[0]];
    let publish_again = |node: &Server| once(node, "POST", "/pub/kept", &fields, "kept");
    let ahead = clock.server(&settings_of(&servers, ""));
    assert!([201, 202].contains(&publish_again(&ahead).status));
    await_checkpoints(&ahead);
    // The next checkpoint of this partition begins with the one before.
    publish(&ahead, "kept", "later");
    await_checkpoints(&ahead);
    ahead.kill();
    let right = node(&servers, "");
    let mut stream = Stream::open(&right, "/sub/kept?since=oldest", &[]);
    assert_eq!(stream.data(2), ["kept", "later"]);
    let again = publish_again(&right);
    let replayed = again.header("idempotency-replayed");
    assert_eq!(replayed.as_deref(), Some("true"), "{again:?}");
}
