//! Tests shadows. A shadow is a copy of a home (the part of a shard that keeps topics and sessions). It writes checkpoints of the home's state while the
//! home serves clients. The checkpoints must be correct, whatever the home has dropped meanwhile.

use std::sync::Arc;

use crore_broker::settings::{RetentionMode, Rule, Settings};
use crore_broker::snapshot::Head;
use crore_broker::{
    Control, Input, Now, Report, Restored, SessionNeeds, Shadow, Shard, Ticket, TurnLimits, World,
    batch,
};
use crore_wire::mqtt::{PacketId, Properties, Qos, SubscribeOptions, Version, encode};
use crore_wire::sse::GAP_EVENT;

use support::{NOW, connect};

mod support;

const PARTITIONS: u16 = 4;
/// Limit of the server's log in bytes: small, so that the log soon reaches it.
const LOG_BYTES: usize = 64 << 10;

/// A server with one home, a log, and checkpoints.
struct TestServer {
    server: support::TestServer,
    world: Arc<World>,
    /// The log: all batches in the order of their commits.
    log: Vec<Vec<u8>>,
    /// Number of batches that the checkpoints cover.
    contained: usize,
    /// The checkpoints (one for each partition), and the time at which they were made.
    base: Vec<Vec<Vec<u8>>>,
    base_now: Now,
}

fn rule(filter: &str) -> Rule {
    Rule {
        filter: filter.into(),
        log_messages: 1000,
        log_age_s: 1_000_000,
        position_age_s: 100,
        ..Rule::default()
    }
}

fn world(writer: Option<u64>, durable_sessions: bool) -> Arc<World> {
    let mut settings = Settings {
        rules: vec![
            Rule {
                keep: RetentionMode::Latest,
                ..rule("latest/#")
            },
            Rule {
                log_messages: 0,
                ..rule("state/#")
            },
            Rule {
                log_messages: 3,
                ..rule("few/#")
            },
            Rule {
                log_age_s: 10,
                position_age_s: 10,
                ..rule("short/#")
            },
            rule("#"),
        ],
        ..Settings::default()
    };
    settings.limits.log_bytes = LOG_BYTES;
    settings.mqtt.durable_sessions = durable_sessions;
    settings.publish.idempotency_window_s = 100;
    let world = support::partitioned(settings, 1, 1, PARTITIONS);
    let world = Arc::into_inner(world).expect("nobody else has it");
    Arc::new(World { writer, ..world })
}

impl TestServer {
    fn new() -> TestServer {
        TestServer::with(false)
    }

    fn with(durable_sessions: bool) -> TestServer {
        let world = world(Some(1), durable_sessions);
        TestServer {
            server: support::TestServer::new(&world, TurnLimits::default(), NOW),
            world,
            log: Vec::new(),
            contained: 0,
            base: Vec::new(),
            base_now: NOW,
        }
    }

    /// The engine (the writer of the log) commits all waiting batches.
    fn commit(&mut self) {
        loop {
            self.server.settle();
            let batches = std::mem::take(&mut self.server.io[0].batches);
            if batches.is_empty() {
                return;
            }
            for batch in batches {
                self.log.push(batch.bytes.to_vec());
                let committed = support::committed(&batch);
                self.server.handle(0, Input::Committed(committed));
            }
        }
    }

    fn said(&mut self, bytes: impl AsRef<[u8]>) -> String {
        let conn = self.server.open(0);
        self.server.send(conn, bytes);
        self.commit();
        let text_received = String::from_utf8_lossy(self.server.received(conn)).into_owned();
        self.server.cut(conn);
        text_received
    }

    fn post(&mut self, topic: &str, fields: &str, data: &str) -> String {
        let len = data.len();
        self.said(format!(
            "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len}\r\n\r\n{data}"
        ))
    }

    /// The text of the answer to a subscriber of this topic at this position: all messages after it, or a gap (the notice that messages
    /// were missed).
    fn read(&mut self, topic: &str, since: &str) -> String {
        self.read_path(&format!("/sub/{topic}?since={since}"))
    }

    /// The text of the answer to a subscriber by filter: all kept messages of the matching topics.
    fn retained(&mut self, filter: &str) -> String {
        self.read_path(&format!("/sub?filter={filter}"))
    }

    fn read_path(&mut self, path: &str) -> String {
        self.said(format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        ))
    }

    /// Lets time pass for the server.
    fn pass_s(&mut self, seconds: u32) {
        for _ in 0..3 {
            self.server.advance_and_tick_s(seconds / 2);
            self.commit();
        }
    }

    fn floors(&mut self, control: Control) -> Option<Vec<Option<u64>>> {
        self.server.handle(0, Input::Control(Ticket(1), control));
        match self.server.io[0].reports.pop() {
            Some((_, Report::Floors(floors))) => floors,
            other => panic!("{other:?}"),
        }
    }

    fn head(&self, homes: u16, home: u16) -> Head {
        Head {
            stop_id: 1,
            epoch: self.world.epoch,
            seed: self.world.seed,
            partitions: PARTITIONS,
            homes,
            home,
            unix_s: self.base_now.unix_s,
            wall_s: self.base_now.unix_s,
        }
    }

    /// Restores a home from those checkpoints for which `which` is true.
    fn read_base(&self, mut restored: Restored, which: impl Fn(u16) -> bool) -> Restored {
        for home in (0..self.base.len() as u16).filter(|home| which(*home)) {
            let blocks = &self.base[usize::from(home)];
            let head = Head::read(&blocks[0]).expect("a head");
            restored.begin_snapshot(&head).expect("its head");
            for block in &blocks[1..] {
                restored.read_block(block).expect("a block");
            }
        }
        restored.finish().expect("whole documents")
    }

    /// Makes checkpoints of all committed batches.
    fn checkpoint(&mut self) {
        let head = Head {
            unix_s: self.server.now.unix_s,
            ..self.head(1, 0)
        };
        self.checkpoint_with(&head);
    }

    /// Makes checkpoints that keep the head of the previous ones, as when documents are replaced in place.
    fn checkpoint_in_place(&mut self) {
        let head = Head::read(&self.base[0][0]).expect("a head");
        self.checkpoint_with(&head);
    }

    fn checkpoint_with(&mut self, head: &Head) {
        let world = Shadow::world(&self.world, head.epoch);
        let mut base = Vec::new();
        for partition in 0..PARTITIONS {
            let restored = Shadow::restored(&world, partition, self.base_now);
            let mut shadow = Shadow::new(self.read_base(restored, |home| home == partition));
            for bytes in &self.log[self.contained..] {
                let header = batch::Header::read(bytes).expect("a batch");
                if header.partition == partition {
                    shadow.apply_batch(&header, bytes).expect("a batch");
                }
            }
            shadow.drop_expired(self.server.now);
            while let Some(ask) = shadow.next_floors_order(3) {
                let floors = self.floors(ask).expect("all is applied");
                shadow.apply_floors(&floors);
            }
            let mut blocks = Vec::new();
            loop {
                let block = shadow.save(head);
                if block.is_empty() {
                    break;
                }
                blocks.push(block);
            }
            base.push(blocks);
        }
        (self.base, self.base_now) = (base, self.server.now);
        self.contained = self.log.len();
    }

    fn base_bytes(&self) -> usize {
        self.base.iter().flatten().map(Vec::len).sum()
    }

    /// Replaces the server by one that starts from the checkpoints and the log only, as after a kill.
    fn killed(&mut self) {
        let records_sessions = self.world.records_sessions();
        let world = Arc::into_inner(world(Some(2), records_sessions)).expect("nobody else has it");
        let world = Arc::new(World {
            epoch: self.world.epoch + u32::from(records_sessions),
            ..world
        });
        let restored = Restored::new(world.clone(), 0, self.server.now).without_local_state();
        let restored = self.read_base(restored, |_| true);
        let mut shard = Shard::new(0, world.clone(), self.server.now);
        shard.adopt(restored);
        for bytes in &self.log[self.contained..] {
            let header = batch::Header::read(bytes).expect("a batch");
            shard
                .apply_logged_batch(&header, bytes, self.server.now)
                .expect("a batch");
        }
        let mut needs = SessionNeeds::default();
        shard.add_session_needs(&mut needs);
        shard.finish_recovery(&needs, self.server.now);
        self.world = world;
        self.server = support::TestServer::from_shards(vec![shard], self.server.now);
    }

    /// Lets time pass for the server. Commits what the server writes in the first and in the last second.
    fn wait_s(&mut self, seconds: u32) {
        for seconds in [1, seconds - 1] {
            self.server.advance_and_tick_s(seconds);
            self.commit();
        }
    }

    /// Connects an MQTT client with a durable session. Returns the connection and the bytes that the client received.
    fn connects(&mut self) -> (usize, Vec<u8>) {
        let conn = self.server.open(0);
        self.server.send(conn, connect("it", EXPIRY_S));
        self.commit();
        let received_bytes = self.server.received(conn).to_vec();
        assert_eq!(received_bytes[0], CONNACK);
        (conn, received_bytes)
    }
}

/// The expiry of sessions.
const EXPIRY_S: u32 = 100;
/// The first byte of a CONNACK.
const CONNACK: u8 = 0x20;

/// The position in an answer.
fn position(answer: &str) -> String {
    let line = answer.lines().find_map(|line| line.strip_prefix("id: "));
    line.expect("an event").to_string()
}

#[test]
fn messages_positions_and_retained_values_survive_checkpoints() {
    let mut server = TestServer::new();
    for round in 0..3 {
        for topic in ["a", "b/c", "few/d"] {
            for n in 0..5 {
                server.post(topic, "", &format!("{topic}:{round}.{n}"));
            }
        }
        server.post(
            "state/one",
            "Crore-Retain: true\r\n",
            &format!("state {round}"),
        );
        for key in ["x", "y"] {
            let fields = format!("Crore-Key: {key}\r\n");
            server.post("latest/one", &fields, &format!("latest {key} {round}"));
        }
        let topics = ["a", "b/c", "few/d", "latest/one"];
        let before = topics.map(|topic| server.read(topic, "oldest"));
        assert!(before[1].contains("b/c:0.0") && before[2].matches("data:").count() == 3);
        assert!(before[3].contains("latest y"), "{before:?}");
        let states = server.retained("state/%2B");
        assert!(states.contains(&format!("state {round}")), "{states}");
        let begun = position(&before[0]);
        let behind = server.read("a", &begun);
        server.checkpoint();
        server.post("a", "", "behind the checkpoint");
        server.killed();
        let after = topics.map(|topic| server.read(topic, "oldest"));
        assert!(
            after[0].starts_with(&before[0]),
            "{} {}",
            before[0],
            after[0]
        );
        assert!(after[0].contains("behind the checkpoint"));
        assert_eq!(before[1..], after[1..]);
        let after = server.retained("state/%2B");
        assert!(after.contains(&format!("state {round}")), "{after}");
        let again = server.read("a", &begun);
        assert!(
            again.starts_with(&behind) && !again.contains("gap"),
            "{again}"
        );
    }
}

#[test]
fn topics_forgotten_by_the_home_leave_the_checkpoints() {
    let mut server = TestServer::new();
    server.post("kept", "", "for good");
    server.post("short/state", "Crore-Retain: true\r\n", "a state");
    server.checkpoint();
    let few = server.base_bytes();
    for n in 0..200 {
        server.post(&format!("short/{n}"), "", &"for a while".repeat(20));
    }
    let position = position(&server.read("short/7", "oldest"));
    server.post("short/7", "", "not seen");
    server.checkpoint();
    let many = server.base_bytes();
    assert!(many > few + 200 * 220, "{many}");
    for _ in 0..2 {
        server.pass_s(60);
        server.checkpoint();
        let left = server.base_bytes();
        // The names of some topics that had messages are remembered, for readers by filter.
        assert!(left < few + 200 * 20, "{left} of {many}, {few}");
        server.killed();
        assert!(server.read("kept", "oldest").contains("for good"));
        assert!(server.retained("short/state").contains("a state"));
        // The position is older than what the home remembers of the topics in that hash slot, so the reader gets a gap.
        assert!(server.read("short/7", &position).contains(GAP_EVENT));
    }
}

#[test]
fn messages_dropped_by_the_home_leave_the_checkpoints_and_are_reported_as_a_gap() {
    let mut server = TestServer::new();
    let data = "x".repeat(1000);
    server.post("other", "", "of another topic");
    server.post("big", "", "first");
    let first = position(&server.read("big", "oldest"));
    let by_filter = "/sub?filter=big&since=";
    let first_by_filter = position(&server.read_path(&format!("{by_filter}oldest")));
    for round in 0..4 {
        for _ in 0..100 {
            server.post("big", "", &data);
        }
        let answer = server.post("big", "", &format!("last of round {round}"));
        assert!(answer.contains("201") || answer.contains("202"), "{answer}");
        server.checkpoint();
        let bytes = server.base_bytes();
        assert!(bytes < LOG_BYTES + 4096, "{bytes}");
    }
    let all = server.read("big", "oldest");
    let last = all
        .lines()
        .filter_map(|line| line.strip_prefix("id: "))
        .next_back();
    let last = last.expect("an event").to_string();
    server.killed();
    assert_eq!(server.read("big", "oldest"), all);
    assert!(server.read("big", &first).contains(GAP_EVENT));
    assert!(!server.read("big", &last).contains(GAP_EVENT));
    // Readers by filter get a gap, too.
    let read = server.read_path(&format!("{by_filter}{first_by_filter}"));
    assert!(read.contains(GAP_EVENT), "{read}");
}

#[test]
fn topics_without_messages_are_in_checkpoints_with_only_their_positions() {
    let mut server = TestServer::new();
    let data = "x".repeat(1000);
    let mut positions = Vec::new();
    for n in 0..200 {
        let topic = format!("topic/{n}");
        server.post(&topic, "", &data);
        positions.push(position(&server.read(&topic, "oldest")));
        server.post(&topic, "", &data);
    }
    server.checkpoint();
    let bytes = server.base_bytes();
    assert!(bytes < LOG_BYTES + 200 * 50, "{bytes}");
    server.killed();
    for (n, position) in positions.iter().enumerate().take(50) {
        let read = server.read(&format!("topic/{n}"), position);
        assert!(read.contains(GAP_EVENT), "{read}");
    }
}

#[test]
fn superseded_and_expired_messages_are_no_gap() {
    let mut server = TestServer::new();
    for n in 0..9 {
        server.post("latest/a", "", &format!("value {n}"));
        server.post("a", "Crore-TTL: 20\r\n", &format!("short-lived {n}"));
        server.post("a", "", &format!("message {n}"));
    }
    let positions = ["latest/a", "a"].map(|topic| position(&server.read(topic, "oldest")));
    for n in 9..12 {
        server.checkpoint();
        // At the next request the home is ahead of the checkpoints.
        server.post("latest/a", "", &format!("value {n}"));
        server.post("a", "", &format!("message {n}"));
        server.pass_s(20);
    }
    let before = server.read("a", "oldest");
    assert!(!before.contains("short-lived") && before.contains("message 0"));
    server.checkpoint();
    server.killed();
    assert_eq!(server.read("a", "oldest"), before);
    for (topic, position) in ["latest/a", "a"].iter().zip(&positions) {
        let read = server.read(topic, position);
        assert!(read.contains(" 11") && !read.contains(GAP_EVENT), "{read}");
    }
}

#[test]
fn messages_that_expired_before_older_ones_are_in_no_checkpoint() {
    let mut server = TestServer::new();
    server.post("a", "", "stays");
    server.post("a", "Crore-TTL: 20\r\n", "short-lived");
    server.pass_s(30);
    // Nobody has read the topic since the checkpoint.
    server.checkpoint();
    let has = |text: &str| {
        let mut blocks = server.base.iter().flatten();
        blocks.any(|it| it.windows(text.len()).any(|it| it == text.as_bytes()))
    };
    assert!(has("stays") && !has("short-lived"));
    server.killed();
    assert!(server.read("a", "oldest").contains("stays"));
}

#[test]
fn retries_are_recognised_only_within_their_window() {
    let key = "Idempotency-Key: k\r\n";
    let mut server = TestServer::new();
    let first = server.post("a", key, "once");
    for _ in 0..3 {
        server.pass_s(20);
        server.checkpoint();
    }
    server.killed();
    let again = server.post("a", key, "once");
    assert_eq!(again.lines().next(), first.lines().next());
    assert_eq!(server.read("a", "oldest").matches("once").count(), 1);
    // The idempotency window is a hundred seconds. Checkpoints and restarts have not lengthened it.
    server.checkpoint();
    server.pass_s(30);
    server.killed();
    server.post("a", key, "once");
    assert_eq!(server.read("a", "oldest").matches("once").count(), 2);
}

#[test]
fn home_that_is_behind_reports_no_floors() {
    let mut server = TestServer::new();
    server.post("a", "", "one");
    let world = Shadow::world(&server.world, server.world.epoch);
    let partition = server.world.placement().partition_of(b"a");
    let mut shadow = Shadow::new(
        Shadow::restored(&world, partition, NOW)
            .finish()
            .expect("nothing is read"),
    );
    let header = batch::Header::read(&server.log[0]).expect("a batch");
    shadow
        .apply_batch(&header, &server.log[0])
        .expect("a batch");
    let Some(Control::Floors(partition, sequence, names)) = shadow.next_floors_order(10) else {
        panic!("there is a topic");
    };
    assert_eq!((sequence, &names[..]), (1, &[b"a"[..].into()][..]));
    assert_eq!(
        server.floors(Control::Floors(partition, sequence + 1, names.clone())),
        None
    );
    assert_eq!(
        server.floors(Control::Floors(partition, sequence, names)),
        Some(vec![Some(0)])
    );
}

/// The first turn (run of the event loop) after a start replays the whole log. It must not remove more topics than other turns.
#[test]
fn first_turn_after_a_start_removes_no_more_topics_than_another() {
    const TOPICS: u64 = 40;
    const FORGETS: usize = 8;
    let mut server = TestServer::new();
    for n in 0..TOPICS {
        server.post(&format!("state/{n}"), "", "on");
    }
    let mut shard = Shard::new(0, server.world.clone(), NOW);
    shard.set_turn_limits(TurnLimits {
        removals_per_turn: FORGETS,
        ..TurnLimits::default()
    });
    for bytes in &server.log {
        let header = batch::Header::read(bytes).expect("a batch");
        shard
            .apply_logged_batch(&header, bytes, NOW)
            .expect("a batch");
    }
    shard.lose_unlogged();
    let now = Now {
        s: NOW.s + 1000,
        unix_s: NOW.unix_s + 1000,
    };
    let mut after = support::TestServer::from_shards(vec![shard], now);
    after.handle(0, Input::Tick);
    after.flush(0);
    let left = after.shards[0].accounts().home_topics as u64;
    assert_eq!(left, TOPICS - FORGETS as u64);
}

#[test]
fn expiry_of_a_session_counts_from_the_first_start_after_its_connection() {
    let checkpoints: [fn(&mut TestServer); 3] = [
        |_| {},
        TestServer::checkpoint,
        TestServer::checkpoint_in_place,
    ];
    for (n, checkpoint) in checkpoints.into_iter().enumerate() {
        for (last_s, is_present) in [(20, true), (60, false)] {
            let mut server = TestServer::with(true);
            server.checkpoint();
            server.connects();
            server.wait_s(1000);
            server.killed();
            server.wait_s(60);
            checkpoint(&mut server);
            server.killed();
            server.wait_s(last_s);
            let present = server.connects().1[2] == 1;
            assert_eq!(present, is_present, "{n} {last_s}");
            // The record of the connection is in the log behind the record of the start.
            server.killed();
            server.wait_s(EXPIRY_S - 10);
            assert_eq!(server.connects().1[2], 1, "{n} {last_s}");
        }
    }
}

#[test]
fn overlapping_subscriptions_bring_a_message_once_after_a_checkpoint_in_place() {
    let mut server = TestServer::with(true);
    server.checkpoint();
    server.killed();
    let (conn, _) = server.connects();
    for (id, filter) in [(1, "a/b"), (2, "a/+")] {
        let mut out = Vec::new();
        let id = PacketId::new(id).expect("not 0");
        let filters = [(filter, SubscribeOptions::of(Qos::ExactlyOnce))];
        let filters = filters.into_iter();
        encode::subscribe(&mut out, Version::V5, id, &Properties::NONE, filters);
        server.server.send(conn, out);
    }
    server.commit();
    server.server.cut(conn);
    server.commit();
    server.checkpoint_in_place();
    server.killed();
    for text in ["one", "two"] {
        server.post("a/b", "", text);
    }
    let (_, received_bytes) = server.connects();
    let copies = received_bytes.windows(3).filter(|it| *it == b"one").count();
    assert_eq!((received_bytes[2], copies), (1, 1), "{received_bytes:?}");
}
