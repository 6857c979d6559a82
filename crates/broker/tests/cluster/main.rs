//! Tests nodes over one log: a message published at one node reaches the subscribers of all nodes once and with the same position,
//! whichever nodes die.

mod checkpoint;
mod mqtt;
mod sessions;
mod strangers;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use crore_broker::batch::Header;
use crore_broker::orders::ClusterState;
use crore_broker::settings::{Rule, Settings};
use crore_broker::{
    Backlog, Committed, Control, ForeignBatch, Input, OFFSET_BITS, Offsets, PartitionId, Report,
    Ticket, TurnLimits, World,
};
use crore_wire::sse::GAP_EVENT;

use support::{NOW, TestServer};

const PARTITIONS: PartitionId = 4;
const JSON: &str = "Accept: application/json\r\n";

/// A node: its shards, and the number of log batches that they have read.
struct Node {
    world: Arc<World>,
    server: TestServer,
    told: usize,
    /// The partitions that the node does not read for now, and their committed batches.
    unread: Vec<PartitionId>,
    held: Vec<Committed>,
    backlog: Backlog,
}

/// The nodes, and the log of all partitions in order. Each batch has its sequence number and the second in which it was stored.
struct Nodes {
    nodes: Vec<Node>,
    log: Vec<(Arc<[u8]>, u64, u32)>,
    ends: [u64; PARTITIONS as usize],
    unix_s: u32,
}

/// The settings and shared state of a node (its world).
fn world(n: usize) -> Arc<World> {
    world_with(n, Settings::default())
}

fn world_with(n: usize, settings: Settings) -> Arc<World> {
    let settings = Settings {
        rules: vec![Rule {
            log_messages: 100,
            ..Rule::default()
        }],
        ..settings
    };
    let world = support::partitioned(settings, 2, 2, PARTITIONS);
    let world = Arc::into_inner(world).expect("nobody else has it");
    Arc::new(World {
        writer: Some(1000 * (n as u64 + 1)),
        offsets: Offsets::ByLog,
        ..world
    })
}

impl Nodes {
    fn new(count: usize) -> Nodes {
        Nodes::with(count, &Settings::default())
    }

    fn with(count: usize, settings: &Settings) -> Nodes {
        let node = |n: usize| {
            let world = world_with(n, settings.clone());
            let mut server = TestServer::new(&world, TurnLimits::default(), NOW);
            // The clocks of nodes differ.
            server.now.unix_s += 300 * n as u32;
            Node {
                world,
                server,
                told: 0,
                unread: Vec::new(),
                held: Vec::new(),
                backlog: Backlog::default(),
            }
        };
        let mut nodes = Nodes {
            nodes: (0..count).map(node).collect(),
            log: Vec::new(),
            ends: [0; PARTITIONS as usize],
            unix_s: NOW.unix_s,
        };
        nodes.run_second();
        nodes
    }

    /// Stores the batches that these nodes have appended in the log.
    fn store(&mut self, indexes: &[usize]) {
        for n in indexes {
            self.nodes[*n].server.settle();
            for io in &mut self.nodes[*n].server.io {
                for batch in io.batches.drain(..) {
                    let end = &mut self.ends[usize::from(batch.header.partition)];
                    *end += 1;
                    self.log.push((batch.bytes, *end, self.unix_s));
                }
            }
        }
    }

    /// The nodes read and apply all stored batches.
    fn read_stored(&mut self, to: &[usize]) {
        for n in to {
            self.read_stored_at(*n);
            let node = &self.nodes[*n];
            assert!(node.backlog.bytes() == 0 || !node.held.is_empty());
        }
    }

    fn read_stored_at(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let mut committed = std::mem::take(&mut node.held);
        for (bytes, sequence, unix_s) in &self.log[node.told..] {
            let placement = world(n).placement();
            let checked = ForeignBatch::checked(bytes.clone(), placement, &node.backlog);
            let Ok((mut header, batch)) = checked else {
                // The batch is void (malformed), so readers skip it.
                continue;
            };
            (header.first_offset, header.unix_s) = (sequence << OFFSET_BITS, *unix_s);
            committed.push(Committed {
                header,
                batch: Some(batch),
            });
        }
        for committed in committed {
            let partition = committed.header.partition;
            match node.unread.contains(&partition) {
                true => node.held.push(committed),
                false => {
                    let home = usize::from(partition % 2);
                    node.server.handle(home, Input::Committed(committed));
                }
            }
        }
        node.told = self.log.len();
        node.server.settle();
    }

    /// Stores the batches of these nodes, and lets the nodes read them, until there are no more.
    fn run(&mut self, nodes: &[usize]) {
        loop {
            let before = self.log.len();
            self.store(nodes);
            self.read_stored(nodes);
            if self.log.len() == before {
                return;
            }
        }
    }

    /// Lets a second pass for these nodes. Then their batches are stored and read.
    fn run_second_at(&mut self, nodes: &[usize]) {
        self.unix_s += 1;
        for n in nodes {
            self.nodes[*n].server.advance_and_tick_s(1);
        }
        self.run(nodes);
    }

    fn run_second(&mut self) {
        self.run_second_at(&(0..self.nodes.len()).collect::<Vec<_>>());
    }

    fn ask(&mut self, node: usize, line: &str, fields: &str, body: &str) -> usize {
        let server = &mut self.nodes[node].server;
        let conn = server.open(0);
        let len = body.len();
        server.send(
            conn,
            format!(
                "{line} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len}\r\n\r\n{body}"
            ),
        );
        server.settle();
        conn
    }

    fn post(&mut self, node: usize, topic: &str, data: &str) -> usize {
        self.ask(node, &format!("POST /pub/{topic}"), JSON, data)
    }

    fn events(&mut self, node: usize, target: &str, since: &str) -> usize {
        let fields = format!("Accept: text/event-stream\r\n{since}");
        self.ask(node, &format!("GET /{target}"), &fields, "")
    }

    fn text(&self, node: usize, conn: usize) -> String {
        String::from_utf8_lossy(self.nodes[node].server.received(conn)).into_owned()
    }

    fn status(&self, node: usize, conn: usize) -> Option<u16> {
        let text = self.text(node, conn);
        text.get(9..12)?.parse().ok()
    }

    /// The positions and data of a client's events.
    fn received_events(&self, node: usize, conn: usize) -> Vec<(String, String)> {
        let text = self.text(node, conn);
        let field_of = |event: &str, field: &str| {
            let line = event.lines().find_map(|line| line.strip_prefix(field));
            line.map(String::from)
        };
        let events = text.split("\n\n");
        events
            .filter_map(|event| Some((field_of(event, "id: ")?, field_of(event, "data: ")?)))
            .collect()
    }

    /// The state of each home (the part of a shard that keeps topics) of a node.
    fn states(&mut self, node: usize) -> Vec<ClusterState> {
        let server = &mut self.nodes[node].server;
        (0..2)
            .map(|shard| {
                server.handle(shard, Input::Control(Ticket(1), Control::Cluster));
                match server.io[shard].reports.pop() {
                    Some((_, Report::Cluster(Some(state)))) => *state,
                    other => panic!("{other:?}"),
                }
            })
            .collect()
    }

    fn digest(&self, node: usize) -> u64 {
        let shards = self.nodes[node].server.shards.iter();
        shards.fold(0, |digest, shard| digest ^ shard.digest())
    }

    fn stewards(&mut self, node: usize) -> Vec<Option<u64>> {
        let states = self.states(node);
        let partitions = states.iter().flat_map(|it| &it.partitions);
        partitions.map(|it| it.steward).collect()
    }
}

#[test]
fn message_reaches_subscribers_of_all_nodes_once_with_one_position() {
    let mut nodes = Nodes::new(3);
    let readers: Vec<usize> = (0..3).map(|n| nodes.events(n, "sub/a", "")).collect();
    let publishers: Vec<usize> = (0..3)
        .map(|n| nodes.post(n, "a", &format!("of {n}")))
        .collect();
    // Nothing is delivered or answered before it is committed.
    for n in 0..3 {
        assert_eq!(
            (
                nodes.received_events(n, readers[n]),
                nodes.status(n, publishers[n])
            ),
            (vec![], None)
        );
    }
    nodes.run(&[2, 0, 1]);
    let first = nodes.received_events(0, readers[0]);
    let data: Vec<&str> = first.iter().map(|(_, data)| &data[..]).collect();
    assert_eq!(data, ["of 2", "of 0", "of 1"]);
    for n in 0..3 {
        assert_eq!(nodes.received_events(n, readers[n]), first);
        assert_eq!(nodes.status(n, publishers[n]), Some(201));
        assert_eq!(nodes.digest(n), nodes.digest(0));
    }
}

#[test]
fn position_of_one_node_is_resumed_at_another_even_if_that_is_behind() {
    for target in ["sub/a", "sub?filter=%2B"] {
        let mut nodes = Nodes::new(2);
        let reader = nodes.events(0, target, "");
        for n in 0..4 {
            nodes.post(n % 2, "a", &format!("{n}"));
            nodes.run(&[0, 1]);
        }
        // The other node does not read the next two messages.
        for n in 4..6 {
            nodes.post(0, "a", &format!("{n}"));
            nodes.store(&[0]);
            nodes.read_stored(&[0]);
        }
        let events = nodes.received_events(0, reader);
        let data = |events: &[(String, String)]| {
            events
                .iter()
                .map(|(_, data)| data.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(data(&events), ["0", "1", "2", "3", "4", "5"]);
        let since = |n: usize| format!("Last-Event-ID: {}\r\n", events[n].0);
        let [known, ahead] = [1, 4].map(|n| nodes.events(1, target, &since(n)));
        assert_eq!(data(&nodes.received_events(1, known)), ["2", "3"]);
        assert_eq!(data(&nodes.received_events(1, ahead)), [""; 0]);
        nodes.read_stored(&[1]);
        nodes.post(0, "a", "6");
        nodes.run(&[0, 1]);
        assert_eq!(
            data(&nodes.received_events(1, known)),
            ["2", "3", "4", "5", "6"]
        );
        assert_eq!(
            data(&nodes.received_events(1, ahead)),
            ["5", "6"],
            "{target}"
        );
        assert!(!nodes.text(1, ahead).contains("gap"));
    }
}

#[test]
fn position_after_the_end_of_the_log_is_a_gap() {
    let mut nodes = Nodes::new(1);
    nodes.post(0, "a", "kept");
    nodes.run(&[0]);
    let reader = nodes.events(0, "sub/a", "Last-Event-ID: 17-99999999\r\n");
    assert_eq!(nodes.received_events(0, reader), []);
    nodes.run_second();
    let text = nodes.text(0, reader);
    assert!(text.contains(GAP_EVENT) && text.contains("kept"), "{text}");
}

#[test]
fn idempotency_key_counts_once_over_nodes_with_different_clocks() {
    let mut nodes = Nodes::new(2);
    let key = "Accept: application/json\r\nIdempotency-Key: \"k\"\r\n";
    let reader = nodes.events(0, "sub/a", "");
    let publishers = [0, 1].map(|n| nodes.ask(n, "POST /pub/a", key, "once"));
    nodes.run(&[1, 0]);
    assert_eq!(nodes.received_events(0, reader).len(), 1);
    let body = |nodes: &Nodes, n: usize| {
        let text = nodes.text(n, publishers[n]);
        text.split("\r\n\r\n").nth(1).map(String::from)
    };
    for (n, conn) in publishers.into_iter().enumerate() {
        assert!(matches!(nodes.status(n, conn), Some(201 | 202)));
    }
    let position = |body: Option<String>| {
        let body = body.expect("a body");
        let offset = body.find("last_message_id").expect("a position");
        body[offset..].lines().next().map(String::from)
    };
    assert_eq!(position(body(&nodes, 0)), position(body(&nodes, 1)));
    // Within the window, by the log's clock, the server recognises the retry. After it, the retry is a new message.
    let window_s = Settings::default().publish.idempotency_window_s;
    for _ in 0..window_s - 2 {
        nodes.run_second();
    }
    let again = nodes.ask(1, "POST /pub/a", key, "once");
    nodes.run(&[0, 1]);
    assert!(
        nodes
            .text(1, again)
            .to_lowercase()
            .contains("idempotency-replayed")
    );
    for _ in 0..4 {
        nodes.run_second();
    }
    let late = nodes.ask(0, "POST /pub/a", key, "once");
    nodes.run(&[0, 1]);
    assert!(
        !nodes
            .text(0, late)
            .to_lowercase()
            .contains("idempotency-replayed")
    );
    assert_eq!(nodes.received_events(0, reader).len(), 2);
    assert_eq!(nodes.digest(0), nodes.digest(1));
}

#[test]
fn topics_created_or_deleted_at_two_nodes_at_once_are_equal_at_both() {
    let mut nodes = Nodes::new(2);
    for line in ["PUT /pub/a", "DELETE /pub/a", "PUT /pub/a"] {
        let answers = [0, 1].map(|n| nodes.ask(n, line, "", ""));
        nodes.run(&[0, 1]);
        for (n, conn) in answers.into_iter().enumerate() {
            let status = nodes.status(n, conn).expect("an answer");
            assert!(status < 300 || status == 404, "{line}: {status}");
        }
        assert_eq!(nodes.digest(0), nodes.digest(1), "{line}");
    }
}

#[test]
fn silent_node_is_declared_dead_and_continues_as_a_new_writer_without_loss() {
    let mut nodes = Nodes::new(3);
    for _ in 0..3 {
        nodes.run_second();
    }
    assert_eq!(nodes.stewards(2), vec![Some(1000); 4]);
    assert_eq!(nodes.states(1)[0].nodes.len(), 3);
    let reader = nodes.events(1, "sub/a", "");
    // The first node is cut off from the log.
    let cut_off = |nodes: &mut Nodes| {
        nodes.nodes[0].server.advance_and_tick_s(1);
        nodes.nodes[0].server.settle();
        nodes.run_second_at(&[1, 2]);
    };
    for _ in 0..4 {
        cut_off(&mut nodes);
    }
    assert_eq!(nodes.stewards(2), vec![Some(1000); 4]);
    let topics = ["a", "b", "c", "d", "e", "f"];
    let held: Vec<usize> = topics.map(|topic| nodes.post(0, topic, "held")).to_vec();
    for _ in 0..4 {
        cut_off(&mut nodes);
        let publisher = nodes.post(1, "b", "goes on");
        nodes.run(&[1, 2]);
        assert_eq!(nodes.status(1, publisher), Some(202));
    }
    let stewards = nodes.stewards(2);
    assert!(
        stewards.iter().all(|it| matches!(it, Some(2000 | 3000))),
        "{stewards:?}"
    );
    assert_eq!(nodes.states(1)[0].nodes.len(), 2);
    // The first node reconnects. Its batches in flight are void, so it writes them again.
    nodes.store(&[0]);
    nodes.read_stored(&[1, 2]);
    assert_eq!(nodes.received_events(1, reader), []);
    nodes.read_stored(&[0]);
    for _ in 0..3 {
        nodes.run_second();
    }
    for conn in &held {
        assert!(matches!(nodes.status(0, *conn), Some(201 | 202)));
    }
    let data: Vec<String> = nodes
        .received_events(1, reader)
        .into_iter()
        .map(|(_, data)| data)
        .collect();
    assert_eq!(data, ["held"]);
    assert_eq!(nodes.states(1)[0].nodes.len(), 3);
    let writers: Vec<u64> = nodes
        .states(0)
        .iter()
        .flat_map(|it| &it.partitions)
        .map(|it| it.writer)
        .collect();
    assert_eq!(writers, [1001; 4]);
    assert!([0, 1].iter().all(|n| nodes.digest(*n) == nodes.digest(2)));
}

#[test]
fn node_that_wrote_its_own_death_also_writes_later_deaths() {
    let mut nodes = Nodes::new(3);
    for _ in 0..3 {
        nodes.run_second();
    }
    // The second node is cut off. The others declare it dead in the first partition, and die before they can write this into the other partitions.
    while nodes.states(0)[0].nodes.len() == 3 {
        nodes.nodes[1].server.advance_and_tick_s(1);
        nodes.nodes[1].server.settle();
        nodes.run_second_at(&[0, 2]);
    }
    assert_eq!(nodes.stewards(0), [Some(1000); 4]);
    // The second node reads its own death when it reconnects, and writes it into the other partitions. Later it declares the others dead.
    for _ in 0..15 {
        nodes.run_second_at(&[1]);
    }
    assert_eq!(nodes.stewards(1), [Some(2001); 4]);
}

#[test]
fn record_stored_after_the_answer_outcome_unknown_takes_effect_at_no_node() {
    let mut nodes = Nodes::new(2);
    for _ in 0..3 {
        nodes.run_second();
    }
    let reader = nodes.events(1, "sub/a", "");
    let key = "Accept: application/json\r\nIdempotency-Key: \"k\"\r\n";
    // The first node is cut off from the log, and the second one continues.
    let old = [
        nodes.ask(0, "POST /pub/a", key, "old"),
        nodes.ask(0, "DELETE /pub/b", JSON, ""),
        nodes.ask(0, "PUT /pub/c", JSON, ""),
    ];
    for _ in 0..12 {
        nodes.nodes[0].server.advance_and_tick_s(1);
        nodes.nodes[0].server.settle();
        nodes.run_second_at(&[1]);
    }
    for topic in ["a", "b"] {
        let new = nodes.post(1, topic, "new");
        nodes.run(&[1]);
        assert!(matches!(nodes.status(1, new), Some(201 | 202)));
    }
    assert_eq!(old.map(|conn| nodes.status(0, conn)), [Some(503); 3]);
    for _ in 0..4 {
        nodes.run_second();
    }
    let data = |nodes: &Nodes, n, reader| {
        let events = nodes.received_events(n, reader).into_iter();
        events.map(|(_, data)| data).collect::<Vec<_>>()
    };
    assert_eq!(data(&nodes, 1, reader), ["new"]);
    for n in [0, 1] {
        let kept = nodes.events(n, "sub/b?since=oldest", "");
        assert_eq!(data(&nodes, n, kept), ["new"], "nothing was deleted");
    }
    let created = nodes.ask(1, "PUT /pub/c", JSON, "");
    nodes.run(&[1]);
    assert_eq!(nodes.status(1, created), Some(201), "it did not exist");
    // The refused publish did not use up the key.
    let again = nodes.ask(0, "POST /pub/a", key, "old");
    nodes.run(&[0, 1]);
    assert!(matches!(nodes.status(0, again), Some(201 | 202)));
    assert!(!nodes.text(0, again).contains("replayed"));
    assert_eq!(data(&nodes, 1, reader), ["new", "old"]);
    // A node that reads the log later comes to the same result.
    let mut late = TestServer::new(&world(7), TurnLimits::default(), NOW);
    for (bytes, sequence, unix_s) in &nodes.log {
        let mut header = Header::read(bytes).expect("a batch");
        (header.first_offset, header.unix_s) = (sequence << OFFSET_BITS, *unix_s);
        let home = usize::from(header.partition % 2);
        let folded = late.shards[home].apply_logged_batch(&header, bytes, NOW);
        folded.expect("a node wrote it");
    }
    let digest = late.shards.iter().fold(0, |all, it| all ^ it.digest());
    assert_eq!(digest, nodes.digest(0));
    assert_eq!(digest, nodes.digest(1));
}

#[test]
fn record_stored_within_six_seconds_takes_effect_and_its_key_gives_the_first_answer() {
    let key = "Accept: application/json\r\nIdempotency-Key: \"k\"\r\n";
    for (seconds, counts) in [(6, true), (7, false)] {
        let mut nodes = Nodes::new(2);
        for _ in 0..3 {
            nodes.run_second();
        }
        let asked = nodes.ask(0, "POST /pub/a", key, "text");
        for _ in 0..seconds - 1 {
            nodes.nodes[0].server.advance_and_tick_s(1);
            nodes.nodes[0].server.settle();
            // The other nodes are idle, and report no node as dead.
            nodes.unix_s += 1;
        }
        assert_eq!(nodes.status(0, asked), None);
        nodes.run_second();
        let answer = nodes.status(0, asked);
        match counts {
            true => assert!(matches!(answer, Some(201 | 202))),
            false => assert_eq!(answer, Some(503)),
        }
        let again = nodes.ask(1, "POST /pub/a", key, "text");
        nodes.run(&[0, 1]);
        assert!(matches!(nodes.status(1, again), Some(201 | 202)));
        let text = nodes.text(1, again).to_lowercase();
        assert_eq!(text.contains("idempotency-replayed"), counts, "{seconds}");
        assert_eq!(nodes.digest(0), nodes.digest(1));
    }
}

#[test]
fn node_cut_off_from_the_log_reports_it_and_declares_no_node_dead() {
    let mut nodes = Nodes::new(2);
    for _ in 0..3 {
        nodes.run_second();
    }
    assert!(!nodes.states(0)[0].is_cut_off);
    let reader = nodes.events(0, "sub/a", "");
    let publisher = nodes.post(0, "a", "unseen");
    for _ in 0..12 {
        nodes.nodes[0].server.advance_and_tick_s(1);
        nodes.nodes[0].server.settle();
    }
    assert!(nodes.states(0)[0].is_cut_off);
    assert_eq!(nodes.received_events(0, reader), []);
    assert_eq!(nodes.status(0, publisher), Some(503));
    nodes.run(&[0, 1]);
    nodes.run_second();
    assert!(!nodes.states(0)[0].is_cut_off);
    assert_eq!(nodes.received_events(0, reader).len(), 1);
    assert_eq!(nodes.states(0)[0].nodes.len(), 2);
    assert_eq!(nodes.states(1)[0].nodes.len(), 2);
}
