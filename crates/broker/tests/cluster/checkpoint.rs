//! Tests that a node which starts from checkpoints has the same state as a node that has read the whole log.

use std::sync::Arc;

use crore_broker::batch::Header;
use crore_broker::snapshot::{FORMAT, Head};
use crore_broker::{OFFSET_BITS, Shadow, Shard, TurnLimits, World};
use xxhash_rust::xxh3::xxh3_64;

use crate::support::{NOW, TestServer};
use crate::{Node, Nodes, PARTITIONS};

/// The blocks of a checkpoint's document.
type Document = Vec<Vec<u8>>;

impl Nodes {
    /// Makes checkpoints of all partitions. They contain the log up to batch `batches.end`, and build on the checkpoints `former`.
    fn documents(&self, former: &[Document], batches: std::ops::Range<usize>) -> Vec<Document> {
        let of = crate::world(0);
        let shadows = Shadow::world(&of, of.epoch);
        let head = Head {
            stop_id: 1,
            epoch: of.epoch,
            seed: of.seed,
            partitions: PARTITIONS,
            homes: PARTITIONS,
            home: 0,
            unix_s: self.unix_s,
            wall_s: 0,
        };
        let document = |partition: u16| {
            let mut restored = Shadow::restored(&shadows, partition, NOW);
            if let Some(former) = former.get(usize::from(partition)) {
                read(&mut restored, former);
            }
            let mut shadow = Shadow::new(restored.finish().expect("a document"));
            for (bytes, sequence, unix_s) in &self.log[batches.clone()] {
                let mut header = Header::read(bytes).expect("a batch");
                if header.partition == partition {
                    (header.first_offset, header.unix_s) = (sequence << OFFSET_BITS, *unix_s);
                    let folded = shadow.apply_batch(&header, bytes);
                    folded.expect("a batch");
                }
            }
            let blocks = std::iter::from_fn(|| Some(shadow.save(&head)));
            blocks.take_while(|block| !block.is_empty()).collect()
        };
        (0..PARTITIONS).map(document).collect()
    }

    /// Starts a node from these checkpoints, which contain the first `contained` batches.
    fn join(&mut self, documents: &[Document], contained: usize) -> usize {
        let world: Arc<World> = crate::world(self.nodes.len());
        let shard = |id| {
            let mut shard = Shard::new(id, world.clone(), NOW);
            shard.set_turn_limits(TurnLimits::default());
            if id < world.homes {
                let new = crore_broker::Restored::new(world.clone(), id, NOW);
                let mut restored = new.without_local_state();
                for partition in world.placement().of_home(id) {
                    read(&mut restored, &documents[usize::from(partition)]);
                }
                shard.adopt(restored.finish().expect("documents"));
            }
            shard
        };
        let mut server = TestServer::from_shards((0..world.shards).map(shard).collect(), NOW);
        server.now.unix_s = self.unix_s;
        self.nodes.push(Node {
            world,
            server,
            told: contained,
            unread: Vec::new(),
            held: Vec::new(),
            backlog: Default::default(),
        });
        let joined = self.nodes.len() - 1;
        self.read_stored(&[joined]);
        joined
    }
}

fn read(into: &mut crore_broker::Restored, document: &Document) {
    let head = Head::read(&document[0]).expect("a head");
    into.begin_snapshot(&head).expect("a document");
    for block in &document[1..] {
        into.read_block(block).expect("a block");
    }
}

const KEY: &str = "Accept: application/json\r\nIdempotency-Key: \"k\"\r\n";

#[test]
fn node_started_from_checkpoints_equals_one_that_read_the_whole_log() {
    let mut nodes = Nodes::new(3);
    let topics = ["a", "b", "c", "d", "e", "f"];
    let write = |nodes: &mut Nodes, text: &str, of: &[usize]| {
        for (n, topic) in topics.iter().enumerate() {
            nodes.post(of[n % of.len()], topic, text);
            nodes.run(of);
        }
    };
    write(&mut nodes, "first", &[0, 1, 2]);
    nodes.ask(1, "POST /pub/keyed", KEY, "once");
    nodes.ask(1, "PUT /pub/made", "", "");
    nodes.ask(2, "DELETE /pub/b", "", "");
    nodes.run(&[0, 1, 2]);
    let one = nodes.log.len();
    let documents = nodes.documents(&[], 0..one);
    // The steward (the node that makes checkpoints) dies with batches in flight.
    let held = nodes.post(0, "a", "held");
    for _ in 0..9 {
        nodes.run_second_at(&[1, 2]);
    }
    write(&mut nodes, "second", &[1, 2]);
    let two = nodes.log.len();
    let documents = nodes.documents(&documents, one..two);
    nodes.store(&[0]);
    nodes.read_stored(&[1, 2]);
    write(&mut nodes, "third", &[1, 2]);
    // Puts a batch into the log a second time.
    let double = nodes.log[two - 1].clone();
    let partition = usize::from(Header::read(&double.0).expect("a batch").partition);
    nodes.ends[partition] += 1;
    let place = nodes.ends[partition];
    nodes.log.push((double.0, place, nodes.unix_s));
    nodes.read_stored(&[1, 2]);
    let joined = nodes.join(&documents, two);
    assert_eq!(nodes.digest(joined), nodes.digest(1));
    assert_eq!(nodes.stewards(joined), nodes.stewards(1));
    for topic in ["a", "c", "keyed"] {
        let target = format!("sub/{topic}?since=oldest");
        let readers = [1, joined].map(|n| nodes.events(n, &target, ""));
        let got = nodes.received_events(1, readers[0]);
        assert!(!got.is_empty());
        assert_eq!(nodes.received_events(joined, readers[1]), got, "{topic}");
    }
    let again = nodes.ask(joined, "POST /pub/keyed", KEY, "once");
    nodes.run(&[1, 2, joined]);
    let text = nodes.text(joined, again).to_lowercase();
    assert!(text.contains("idempotency-replayed"), "{text}");
    // The dead node reconnects, but its batches in flight are void by then.
    nodes.read_stored(&[0]);
    for _ in 0..3 {
        nodes.run_second();
    }
    assert_eq!(nodes.status(0, held), Some(503));
    let reader = nodes.events(joined, "sub/a?since=oldest", "");
    let got = nodes.received_events(joined, reader);
    let data: Vec<&str> = got.iter().map(|(_, data)| &data[..]).collect();
    assert_eq!(data, ["first", "second", "third"]);
    assert!((0..3).all(|n| nodes.digest(n) == nodes.digest(joined)));
}

#[test]
fn stewards_that_died_before_the_checkpoints_are_declared_dead() {
    let mut nodes = Nodes::new(1);
    for _ in 0..3 {
        nodes.run_second();
    }
    assert_eq!(nodes.stewards(0), [Some(1000); 4]);
    let count = nodes.log.len();
    let documents = nodes.documents(&[], 0..count);
    let joined = nodes.join(&documents, count);
    for _ in 0..12 {
        nodes.run_second_at(&[joined]);
    }
    assert_eq!(nodes.stewards(joined), [Some(2000); 4]);
}

/// Nodes of the previous and of the next version read what the steward writes. If these bytes change, the format number of snapshots and
/// of the cluster must change too.
#[test]
fn checkpoints_of_form_9_are_these_bytes() {
    let mut nodes = Nodes::new(1);
    nodes.post(0, "a", "text");
    nodes.ask(0, "POST /pub/keyed", KEY, "once");
    nodes.ask(0, "PUT /pub/made", "", "");
    nodes.ask(0, "DELETE /pub/made", "", "");
    nodes.run(&[0]);
    let count = nodes.log.len();
    let documents = nodes.documents(&[], 0..count);
    let bytes: Vec<u8> = documents.into_iter().flatten().flatten().collect();
    assert_eq!(
        (FORMAT, bytes.len(), xxh3_64(&bytes)),
        (9, 676, 10_103_781_294_630_289_323)
    );
}

#[test]
fn death_recorded_only_in_the_first_partition_is_written_into_all_by_a_new_node() {
    let mut nodes = Nodes::new(2);
    for _ in 0..3 {
        nodes.run_second();
    }
    // The steward of all partitions ends, and the other node ends as soon as the first partition has the record of that death.
    let mut seconds = (0..20).map(|_| {
        nodes.run_second_at(&[1]);
        nodes.stewards(1)
    });
    let stewards = seconds.find(|stewards| stewards[0].is_none());
    let steward = Some(1000);
    assert_eq!(stewards, Some(vec![None, steward, steward, steward]));
    let documents = nodes.documents(&[], 0..nodes.log.len());
    let joined = nodes.join(&documents, nodes.log.len());
    for _ in 0..12 {
        nodes.run_second_at(&[joined]);
    }
    assert_eq!(nodes.stewards(joined), [Some(3000); 4]);
}
