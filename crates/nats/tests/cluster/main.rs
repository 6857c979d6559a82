//! Tests of the log in JetStream, with real NATS servers.
//!
//! Each batch must be in the log at least once, and all nodes must read the same batches in the same order. The faults are those that a
//! cluster meets: one server is killed, all servers are down, settings do not match.

mod faults;
mod jetstream;
mod node;
mod rate;
mod refused;
mod rights;
mod secured;
mod servers;
mod store;

use node::{Node, PARTITIONS, identity, settings, start_node};
use servers::{Servers, until};

/// Waits until both nodes have read up to the same batch, and compares what they have read.
fn assert_same(one: &Node, other: &Node) {
    for partition in 0..PARTITIONS {
        until("the same batches at both nodes", || {
            one.apply();
            other.apply();
            one.sequences(partition).last() == other.sequences(partition).last()
        });
        assert_eq!(one.sequences(partition), other.sequences(partition));
        assert_eq!(one.batches(partition), other.batches(partition));
    }
}

#[test]
fn all_nodes_read_the_batches_of_all_writers_in_one_order() {
    let Some(servers) = Servers::start(3) else {
        return;
    };
    let (one, other) = (Node::start(&servers), Node::start(&servers));
    std::thread::scope(|scope| {
        scope.spawn(|| one.write(1, 1..=300));
        scope.spawn(|| other.write(2, 1..=300));
    });
    assert_same(&one, &other);
    for partition in 0..PARTITIONS {
        let sequences = one.sequences(partition);
        let expected: Vec<u64> = (1..=sequences.len() as u64).collect();
        assert_eq!(sequences, expected, "no sequence is missing");
    }
    let late = Node::start(&servers);
    late.await_caught_up();
    assert_same(&one, &late);
    let status = late.cluster.status();
    assert!(late.cluster.is_ready() && status.is_connected, "{status:?}");
    until("the state of all replicas", || {
        let status = late.cluster.status();
        let is_whole = |it: &crore_nats::PartitionStatus| {
            it.replicas == 3 && it.replicas_current == 3 && it.last == it.read
        };
        status.partitions.iter().all(is_whole)
    });
}

#[test]
fn a_node_without_history_has_caught_up_at_once() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node = Node::start(&servers);
    node.await_caught_up();
    let mut caught_up = node.log().caught_up.clone();
    caught_up.sort();
    assert_eq!(caught_up, [0, 1, 2, 3], "each partition says so once");
}

#[test]
fn reading_pauses_while_too_many_batches_are_unapplied() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let writer = Node::start(&servers);
    writer.write(1, 1..=200);
    let small = crore_nats::Settings {
        backlog_bytes_max: 100,
        ..settings(&servers)
    };
    let slow = start_node(small, identity()).expect("it begins");
    until("the first batches", || slow.backlog_bytes() > 100);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let bytes = slow.backlog_bytes();
    assert!(bytes < 200, "{bytes} bytes were read ahead");
    assert!(!slow.cluster.status().has_caught_up);
    slow.await_caught_up();
    assert_same(&writer, &slow);
}
