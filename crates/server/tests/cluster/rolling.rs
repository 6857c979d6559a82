//! Tests nodes of an earlier build and of this build in one cluster. `CRORE_PROGRAM_BEFORE` names the program of the earlier build; `cargo
//! xtask rolling COMMIT` builds that program, and runs this test.

use std::path::{Path, PathBuf};
use std::thread;

use async_nats::jetstream::stream::DiscardPolicy;
use serde_json::Value;

use crate::checkpoint;
use crate::faults::{log_of, publish_surely};
use crate::jetstream::JetStream;
use crate::reach;
use crate::servers::Servers;
use crate::settings;
use crate::status::status_by;
use crate::support::stream::{Event, Stream};
use crate::support::{Server, program, until};

/// Number of messages published while a node is replaced.
const MESSAGES_PER_REPLACEMENT: usize = 40;
/// Partitions of a new cluster.
const PARTITIONS: u64 = 4;

fn program_before() -> PathBuf {
    let program = std::env::var_os("CRORE_PROGRAM_BEFORE");
    program
        .expect("CRORE_PROGRAM_BEFORE names the program of an earlier build")
        .into()
}

/// Prepares the streams for a node of an earlier build: builds up to 28 November 2026 accept no streams that discard new batches
/// (docs/CLUSTER.md).
fn prepare_for(program: &Path, servers: &Servers, partitions: u64) {
    if program == program_before() {
        let jetstream = JetStream::of(servers);
        for partition in 0..partitions {
            let mut config = jetstream.config(partition);
            config.discard = DiscardPolicy::Old;
            jetstream.edit(config);
        }
    }
}

/// Waits until each node shows all of `nodes` and no problem, by the tools of both builds.
fn await_all_nodes(nodes: &[&Server]) {
    for node in nodes {
        for program in [program_before(), program()] {
            until("a whole cluster", || {
                let status = status_by(&program, node, &["--json"]);
                let all: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
                let count = all["nodes"].as_array().map(Vec::len);
                status.status.success() && count == Some(nodes.len())
            });
        }
    }
}

#[test]
#[ignore = "needs an earlier build, which CRORE_PROGRAM_BEFORE names: `cargo xtask rolling COMMIT` makes it"]
fn nodes_of_two_builds_have_the_same_messages_positions_values_and_keys() {
    let Some(servers) = Servers::start(3) else {
        return;
    };
    let old_node = Server::from_build(&program_before(), &settings(&servers));
    let new = Server::from_build(&program(), &settings(&servers));
    await_all_nodes(&[&old_node, &new]);
    for (node_a, node_b, name) in [(&old_node, &new, "up"), (&new, &old_node, "down")] {
        let topic = |kind: &str| format!("{name}/{kind}");
        reach::assert_reaches(node_a, node_b, &topic("any"));
        reach::assert_reaches_by_mqtt(node_a, node_b, &topic("mqtt"));
        reach::assert_retains(node_a, node_b, &topic("state"));
        reach::assert_resumes(node_a, node_b, &topic("positions"));
        reach::assert_knows_key(node_a, node_b, &topic("keyed"));
        reach::assert_deletes(node_a, node_b, &topic("topics"));
    }
    await_all_nodes(&[&old_node, &new]);
}

#[test]
#[ignore = "needs an earlier build, which CRORE_PROGRAM_BEFORE names: `cargo xtask rolling COMMIT` makes it"]
#[allow(
    clippy::print_stderr,
    reason = "whoever runs it is told what it leaves out"
)]
fn checkpoints_of_each_build_are_read_by_the_other() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let plain = checkpoint::node_of(&program_before(), &servers, "");
    let status = &checkpoint::partitions(&plain)[0];
    if status.get("checkpoint").is_none() {
        eprintln!("left out: the earlier build makes no checkpoints");
        return;
    }
    plain.stop();
    let start = |program: PathBuf| checkpoint::node_of(&program, &servers, "");
    let mut steward = start(program_before());
    let ids = checkpoint::publish_all_kinds(&steward);
    // The second joined node is of the earlier build. It reads checkpoints and log that both builds have written.
    for program in [program(), program_before()] {
        checkpoint::purge_what_checkpoints_have(&servers, &steward);
        prepare_for(&program, &servers, checkpoint::PARTITIONS);
        let joined = start(program);
        checkpoint::assert_all_kinds(&joined, &ids);
        steward.kill();
        // From here on the joined node makes the checkpoints.
        steward = joined;
    }
    checkpoint::purge_what_checkpoints_have(&servers, &steward);
}

/// A subscriber that moves from node to node, and continues from its last position.
struct Reader {
    stream: Stream,
    read: Vec<Event>,
}

impl Reader {
    fn open(node: &Server) -> Reader {
        Reader {
            stream: Stream::open(node, "/sub/a?since=oldest", &[]),
            read: Vec::new(),
        }
    }

    /// Reads until its node disconnects it, and continues at `node`.
    fn move_to(&mut self, node: &Server) {
        while let Some(event) = self.stream.event() {
            self.read.push(event);
        }
        let last = self.read.last().expect("it has read something");
        self.stream = Stream::open(node, "/sub/a", &[("Last-Event-ID", &last.id)]);
    }

    /// Reads until it has this many events. Returns all events so far.
    fn read_all(&mut self, count: usize) -> Vec<(String, String)> {
        while self.read.len() < count {
            self.read
                .push(self.stream.event().expect("the stream goes on"));
        }
        let read = self.read.iter();
        read.map(|it| (it.id.clone(), it.data.clone())).collect()
    }
}

#[test]
#[ignore = "needs an earlier build, which CRORE_PROGRAM_BEFORE names: `cargo xtask rolling COMMIT` makes it"]
fn rolling_upgrade_and_downgrade_lose_no_message() {
    let Some(servers) = Servers::start(3) else {
        return;
    };
    let (before, now) = (program_before(), program());
    let start = |program: &Path| Server::from_build(program, &settings(&servers));
    let (mut leaving, mut staying) = (start(&before), start(&before));
    publish_surely(&leaving, "a", "first");
    // One reader at each node.
    let (mut leaving_reader, mut staying_reader) = (Reader::open(&leaving), Reader::open(&staying));
    let mut published = vec!["first".to_string()];
    for (step, program) in [&now, &now, &before, &before].into_iter().enumerate() {
        let meanwhile: Vec<String> = (0..MESSAGES_PER_REPLACEMENT)
            .map(|n| format!("{step}.{n}"))
            .collect();
        let joined = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for text in &meanwhile {
                    publish_surely(&staying, "a", text);
                }
            });
            let address = leaving.address();
            leaving.stop();
            prepare_for(program, &servers, PARTITIONS);
            // The joined node has the same name as the stopped one. With another name, the stopped one would remain in the list as dead.
            let joined = Server::from_build_at(program, &settings(&servers), address);
            writer.join().expect("all are published");
            joined
        });
        leaving_reader.move_to(&joined);
        published.extend(meanwhile);
        let count = published.len();
        assert_eq!(log_of(&joined, "a", count), log_of(&staying, "a", count));
        await_all_nodes(&[&staying, &joined]);
        (leaving, staying) = (staying, joined);
        (leaving_reader, staying_reader) = (staying_reader, leaving_reader);
    }
    let all = log_of(&staying, "a", published.len());
    for mut reader in [leaving_reader, staying_reader] {
        assert_eq!(reader.read_all(published.len()), all);
    }
    let texts: Vec<&String> = all.iter().map(|(_, data)| data).collect();
    let expected: Vec<&String> = published.iter().collect();
    assert_eq!(texts, expected, "each once, in order");
}
