//! Tests that a home (the part of a shard that keeps topics and sessions) restores them from a snapshot.

use std::sync::Arc;

use crore_broker::batch::{self, LogRecord};
use crore_broker::mail::message::Headers;
use crore_broker::orders::AdminPublish;
use crore_broker::settings::{Rule, Settings};
use crore_broker::snapshot::Head;
use crore_broker::{Control, ControlRecord, Input, Restored, Shard, Ticket, TurnLimits, World};
use crore_wire::mqtt::{
    self, Connect, Packet, PacketId, Properties, PropertyWriter, Qos, SubscribeOptions, Version,
    Will, encode,
};
use support::{NOW, TestServer};

mod support;

fn new_world() -> Arc<World> {
    world_with_memory(Settings::default().limits.memory_bytes)
}

fn world_with_memory(memory_bytes: usize) -> Arc<World> {
    let rule = |filter: &str, log_messages| Rule {
        filter: filter.into(),
        log_messages,
        ..Rule::default()
    };
    let mut settings = Settings {
        rules: vec![rule("kept/#", 100), rule("#", 0)],
        ..Settings::default()
    };
    settings.limits.memory_bytes = memory_bytes;
    support::partitioned(settings, 1, 1, 4)
}

/// Restarts the server as planned. Returns the next process, which starts from the state of this one.
fn restarted(server: &mut TestServer, change: impl FnOnce(Restored) -> Restored) -> TestServer {
    restarted_in(new_world(), server, change)
}

fn restarted_in(
    world: Arc<World>,
    server: &mut TestServer,
    change: impl FnOnce(Restored) -> Restored,
) -> TestServer {
    let head = Head {
        stop_id: 1,
        epoch: world.epoch,
        seed: world.seed,
        partitions: world.partitions,
        homes: 1,
        home: 0,
        unix_s: NOW.unix_s,
        wall_s: NOW.unix_s,
    };
    let mut restored = change(Restored::new(world.clone(), 0, NOW));
    restored.begin_snapshot(&head).expect("a head");
    let _head = server.shards[0].save(&head, usize::MAX);
    loop {
        let block = server.shards[0].save(&head, usize::MAX);
        if block.is_empty() {
            break;
        }
        restored.read_block(&block).expect("a block");
    }
    let mut shard = Shard::new(0, world, NOW);
    shard.adopt(restored.finish().expect("a whole snapshot"));
    TestServer::from_shards(vec![shard], NOW)
}

fn said(server: &mut TestServer, bytes: impl AsRef<[u8]>) -> String {
    let conn = server.open(0);
    server.send(conn, bytes);
    server.settle();
    String::from_utf8_lossy(server.received(conn)).into_owned()
}

fn post(server: &mut TestServer, topic: &str, fields: &str) -> String {
    said(
        server,
        format!(
            "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: 2\r\n\r\nhi"
        ),
    )
}

/// A topic's number of messages, from the topic's information.
fn messages(server: &mut TestServer, topic: &str) -> String {
    let answer = said(
        server,
        format!("GET /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    );
    let line = answer.lines().find(|line| line.contains("messages:"));
    let count = line.and_then(|line| line.rsplit(' ').next());
    count.unwrap_or("no such topic").to_string()
}

/// Connects a client. Returns whether the server has its session.
fn connect(server: &mut TestServer) -> (usize, bool) {
    connect_as(server, "client", b"")
}

/// Connects a client with a will that is due much later.
fn connect_as(server: &mut TestServer, client_id: &str, will: &[u8]) -> (usize, bool) {
    let mut delayed = PropertyWriter::new();
    delayed.will_delay_interval_s(3600);
    let mut properties = PropertyWriter::new();
    properties.session_expiry_interval_s(3600);
    let mut bytes = Vec::new();
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: false,
        keep_alive_s: 0,
        properties: properties.properties(),
        client_id,
        will: (!will.is_empty()).then(|| Will {
            qos: Qos::AtLeastOnce,
            retain: false,
            topic: "gone",
            properties: delayed.properties(),
            payload: will,
        }),
        user_name: None,
        password: None,
    };
    encode::connect(&mut bytes, &connect);
    let conn = server.open(0);
    server.send(conn, bytes);
    server.settle();
    let bytes = server.received(conn);
    let (header, len) = mqtt::fixed_header(bytes, 1 << 20)
        .expect("packets")
        .expect("one");
    let body = &bytes[len..len + header.body_bytes()];
    match mqtt::decode(Version::V5, header, body).expect("a packet") {
        Packet::ConnAck(ack) => (conn, ack.session_present),
        other => panic!("{:?}", other.kind()),
    }
}

/// A server with an absent session. The server keeps messages for the session's own subscription and for a group.
fn served() -> TestServer {
    let mut server = TestServer::new(&new_world(), TurnLimits::default(), NOW);
    let (conn, present) = connect(&mut server);
    assert!(!present);
    for (id, filter) in [(1, "needed/+"), (2, "needed"), (3, "$share/group/shared/#")] {
        let mut bytes = Vec::new();
        let options = SubscribeOptions::of(Qos::AtLeastOnce);
        encode::subscribe(
            &mut bytes,
            Version::V5,
            PacketId::new(id).expect("an id"),
            &Properties::NONE,
            [(filter, options)].into_iter(),
        );
        server.send(conn, bytes);
        server.settle();
    }
    server.cut(conn);
    server.settle();
    for topic in ["needed/one", "needed", "shared/one", "kept/one"] {
        post(&mut server, topic, "");
        assert_eq!(messages(&mut server, topic), "1", "{topic}");
    }
    server
}

#[test]
fn unwanted_local_state_is_not_restored() {
    let mut server = served();
    let first = post(&mut server, "kept/key", "Idempotency-Key: a\r\n");
    let mut after = restarted(&mut server, Restored::without_local_state);
    assert_eq!(messages(&mut after, "kept/one"), "1");
    for topic in ["needed/one", "needed", "shared/one"] {
        // The rule of this topic keeps no messages, and no session needs them.
        assert_eq!(messages(&mut after, topic), "0", "{topic}");
        post(&mut after, topic, "");
        assert_eq!(messages(&mut after, topic), "0", "{topic}");
    }
    assert!(!connect(&mut after).1, "there is no session");
    let again = post(&mut after, "kept/key", "Idempotency-Key: a\r\n");
    assert_eq!(again.lines().next(), first.lines().next());
    assert_eq!(messages(&mut after, "kept/key"), "1");
}

#[test]
fn local_state_is_restored_after_a_planned_restart() {
    let mut server = served();
    let mut after = restarted(&mut server, |it| it);
    for topic in ["needed/one", "needed", "shared/one"] {
        assert_eq!(messages(&mut after, topic), "1", "{topic}");
        post(&mut after, topic, "");
        assert_eq!(messages(&mut after, topic), "2", "{topic}");
    }
    assert!(connect(&mut after).1, "its session is there");
}

/// The server before did not record sessions, and this one does. If this one recorded the positions later, a crash in its first seconds would lose the
/// messages that the group has not delivered.
#[test]
fn positions_of_restored_groups_are_recorded_in_the_first_second() {
    let mut server = served();
    let mut settings = Settings::default();
    settings.mqtt.durable_sessions = true;
    let world =
        Arc::into_inner(support::partitioned(settings, 1, 1, 4)).expect("nobody else has it");
    let world = Arc::new(World {
        writer: Some(1),
        ..world
    });
    let mut next = restarted_in(world, &mut server, |restored| restored);
    next.settle();
    next.advance_and_tick_s(1);
    assert!(
        !next.now.s.is_multiple_of(5),
        "the time for positions that have moved"
    );
    next.settle();
    let mut partitions = Vec::new();
    for waiting in &next.io[0].batches {
        let read = batch::for_each_record(&waiting.bytes, |_, entry| {
            if let LogRecord::Control(ControlRecord::Group(position)) = entry {
                assert_eq!(position.filter, b"shared/#");
                partitions.push(waiting.header.partition);
            }
        });
        assert!(read.is_ok());
    }
    partitions.sort_unstable();
    assert_eq!(partitions, [0, 1, 2, 3]);
}

#[test]
fn operators_orders_are_refused_while_a_stop_writes_the_state() {
    let mut server = served();
    server.handle(0, Input::Control(Ticket(0), Control::Settle));
    server.settle();
    server.io[0].reports.clear();
    let name: Box<[u8]> = b"kept/one".as_slice().into();
    let publishing = Box::new(AdminPublish {
        idempotency_key: None,
        name: name.clone(),
        data: b"late".to_vec(),
        headers: Headers::default(),
    });
    for control in [
        Control::Publish(publishing),
        Control::Purge(name.clone(), u64::MAX),
        Control::Delete(name),
    ] {
        server.handle(0, Input::Control(Ticket(1), control));
        let (_, report) = server.io[0].reports.pop().expect("an answer at once");
        assert_eq!(format!("{report:?}"), "Outcome(Unknown)");
    }
    let mut after = restarted(&mut server, |it| it);
    assert_eq!(messages(&mut after, "kept/one"), "1");
}

/// A checkpoint may come from a store to which others can write too, so a document with valid checksums may still have bad fields.
#[test]
fn checkpoint_with_a_field_that_no_client_may_send_is_refused() {
    let mut server = TestServer::new(&new_world(), TurnLimits::default(), NOW);
    let fields = "Content-Type: text/zzz\r\nX-EventSource-Event: event\r\nCrore-Key: some-key\r\n\
                  Crore-Property: name=value\r\n";
    post(&mut server, "kept/a", fields);
    let world = new_world();
    let head = Head {
        stop_id: 1,
        epoch: world.epoch,
        seed: world.seed,
        partitions: world.partitions,
        homes: 1,
        home: 0,
        unix_s: NOW.unix_s,
        wall_s: NOW.unix_s,
    };
    let _head = server.shards[0].save(&head, usize::MAX);
    let block = server.shards[0].save(&head, usize::MAX);
    let read = |block: &[u8]| {
        let mut restored = Restored::new(world.clone(), 0, NOW);
        restored.begin_snapshot(&head).expect("a head");
        restored.read_block(block)
    };
    assert_eq!(read(&block), Ok(()));
    for (written, changed) in [
        (&b"text/zzz"[..], &b"text/\r\nz"[..]),
        (b"text/zzz", b"text/zz\xff"),
        (b"event", b"ev\nnt"),
        (b"event", b"e\x7fent"),
        (b"some-key", b"some\0key"),
        (b"kept/a", b"kept/\n"),
        (b"kept/a", b"kept/#"),
        // The properties, and the stored frame: with another opcode, or with a length beyond its end.
        (b"\x26\0\x04name", b"\x26\0\x44name"),
        (b"\x26\0\x04name", b"\x25\0\x04name"),
        (b"\x81\x02hi", b"\x01\x02hi"),
        (b"\x81\x02hi", b"\x81\x03hi"),
        (b"\x81\x02hi", b"\x81\x7fhi"),
        (b"\x81\x02hi", b"\x81\x02\xffi"),
    ] {
        let places = block.windows(written.len());
        let places: Vec<usize> = (0..)
            .zip(places)
            .filter(|(_, it)| *it == written)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty(), "{written:?}");
        let mut bytes = block.clone();
        places
            .iter()
            .for_each(|at| bytes[*at..at + written.len()].copy_from_slice(changed));
        assert!(read(&bytes).is_err(), "{}", written.escape_ascii());
    }
}

/// The next process may have a lower memory limit.
#[test]
fn restored_sessions_beyond_the_memory_limit_are_evicted_at_the_start() {
    const COUNT: u32 = 100;
    const WILL_BYTES: usize = 60 << 10;
    let mut server = TestServer::new(&new_world(), TurnLimits::default(), NOW);
    for n in 0..COUNT {
        let (conn, _) = connect_as(&mut server, &format!("client{n}"), &[b'x'; WILL_BYTES]);
        server.cut(conn);
        server.settle();
    }
    let limit = COUNT as usize * WILL_BYTES / 2;
    let mut next = restarted_in(world_with_memory(limit), &mut server, |restored| restored);
    assert_eq!(next.shards[0].accounts().sessions, COUNT);
    next.settle();
    let left = next.shards[0].accounts().sessions;
    assert!((1..COUNT / 2).contains(&left), "{left} sessions");
}
