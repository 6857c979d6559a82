//! Tests faults while nodes run: one server is killed, all servers are killed, batches are purged, a stream is replaced by an empty one.

use crate::assert_same;
use crate::jetstream::JetStream;
use crate::node::{Node, PARTITIONS, settings};
use crate::servers::{Servers, until};

#[test]
fn a_killed_server_loses_no_batch_and_stops_no_node() {
    let Some(mut servers) = Servers::start(3) else {
        return;
    };
    let (one, other) = (Node::start(&servers), Node::start(&servers));
    for killed in 0..3 {
        let first = killed * 100 + 1;
        std::thread::scope(|scope| {
            scope.spawn(|| one.write(1, first..=first + 99));
            scope.spawn(|| other.write(2, first..=first + 99));
            servers.kill(killed as usize);
        });
        servers.run(killed as usize);
        until("all replicas", || {
            let status = one.cluster.status();
            one.apply();
            other.apply();
            status.partitions.iter().all(|it| it.replicas_current == 3)
        });
    }
    assert_same(&one, &other);
    let late = Node::start(&servers);
    late.await_caught_up();
    assert_same(&one, &late);
}

#[test]
fn the_log_goes_on_by_itself_after_all_servers_were_gone() {
    let Some(mut servers) = Servers::start(3) else {
        return;
    };
    let node = Node::start(&servers);
    node.write(1, 1..=50);
    for at in 0..3 {
        servers.kill(at);
    }
    until("no news", || !node.cluster.is_ready());
    for at in 0..3 {
        servers.run(at);
    }
    node.write(1, 51..=100);
    until("news again", || node.cluster.is_ready());
    let late = Node::start(&servers);
    late.await_caught_up();
    assert_same(&node, &late);
}

#[test]
fn purged_batches_are_reported_as_lost() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node = Node::start(&servers);
    node.write(1, 1..=20);
    let last = node.sequences(2).last().copied().expect("a batch");
    JetStream::of(&servers).purge(2, last);
    let late = Node::start(&servers);
    late.await_caught_up();
    let log = late.log();
    assert_eq!(log.lost, [(2, 1, last - 1)]);
    assert_eq!(log.batches[&2].len(), 1);
    assert_eq!(log.batches[&1].len(), node.batches(1).len());
}

#[test]
fn restored_log_is_reported_and_begins_a_new_epoch() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node = Node::start(&servers);
    node.write(1, 1..=20);
    let jetstream = JetStream::of(&servers);
    jetstream.make_anew(jetstream.config(0));
    until("the news", || node.log().ended.is_some());
    let connected = crore_nats::connect(settings(&servers)).expect("a connection");
    let identity = connected
        .read_or_create_identity(crate::node::identity(), 1)
        .expect("identity");
    assert_ne!(identity.epoch, 1);
    assert_eq!(identity.partitions, PARTITIONS);
}

/// The log soon becomes longer than before, so a check of its length does not find the loss.
#[test]
fn restored_log_that_has_grown_again_begins_a_new_epoch() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let jetstream = JetStream::of(&servers);
    let mut epochs = Vec::new();
    for _ in 0..2 {
        let node = Node::start(&servers);
        node.write(1, 1..=20);
        let numbers = jetstream.get("numbers");
        let before = node.batches(0);
        jetstream.make_anew(jetstream.config(0));
        jetstream.fill(1, 200, 10);
        until("the news", || node.log().ended.is_some());
        assert_eq!(node.batches(0), before);
        epochs.push(jetstream.get("numbers")["epoch"].as_u64());
        drop(node);
        // A backup contains the numbers from before.
        jetstream.put("numbers", &numbers);
    }
    assert_ne!(epochs[0], epochs[1]);
}
