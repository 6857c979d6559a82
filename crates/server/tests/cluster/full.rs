//! Tests a load that is larger than the log may be. No batch is removed before a checkpoint contains it.

use crate::faults::publish_surely;
use crate::jetstream::JetStream;
use crate::join::refusal;
use crate::servers::Servers;
use crate::settings;
use crate::support::http::{Conn, once, publish};
use crate::support::{Server, port, until};

const PARTITIONS: u64 = 4;
const QUIET: usize = 40;
/// Megabytes of load for each partition: more than the 32 MiB that its stream holds.
const LOAD_MB: usize = 40;
const MB: usize = 1_000_000;

/// The settings of a node with the shortest history.
fn short_history(servers: &Servers) -> String {
    settings(servers).replace("[[rule]]", "history_bytes = \"64MiB\"\n[[rule]]")
}

fn node(servers: &Servers) -> Server {
    Server::with_admin(&short_history(servers))
}

fn publish_quiet(node: &Server) {
    for n in 0..QUIET {
        publish(node, &format!("quiet/{n}"), n.to_string());
    }
}

/// Checks that each of the quiet topics still has its one message.
fn assert_quiet_topics_kept(node: &Server) {
    for n in 0..QUIET {
        let topic = format!("quiet/{n}");
        let history = once(node, "GET", &format!("/history/{topic}"), &[], "");
        assert!(
            history.text().contains(&format!("\"{n}\"")),
            "{topic}: {history:?}"
        );
    }
}

/// Writes batches to the log directly, faster than the nodes make checkpoints. Each time the log is full, the next checkpoint makes room.
fn load(jetstream: &JetStream) {
    let mut remaining_mb = LOAD_MB * PARTITIONS as usize;
    while remaining_mb > 0 {
        until("room for more of the load", || {
            let of_each = remaining_mb.div_ceil(PARTITIONS as usize);
            let written = jetstream.fill(PARTITIONS, of_each, MB);
            remaining_mb = remaining_mb.saturating_sub(written);
            written > 0
        });
    }
}

#[test]
fn load_larger_than_the_log_loses_no_answered_message() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (node_a, node_b) = (node(&servers), node(&servers));
    for node in [&node_a, &node_b] {
        until("its heartbeats in the log", || {
            port::ask(node.admin(), "GET /readyz", None).status == 200
        });
    }
    publish_quiet(&node_a);
    let jetstream = JetStream::of(&servers);
    load(&jetstream);
    publish_surely(&node_b, "quiet/last", "last");
    node_a.kill();
    node_b.kill();
    let (node_a, node_b) = (node(&servers), node(&servers));
    for node in [&node_a, &node_b] {
        assert_quiet_topics_kept(node);
        let last = once(node, "GET", "/history/quiet/last", &[], "");
        assert!(last.text().contains("last"), "{last:?}");
    }
}

#[test]
fn nodes_that_start_with_a_full_log_make_room() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let first = node(&servers);
    publish_quiet(&first);
    // The dead node was the steward of all partitions: the node that makes their checkpoints. The log is full, so no node can write into it
    // that this one is dead.
    first.kill();
    let jetstream = JetStream::of(&servers);
    jetstream.fill(PARTITIONS, LOAD_MB, MB);
    jetstream.fill(PARTITIONS, 100, 10_000);
    jetstream.fill(PARTITIONS, 150, 100);
    let node = node(&servers);
    assert_quiet_topics_kept(&node);
    let mut conn = Conn::open(&node);
    let unanswered = conn
        .stream()
        .set_read_timeout(Some(crate::support::PATIENCE));
    unanswered.expect("a timeout");
    let refused = conn.request("POST", "/pub/a", &[], "refused");
    assert_eq!(refused.status, 503, "{refused:?}");
    until("room", || {
        port::ask(node.admin(), "GET /readyz", None).status == 200
    });
    publish_surely(&node, "a", "taken");
    assert_quiet_topics_kept(&node);
}

#[test]
fn node_that_lacks_batches_without_a_checkpoint_does_not_start() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let first = node(&servers);
    publish_quiet(&first);
    first.kill();
    let jetstream = JetStream::of(&servers);
    jetstream.purge(2, 3);
    let log = refusal(&short_history(&servers));
    for words in [
        "partition 2 lacks batches up to 2",
        "no checkpoint",
        "from a backup",
    ] {
        assert!(log.contains(words), "{words:?} is not in: {log}");
    }
}
