//! Tests of checkpoints: an object exists as a whole or not at all, and a checkpoint that does not match the log is noticed.

use std::io::{ErrorKind, Read as _, Write as _};

use crore_nats::{Checkpoint, NewCheckpoint, Store};

use crate::jetstream::JetStream;
use crate::node::{Node, identity, settings};
use crate::servers::{Servers, until};

fn new(partition: u16, sequence: u64, batch: &[u8]) -> NewCheckpoint<'_> {
    NewCheckpoint {
        partition,
        sequence,
        batch,
        log_s: 1_700_000_000,
        writer: 9,
        format: 1,
    }
}

/// Writes a checkpoint that ends with a batch of this node's log: the one at index `at` of those that the node has read.
fn write(node: &Node, partition: u16, at: usize, bytes: &[u8]) {
    let (sequence, batch) = node.log().batches[&partition][at].clone();
    // For some time after the leader's server was killed there is no leader, so the test writes again if needed.
    until("a checkpoint", || {
        let mut upload = node.store.write(&new(partition, sequence, &batch));
        upload.write_all(bytes).is_ok() && upload.end().is_ok()
    });
}

fn bytes(store: &Store, of: &Checkpoint) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    store.read(of)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn checkpoint_is_read_as_written_and_the_log_continues_after_it() {
    let Some(servers) = Servers::start(3) else {
        return;
    };
    let node = Node::start(&servers);
    node.write(1, 1..=20);
    let text: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
    write(&node, 2, 9, &text);
    write(&node, 2, 4, b"older");
    // An upload that is dropped leaves no object.
    let mut upload = node.store.write(&new(1, 3, b"x"));
    upload.write_all(&text).expect("it is taken");
    drop(upload);
    let all = node.store.list_and_update_status().expect("checkpoints");
    let shown: Vec<_> = all.iter().map(|it| (it.partition, it.bytes)).collect();
    assert_eq!(shown, [(2, 3_000_000), (2, 5)]);
    assert_eq!(bytes(&node.store, &all[0]).expect("its bytes"), text);
    assert_eq!(node.store.why_unusable(&all[0]).expect("an answer"), None);
    let sequence = all[0].sequence;
    let last = *node.sequences(2).last().expect("a batch");
    let mut behind = Vec::new();
    // On a busy machine a follower may not answer at once, so the test reads again if needed.
    until("the batches", || {
        behind.clear();
        let Ok(mut batches) = node.store.read_batches(2, sequence + 1..=last) else {
            return false;
        };
        loop {
            match batches.read() {
                Ok(Some(stored)) => behind.push((stored.sequence, stored.bytes.to_vec())),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    });
    assert_eq!(behind, node.log().batches[&2][10..]);
    // Another node sees the same checkpoints.
    let late = Node::start(&servers);
    assert_eq!(
        late.store.list_and_update_status().expect("checkpoints"),
        all
    );
    late.store.tidy(&all[1..]).expect("one goes");
    assert_eq!(
        node.store.list_and_update_status().expect("checkpoints"),
        all[..1]
    );
    assert_eq!(bytes(&node.store, &all[0]).expect("its bytes"), text);
}

#[test]
fn a_checkpoint_that_has_lost_a_chunk_is_damaged() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node = Node::start(&servers);
    node.write(1, 1..=3);
    let jetstream = JetStream::of(&servers);
    for (at, size) in [(0, 10), (1, 2_000_000)] {
        write(&node, 0, at, &vec![7; size]);
        let all = node.store.list_and_update_status().expect("checkpoints");
        let newest = jetstream.checkpoints(0).remove(0);
        jetstream.damage(&newest);
        let error = bytes(&node.store, &all[0]).expect_err("it is damaged");
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    }
}

#[test]
fn checkpoint_newer_than_a_restored_log_is_ignored() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node = Node::start(&servers);
    node.write(1, 1..=20);
    write(&node, 0, 9, b"of the first log");
    write(&node, 1, 9, b"of a log that stays");
    let identity = identity();
    let all = node.store.list_and_update_status().expect("checkpoints");
    let jetstream = JetStream::of(&servers);
    jetstream.make_anew(jetstream.config(0));
    until("the news", || node.log().ended.is_some());
    let connected = crore_nats::connect(settings(&servers)).expect("a connection");
    let renewed = connected
        .read_or_create_identity(identity, identity.format)
        .expect("identity");
    let streams = connected.open_streams(renewed).expect("streams");
    let store = connected.open_store(&streams, renewed).expect("a store");
    assert_eq!(store.list_and_update_status().expect("checkpoints"), all);
    let why_unusable = |at: usize| store.why_unusable(&all[at]).expect("an answer");
    assert!(
        why_unusable(0)
            .expect("a reason")
            .contains("ends with batch 0")
    );
    assert_eq!(why_unusable(1), None);
    // Now the log has other batches with the same sequences.
    let other = Node::start(&servers);
    other.write(2, 1..=20);
    assert!(why_unusable(0).expect("a reason").contains("another batch"));
    other.store.purge(0, 15).expect("it is purged");
    assert!(why_unusable(0).expect("a reason").contains("begins with"));
    assert_eq!(other.store.first_sequence(0).expect("a place"), 15);
}

/// A replica that lags behind may return a list without an existing checkpoint. If that list counted, nodes would not start, and the
/// checkpoint's chunks would be removed.
#[test]
fn list_of_a_replica_that_lags_does_not_count() {
    let Some(mut servers) = Servers::start(3) else {
        return;
    };
    let node = Node::start(&servers);
    node.write(1, 1..=60);
    let each = node.sequences(0).len() / 3;
    for killed in 0..3 {
        servers.kill(killed);
        let made = (killed + 1) * each;
        for at in killed * each..made {
            write(&node, 0, at, b"checkpoint");
        }
        servers.run(killed);
        until("all replicas", || {
            if let Ok(list) = node.store.list_and_update_status() {
                assert_eq!(list.len(), made);
            }
            node.apply();
            let status = node.cluster.status();
            status.partitions.iter().all(|it| it.replicas_current == 3)
        });
    }
}
