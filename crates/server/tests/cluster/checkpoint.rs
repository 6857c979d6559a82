//! Tests checkpoints in the object store of NATS: an empty node reads its state from them, and the log before them may be removed.

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

/// A node that makes checkpoints soon, and whose topics keep many messages.
fn node(servers: &Servers, extra_settings: &str) -> Server {
    node_of(&program(), servers, extra_settings)
}

/// The same node from another build.
pub fn node_of(program: &Path, servers: &Servers, extra_settings: &str) -> Server {
    Server::from_build(program, &settings_of(servers, extra_settings))
}

fn settings_of(servers: &Servers, extra_settings: &str) -> String {
    let first = format!(
        "checkpoint_bytes = \"1MiB\"\n{extra_settings}\n[[rule]]\nmatch = \"fill/#\"\nlog_messages = 0\n[[rule]]"
    );
    let settings = settings(servers).replace("[[rule]]", &first);
    format!("partitions = {PARTITIONS}\n{settings}log_bytes = \"64MiB\"\n")
}

/// The rows of the partitions in the API of a node.
pub fn partitions(node: &Server) -> Vec<Value> {
    let status = port::get(node.admin(), "cluster");
    status["partitions"].as_array().expect("partitions").clone()
}

/// Publishes enough messages for a checkpoint to be due in each partition. The topics do not keep them.
fn fill(node: &Server) {
    let text = "x".repeat(50_000);
    for n in 0..80 {
        publish(node, &format!("fill/{n}"), &text);
        publish(node, &format!("fill/{n}"), &text);
    }
}

/// Waits until each partition has a checkpoint of the batches that this node has read so far. Returns the sequence of the last batch of
/// each.
fn await_checkpoints(node: &Server) -> Vec<u64> {
    let read = |it: &Value| it["read"].as_u64().expect("a place");
    let read_now: Vec<u64> = partitions(node).iter().map(read).collect();
    fill(node);
    eventually("checkpoints", || {
        let status = partitions(node);
        let newest = status.iter().map(|it| it["checkpoint"].as_u64());
        let newest: Vec<u64> = newest.collect::<Option<_>>()?;
        let are_written = newest
            .iter()
            .zip(&read_now)
            .all(|(newest, read_now)| newest >= read_now);
        are_written.then_some(newest)
    })
}

/// Publishes a retained value.
fn retain(node: &Server, topic: &str, value: &[u8]) {
    let mut publisher = mqtt::Conn::to_server(node, Version::V5);
    publisher.connect(&mqtt::plain_connect(Version::V5, "publisher"));
    let mut retained = message(topic, 1, 1, value);
    retained.retain = true;
    publisher.publish(&retained);
    publisher.packet();
}

/// The retained value that a new subscriber receives.
fn retained(node: &Server, topic: &str) -> Vec<u8> {
    let mut subscriber = mqtt::Conn::to_server(node, Version::V5);
    subscriber.connect(&mqtt::plain_connect(Version::V5, "subscriber"));
    subscriber.subscribe(topic, 0);
    let received = subscriber.packet();
    assert!(received.publish().retain);
    received.publish().payload.to_vec()
}

/// Publishes state of each kind: retained values, keyed publishes, messages, and topics that are created and deleted. Returns the positions
/// of ten messages.
pub fn publish_all_kinds(node_a: &Server) -> Vec<String> {
    for n in 0..40 {
        retain(node_a, &format!("state/{n}"), format!("old {n}").as_bytes());
        retain(node_a, &format!("state/{n}"), format!("new {n}").as_bytes());
    }
    let first = once(node_a, "POST", "/pub/keyed", &KEY, "once");
    assert!([201, 202].contains(&first.status), "{first:?}");
    for n in 0..10 {
        publish(node_a, "a", n.to_string());
    }
    publish(node_a, "gone", "x");
    assert_eq!(once(node_a, "PUT", "/pub/made", &[], "").status, 201);
    assert_eq!(once(node_a, "DELETE", "/pub/gone", &[], "").status, 200);
    let mut stream = Stream::open(node_a, "/sub/a?since=oldest", &[]);
    let ids = (0..10).map(|_| stream.event().expect("an event").id);
    ids.collect()
}

/// Checks that a node has all that `publish_all_kinds` published, without waiting.
pub fn assert_all_kinds(late_node: &Server, ids: &[String]) {
    for n in 0..40 {
        let value = retained(late_node, &format!("state/{n}"));
        assert_eq!(value, format!("new {n}").as_bytes());
    }
    let retry = once(late_node, "POST", "/pub/keyed", &KEY, "once");
    let replayed = retry.header("idempotency-replayed");
    assert_eq!(replayed.as_deref(), Some("true"), "{retry:?}");
    assert_eq!(once(late_node, "GET", "/pub/made", &[], "").status, 200);
    assert_eq!(once(late_node, "GET", "/pub/gone", &[], "").status, 404);
    for (n, id) in ids.iter().enumerate() {
        let mut stream = Stream::open(late_node, "/sub/a", &[("Last-Event-ID", id)]);
        let later: Vec<String> = (n + 1..10).map(|n| n.to_string()).collect();
        assert_eq!(stream.data(later.len()), later);
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
fn node_that_joins_after_a_purge_has_the_complete_state() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers, "");
    let ids = publish_all_kinds(&node_a);
    purge_what_checkpoints_have(&servers, &node_a);
    node_a.kill();
    let late_node = node(&servers, "");
    assert_all_kinds(&late_node, &ids);
    let mut stream = Stream::open(&late_node, "/sub/a", &[("Last-Event-ID", &ids[9])]);
    publish(&late_node, "a", "goes on");
    assert_eq!(stream.data(1), ["goes on"]);
    let log = late_node.log();
    assert!(log.contains(&format!("checkpoints={PARTITIONS}")), "{log}");
    // The dead node was the steward (the node that makes the checkpoints of a partition). This node makes the next ones.
    let before = partitions(&late_node)[0]["checkpoint"].as_u64();
    until("a checkpoint of another steward", || {
        fill(&late_node);
        partitions(&late_node)[0]["checkpoint"].as_u64() > before
    });
    let jetstream = JetStream::of(&servers);
    for partition in 0..PARTITIONS {
        assert!(jetstream.checkpoints(partition).len() <= 3);
    }
}

#[test]
fn damaged_and_incomplete_checkpoints_are_skipped() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers, "");
    retain(&node_a, "state", b"value");
    await_checkpoints(&node_a);
    let jetstream = JetStream::of(&servers);
    let both = |partition: u64| {
        until("two checkpoints", || {
            fill(&node_a);
            jetstream.checkpoints(partition).len() >= 2
        });
    };
    (0..PARTITIONS).for_each(both);
    node_a.kill();
    jetstream.leave_chunks();
    for partition in 0..PARTITIONS {
        let newest = jetstream.checkpoints(partition).remove(0);
        match partition % 2 {
            0 => jetstream.damage(&newest),
            _ => jetstream.replace(&newest, b"crore state\nsomething else"),
        }
    }
    let late_node = node(&servers, "");
    assert_eq!(retained(&late_node, "state"), b"value");
    let count = |text: &str| late_node.log().matches(text).count();
    assert_eq!(
        count("the previous checkpoint is used") as u64,
        PARTITIONS,
        "{}",
        late_node.log()
    );
    // The next checkpoints go on from the undamaged ones.
    let read_now: Vec<u64> = partitions(&late_node)
        .iter()
        .map(|it| it["read"].as_u64().expect("a place"))
        .collect();
    until("newer checkpoints", || {
        fill(&late_node);
        let newest = |partition: u64| jetstream.checkpoints(partition).remove(0);
        (0..PARTITIONS).all(|it| sequence(&newest(it)) > read_now[it as usize])
    });
    let third = node(&servers, "");
    assert_eq!(retained(&third, "state"), b"value");
    assert!(!third.log().contains("the previous checkpoint is used"));
}

#[test]
fn node_with_only_a_damaged_checkpoint_before_its_log_does_not_start() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers, "");
    await_checkpoints(&node_a);
    let jetstream = JetStream::of(&servers);
    until("two checkpoints", || {
        fill(&node_a);
        jetstream.checkpoints(0).len() >= 2
    });
    node_a.kill();
    let mut checkpoints = jetstream.checkpoints(0);
    let newest = checkpoints.remove(0);
    jetstream.damage(&newest);
    jetstream.purge(0, sequence(&newest) + 1);
    let refuses = || {
        let log = refusal(&settings_of(&servers, ""));
        for words in [
            "the previous checkpoint is used",
            "partition 0 lacks batches",
        ] {
            assert_eq!(log.matches(words).count(), 1, "{words:?} in: {log}");
        }
    };
    // The older checkpoints do not help, since the log after them was removed.
    refuses();
    checkpoints.iter().for_each(|it| jetstream.delete(it));
    refuses();
}

#[test]
fn position_of_a_restored_log_gets_a_gap_after_the_log_has_grown_again() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers, "");
    for n in 0..10 {
        publish(&node_a, "a", n.to_string());
    }
    let position = (Stream::open(&node_a, "/sub/a?since=oldest", &[]).event())
        .expect("an event")
        .id;
    await_checkpoints(&node_a);
    node_a.kill();
    let jetstream = JetStream::of(&servers);
    (0..PARTITIONS).for_each(|it| jetstream.make_anew(jetstream.config(it)));
    let node_a = node(&servers, "");
    fill(&node_a);
    for n in 0..20 {
        publish(&node_a, "a", format!("other {n}"));
    }
    let mut stream = Stream::open(&node_a, "/sub/a", &[("Last-Event-ID", &position)]);
    assert_eq!(stream.event().expect("an event").kind, GAP_EVENT);
}

/// A checkpoint may seem damaged although it is not: soon after an election NATS may not find all of its parts.
#[test]
fn damaged_checkpoint_is_kept_while_no_newer_one_can_be_made() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers, "");
    await_checkpoints(&node_a);
    let jetstream = JetStream::of(&servers);
    let mut newest = None;
    until("a checkpoint that fails", || {
        if !node_a.log().contains("no checkpoint of partition 0") {
            let checkpoint = jetstream.checkpoints(0).remove(0);
            if newest.as_ref() != Some(&checkpoint.name) {
                jetstream.damage(&checkpoint);
                jetstream.purge(0, sequence(&checkpoint) + 1);
                newest = Some(checkpoint.name);
            }
            fill(&node_a);
        }
        node_a.log().contains("no checkpoint of partition 0")
    });
    let checkpoints = jetstream.checkpoints(0);
    assert!(
        checkpoints
            .iter()
            .any(|it| Some(&it.name) == newest.as_ref())
    );
}

#[test]
fn partition_whose_checkpoints_fail_does_not_stop_those_of_the_others() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers, "");
    fill(&node_a);
    let jetstream = JetStream::of(&servers);
    jetstream.purge(0, 3);
    until("a checkpoint that fails", || {
        // Partition 0 lacks batches that no checkpoint contains. It is checked before the others.
        let contained = jetstream.checkpoints(0);
        contained.iter().for_each(|it| jetstream.delete(it));
        fill(&node_a);
        node_a.log().contains("no checkpoint of partition 0")
    });
    let read = |it: &Value| it["read"].as_u64().expect("a place");
    let read_now: Vec<u64> = partitions(&node_a).iter().map(read).collect();
    fill(&node_a);
    until("checkpoints of the others", || {
        let status = partitions(&node_a);
        let mut other_partitions = status.iter().zip(&read_now).skip(1);
        other_partitions.all(|(it, read_now)| it["checkpoint"].as_u64() >= Some(*read_now))
    });
}

#[test]
fn kill_during_a_checkpoint_does_not_harm_other_nodes() {
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
fn purge_by_the_steward_loses_no_message_of_a_resumed_client() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let history = "history_bytes = \"64MiB\"";
    let node_a = node(&servers, history);
    let text = "x".repeat(100_000);
    let mut data = Vec::new();
    let mut write = |node: &Server| {
        let text = format!("{} {text}", data.len());
        publish(node, "a", &text);
        data.push(text);
    };
    write(&node_a);
    let first = Stream::open(&node_a, "/sub/a?since=oldest", &[]).event();
    let first = first.expect("an event").id;
    let jetstream = JetStream::of(&servers);
    let purged = || (0..PARTITIONS).any(|it| jetstream.first(it) > 1);
    let newest_checkpoint =
        |node: &Server, partition: usize| partitions(node)[partition]["checkpoint"].as_u64();
    let has_it = |it: &Value| {
        let bytes = |newest_checkpoint: &str| it[newest_checkpoint].as_u64().unwrap_or(0);
        bytes("behind_bytes").max(bytes("checkpoint_bytes")) > 100_000
    };
    let partition = eventually("the partition", || {
        partitions(&node_a).iter().position(has_it)
    });
    // This is less than the limit at which NATS itself would drop batches.
    for _ in 0..5 {
        let before = newest_checkpoint(&node_a, partition);
        (0..12).for_each(|_| write(&node_a));
        until("a checkpoint", || {
            newest_checkpoint(&node_a, partition) > before
        });
    }
    until("a purge", purged);
    let checkpoints = jetstream.checkpoints(partition as u64);
    assert!(
        jetstream.first(partition as u64) <= sequence(&checkpoints[1]),
        "the older one can be read on from"
    );
    let late_node = node(&servers, history);
    for node in [&node_a, &late_node] {
        let mut stream = Stream::open(node, "/sub/a", &[("Last-Event-ID", &first)]);
        assert_eq!(stream.data(data.len() - 1), data[1..]);
        assert_eq!(port::ask(node.admin(), "GET /readyz", None).status, 200);
    }
}

#[test]
fn status_and_metrics_show_the_newest_checkpoint_of_each_partition() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers, "");
    await_checkpoints(&node_a);
    for partition in partitions(&node_a) {
        assert!(partition["checkpoint_age_s"].is_u64(), "{partition}");
        assert!(
            partition["checkpoint_bytes"].as_u64() > Some(0),
            "{partition}"
        );
    }
    let mut command = std::process::Command::new(program());
    let url = format!("http://{}", node_a.admin());
    command.args(["cluster", "status", "--url", &url]);
    let status = program::output(&mut command).stdout;
    let status = String::from_utf8(status).expect("text").to_lowercase();
    assert!(status.contains("checkpoint_age_s"), "{status}");
    let metric = |name: &str| port::metric(node_a.admin(), name);
    // A checkpoint is listed before it is counted.
    until("the count of the checkpoints", || {
        metric("crore_checkpoints_total{result=\"made\"}") >= Some(PARTITIONS as f64)
    });
    assert!(metric("crore_cluster_checkpoints_bytes") > Some(0.0));
    port::await_metric(node_a.admin(), "crore_cluster_late_checkpoints", 0.0);
    assert!(metric("crore_checkpoint_timestamp_seconds") > Some(0.0));
}

#[test]
fn checkpoints_of_a_node_with_a_fast_clock_keep_unexpired_messages() {
    let Some(clock) = Clock::new("checkpoint", 7_200) else {
        return;
    };
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let fields = [("Crore-TTL", "600"), KEY[0]];
    let publish_again = |node: &Server| once(node, "POST", "/pub/kept", &fields, "kept");
    let node_ahead = clock.server(&settings_of(&servers, ""));
    assert!([201, 202].contains(&publish_again(&node_ahead).status));
    await_checkpoints(&node_ahead);
    // The next checkpoint of this partition begins with the one before.
    publish(&node_ahead, "kept", "later");
    await_checkpoints(&node_ahead);
    node_ahead.kill();
    let correct_node = node(&servers, "");
    let mut stream = Stream::open(&correct_node, "/sub/kept?since=oldest", &[]);
    assert_eq!(stream.data(2), ["kept", "later"]);
    let retry = publish_again(&correct_node);
    let replayed = retry.header("idempotency-replayed");
    assert_eq!(replayed.as_deref(), Some("true"), "{retry:?}");
}
