//! Tests that work is counted by its real cost, and not by the bytes of the request: compressed data, empty frames and chunks, compared
//! filters, and groups that get a message. A turn (one round of the event loop) ends when its budget is spent, and the rest of the work
//! continues in the next turns.

use std::sync::Arc;

use crore_broker::Verdict;
use crore_broker::access::{Grants, Right, VerifiedClient};
use crore_broker::settings::Settings;
use crore_broker::{Input, Reason, TurnLimits, World};
use crore_wire::deflate::Compressor;
use crore_wire::mqtt::{
    self, Connect, Packet, PacketId, Properties, Qos, SubscribeOptions, Version, encode,
};
use crore_wire::websocket::frame::{self, Opcode};
use support::{NOW, TestServer};

mod asks;
mod log;
mod matching;
mod parties;
#[path = "../support/mod.rs"]
mod support;
mod valve;

/// The maximum number of steps by which the last unit of work may exceed the budget of a turn. A unit is 64 KiB of a message, a publish to all groups that
/// get it at once, or the matching of filters that costs as much.
const UNIT_STEPS: u64 = 1_200;
const TURN_STEPS: u32 = 1_024;

fn server(settings: Settings) -> TestServer {
    let turn_limits = TurnLimits {
        steps_per_turn: TURN_STEPS,
        ..TurnLimits::default()
    };
    TestServer::new(&support::world(settings, 1, 1), turn_limits, NOW)
}

const UPGRADE: &str = "GET /pub/t HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
     Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n";

/// The steps that a shard takes for an input.
fn steps_of(server: &mut TestServer, conn: usize, bytes: impl AsRef<[u8]>) -> u64 {
    let before = server.shards[0].steps();
    server.send(conn, bytes);
    server.shards[0].steps() - before
}

/// The number of turns until `published` messages are published. Checks that no turn exceeds its budget by more than a few units of work,
/// one of which is the publish of a message of `bytes` bytes.
fn turns_until(server: &mut TestServer, published: u64, bytes: usize) -> usize {
    let mut turns = 0;
    while server.shards[0].stats().published < published {
        let before = server.shards[0].steps();
        server.flush(0);
        let steps = server.shards[0].steps() - before;
        assert!(
            steps <= u64::from(TURN_STEPS) + 3 * UNIT_STEPS + 2 * bytes as u64 / 256,
            "{steps} steps in a turn"
        );
        turns += 1;
        assert!(turns < 10_000, "the turns do not end");
    }
    turns
}

/// A connection that publishes compressed frames to the topic `t`.
fn socket(server: &mut TestServer) -> usize {
    let conn = server.open(0);
    server.send(conn, UPGRADE);
    server.settle();
    assert!(server.received(conn).starts_with(b"HTTP/1.1 101 "));
    conn
}

fn compressed_frame(payload: &[u8]) -> Vec<u8> {
    const RSV1: u8 = 0x40;
    let mut out = Vec::new();
    frame::write_masked(&mut out, Opcode::Text, payload, [1, 2, 3, 4]);
    out[0] |= RSV1;
    out
}

/// A compressed message of empty blocks with fixed codes (ten bits each), followed by the block of the flush.
fn empty_blocks(fours: usize) -> Vec<u8> {
    let mut out = [0x02, 0x08, 0x20, 0x80, 0x00].repeat(fours);
    out.push(0);
    out
}

#[test]
fn message_of_empty_deflate_blocks_counts_each_block() {
    let mut server = server(Settings::default());
    let conn = socket(&mut server);
    // 50 KB of such blocks, which are read at once.
    let steps = steps_of(&mut server, conn, compressed_frame(&empty_blocks(10_000)));
    assert!(
        steps <= u64::from(TURN_STEPS) + UNIT_STEPS,
        "{steps} steps in an input"
    );
    let turns = turns_until(&mut server, 1, 0);
    assert!(turns >= 100, "{turns} turns for 40,000 blocks");
}

#[test]
fn message_that_inflates_to_many_bytes_counts_each_of_them() {
    const BYTES: usize = 1 << 20;
    let mut server = server(Settings::default());
    let conn = socket(&mut server);
    let mut small = Vec::new();
    Compressor::new().compress(&vec![b'x'; BYTES], 9, &mut small);
    assert!(small.len() < 2_000);
    let steps = steps_of(&mut server, conn, compressed_frame(&small));
    assert!(
        steps <= u64::from(TURN_STEPS) + UNIT_STEPS,
        "{steps} steps in an input"
    );
    assert_eq!(server.shards[0].stats().published, 0, "it goes on later");
    let held = server.shards[0].accounts().receive_bytes;
    assert!(
        held > 10_000,
        "{held} bytes are counted while it is inflated"
    );
    let turns = turns_until(&mut server, 1, BYTES);
    assert!(turns >= 4, "{turns} turns");
}

#[test]
fn frames_without_payload_are_counted() {
    let mut server = server(Settings::default());
    let conn = socket(&mut server);
    let mut frames = vec![0x01, 0x80, 0, 0, 0, 0];
    frames.extend([0x00, 0x80, 0, 0, 0, 0].repeat(5_000));
    frames.extend([0x80, 0x80, 0, 0, 0, 0]);
    let steps = steps_of(&mut server, conn, frames);
    let turns = turns_until(&mut server, 1, 0);
    assert!(
        steps >= u64::from(TURN_STEPS) && turns >= 1,
        "{steps} steps, then {turns} turns"
    );
}

#[test]
fn chunks_of_a_byte_are_counted() {
    let mut server = server(Settings::default());
    let conn = server.open(0);
    let chunks = "1\r\nx\r\n".repeat(10_000);
    let head = "POST /pub/t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let steps = steps_of(&mut server, conn, format!("{head}{chunks}0\r\n\r\n"));
    assert!(steps >= 900, "{steps} steps for 10,000 chunks");
}

#[test]
fn each_parse_of_an_incomplete_head_is_counted() {
    let mut server = server(Settings::default());
    let conn = server.open(0);
    server.send(
        conn,
        format!("GET /pub/none HTTP/1.1\r\nX: {}", "x".repeat(4_096)),
    );
    let mut read = || {
        server.flush(0);
        steps_of(&mut server, conn, "x")
    };
    let steps: u64 = (0..100).map(|_| read()).sum();
    assert!(steps >= 1_600, "{steps} steps for 100 bytes behind 4 KiB");
}

fn batch(lines: &str) -> String {
    format!(
        "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{lines}",
        lines.len()
    )
}

#[test]
fn refused_long_line_is_counted() {
    let mut server = server(Settings::default());
    let conn = server.open(0);
    let line = format!("{{\"topic\":\"t\",\"data\":\"{}\"\n", "x".repeat(500_000));
    let steps = steps_of(&mut server, conn, batch(&line));
    assert!(steps >= 500_000 / 256, "{steps} steps");
}

/// A client of MQTT 5 with these subscriptions, on the first shard.
fn client(server: &mut TestServer, filters: impl Iterator<Item = String>, qos: Qos) -> usize {
    client_at(server, 0, filters, qos)
}

/// A client of MQTT 5 with these subscriptions, on this shard.
fn client_at(
    server: &mut TestServer,
    shard: usize,
    filters: impl Iterator<Item = String>,
    qos: Qos,
) -> usize {
    let conn = server.open(shard);
    let mut bytes = Vec::new();
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        client_id: "",
        clean_start: true,
        keep_alive_s: 0,
        properties: Properties::NONE,
        will: None,
        user_name: None,
        password: None,
    };
    encode::connect(&mut bytes, &connect);
    for (filter, id) in filters.zip(1..) {
        let id = PacketId::new(id).expect("not 0");
        let filters = [(&filter[..], SubscribeOptions::of(qos))];
        encode::subscribe(
            &mut bytes,
            Version::V5,
            id,
            &Properties::NONE,
            filters.into_iter(),
        );
    }
    server.send(conn, bytes);
    server.settle();
    conn
}

/// A client in this number of groups of the topic `t`, on the first shard.
fn member(server: &mut TestServer, groups: usize) -> usize {
    member_at(server, 0, groups)
}

/// A client in this number of groups of the topic `t`, on this shard.
fn member_at(server: &mut TestServer, shard: usize, groups: usize) -> usize {
    let filters = (0..groups).map(|n| format!("$share/g{n}/t"));
    client_at(server, shard, filters, Qos::AtMostOnce)
}

/// The payloads of a client's messages.
fn payloads(server: &TestServer, conn: usize) -> Vec<String> {
    let (mut bytes, mut all) = (server.received(conn), Vec::new());
    while let Some((header, len)) = mqtt::fixed_header(bytes, 1 << 20).expect("packets") {
        let end = len + header.body_bytes();
        let packet = mqtt::decode(Version::V5, header, &bytes[len..end]).expect("a packet");
        if let Packet::Publish(publish) = packet {
            all.push(String::from_utf8_lossy(publish.payload).into_owned());
        }
        bytes = &bytes[end..];
    }
    all
}

fn groups_server() -> TestServer {
    let mut settings = Settings::default();
    settings.limits.topics_per_connection = 1_000;
    server(settings)
}

#[test]
fn publish_costs_a_visit_for_each_group() {
    let mut server = groups_server();
    let conn = member(&mut server, 200);
    let publisher = server.open(0);
    let steps = steps_of(
        &mut server,
        publisher,
        batch("{\"topic\":\"t\",\"data\":\"m\"}\n"),
    );
    assert!((3_200..3_400).contains(&steps), "{steps} steps");
    server.settle();
    assert_eq!(payloads(&server, conn).len(), 200);
}

#[test]
fn publish_to_very_many_groups_is_bounded_and_each_gets_all_messages_in_order() {
    const GROUPS: usize = 1_000;
    const MESSAGES: usize = 5;
    let mut server = groups_server();
    let conn = member(&mut server, GROUPS);
    let publisher = server.open(0);
    for n in 0..MESSAGES {
        let line = format!("{{\"topic\":\"t\",\"data\":\"{n}\"}}\n");
        let steps = steps_of(&mut server, publisher, batch(&line));
        assert!(steps < 300, "{steps} steps of a publish to {GROUPS} groups");
        // The groups get the message in several turns. Other messages are published meanwhile.
        (0..n).for_each(|_| {
            server.flush(0);
        });
    }
    server.settle();
    let all = payloads(&server, conn);
    assert_eq!(all.len(), GROUPS * MESSAGES);
    for n in 0..MESSAGES {
        let count = all
            .iter()
            .filter(|payload| **payload == n.to_string())
            .count();
        assert_eq!(count, GROUPS, "message {n}");
    }
    // A new message comes after all of these.
    server.send(publisher, batch("{\"topic\":\"t\",\"data\":\"last\"}\n"));
    server.settle();
    let all = payloads(&server, conn);
    assert!(
        all[GROUPS * MESSAGES..]
            .iter()
            .all(|payload| payload == "last")
    );
    assert_eq!(all.len(), GROUPS * (MESSAGES + 1));
}

#[test]
fn search_for_an_acknowledged_message_is_counted() {
    const UNDER_WAY: usize = 5_000;
    let mut settings = Settings::default();
    settings.mqtt.inflight_max = u16::MAX;
    settings.mqtt.session_messages = 10_000;
    let mut server = server(settings);
    let conn = client(&mut server, ["t".to_owned()].into_iter(), Qos::AtLeastOnce);
    let publisher = server.open(0);
    server.send(
        publisher,
        batch(&"{\"topic\":\"t\",\"data\":\"x\"}\n".repeat(UNDER_WAY)),
    );
    server.settle();
    assert_eq!(payloads(&server, conn).len(), UNDER_WAY);
    let [high, low] = (UNDER_WAY as u16).to_be_bytes();
    let steps = steps_of(&mut server, conn, [0x40, 2, high, low]);
    assert!(
        steps >= UNDER_WAY as u64 / 16,
        "{steps} steps for the last of {UNDER_WAY}"
    );
}

#[test]
fn resumed_session_gets_its_pubrels_in_one_write() {
    const RELEASED: u16 = 1_000;
    let mut settings = Settings::default();
    settings.mqtt.inflight_max = u16::MAX;
    settings.mqtt.session_messages = 10_000;
    let mut server = server(settings);
    let mut conn = server.open(0);
    let mut bytes = support::connect("c", 600);
    let filters = [("t", SubscribeOptions::of(Qos::ExactlyOnce))].into_iter();
    let id = PacketId::new(1).expect("not 0");
    encode::subscribe(&mut bytes, Version::V5, id, &Properties::NONE, filters);
    server.send(conn, bytes);
    server.settle();
    let publisher = client(&mut server, std::iter::empty(), Qos::AtMostOnce);
    for id in 1..=RELEASED {
        let [high, low] = id.to_be_bytes();
        let (publish, release) = (
            [0x34, 7, 0, 1, b't', high, low, 0, b'x'],
            [0x62, 2, high, low],
        );
        server.send(publisher, publish);
        server.send(publisher, release);
        server.settle();
        server.send(conn, [0x50, 2, high, low]);
    }
    server.settle();
    server.cut(conn);
    server.settle();
    conn = server.open(0);
    server.io[0].sends = 0;
    server.send(conn, support::connect("c", 600));
    server.settle();
    let sends = server.io[0].sends;
    assert!(sends <= 4, "{sends} writes");
    assert!(server.received(conn).len() >= 4 * usize::from(RELEASED));
}

/// At compression level 9 this data would take half a microsecond per byte.
#[test]
fn message_that_is_slow_to_compress_is_sent_uncompressed() {
    let random = |n: u32| b"ab"[(n.wrapping_mul(2_654_435_761) >> 31) as usize];
    for (level, bytes, is_compressed) in [
        (1, 1 << 20, true),
        (9, 64 << 10, true),
        (6, (256 << 10) + 1, false),
        (9, (64 << 10) + 1, false),
    ] {
        let mut settings = Settings::default();
        settings.deflate.level = level;
        let mut server = server(settings);
        let conn = server.open(0);
        server.send(conn, UPGRADE.replacen("/pub/t", "/sub/t", 1));
        server.settle();
        let head = server.received(conn).len();
        let publisher = server.open(0);
        let data: String = (0..bytes).map(|n| char::from(random(n))).collect();
        let before = server.shards[0].steps();
        server.send(
            publisher,
            format!(
                "POST /pub/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n{data}"
            ),
        );
        server.settle();
        let steps = server.shards[0].steps() - before;
        let first = server.received(conn)[head];
        let (plain, compressed) = (0x81, 0xc1);
        assert_eq!(
            first,
            if is_compressed { compressed } else { plain },
            "{bytes} at level {level}"
        );
        let least = if is_compressed {
            bytes / 32
        } else {
            bytes / 256
        };
        assert!(
            steps >= u64::from(least),
            "{steps} steps for {bytes} at level {level}"
        );
    }
}

/// When hundreds of sockets become writable at once, each gets a part of its outbox before any gets a second part.
#[test]
fn large_outboxes_are_written_in_parts_in_turn() {
    const BYTES: usize = 500 << 10;
    const PART: usize = 64 << 10;
    const STREAM: &str =
        "GET /sub/t HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    let mut server = server(Settings::default());
    let conn = server.open(0);
    server.send(conn, STREAM);
    server.settle();
    server.set_window(conn, 0);
    let publisher = server.open(0);
    let data = "x".repeat(BYTES);
    server.send(
        publisher,
        format!("POST /pub/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BYTES}\r\n\r\n{data}"),
    );
    server.settle();
    server.open_window(conn);
    let (mut had, mut parts) = (server.received(conn).len(), 0);
    let first = had;
    while server.report_writable(conn, PART) {
        let has = server.received(conn).len();
        assert!(has - had <= PART);
        (had, parts) = (has, parts + 1);
    }
    assert!(had - first > BYTES, "it has all of it");
    assert_eq!(parts, (had - first).div_ceil(PART));
}

/// A server with the topic `t`, and its publisher. The protocol of Centrifugo is on.
fn centrifugo_server() -> (TestServer, usize) {
    let mut settings = Settings::default();
    settings.centrifugo.enabled = true;
    let mut server = server(settings);
    let publisher = server.open(0);
    (server, publisher)
}

fn send_commands(server: &mut TestServer, conn: usize, text: &str) {
    let mut out = Vec::new();
    frame::write_masked(&mut out, Opcode::Text, text.as_bytes(), [1, 2, 3, 4]);
    server.send(conn, out);
}

/// Clients of Centrifugo's protocol that have connected.
fn centrifugo_clients(server: &mut TestServer, count: usize) -> Vec<usize> {
    let clients = (0..count).map(|_| {
        let conn = server.open(0);
        server.send(conn, UPGRADE.replace("/pub/t", "/connection/websocket"));
        send_commands(server, conn, "{\"id\":1,\"connect\":{}}");
        server.settle();
        conn
    });
    clients.collect()
}

/// A server with subscribers of the topic `t` in Centrifugo's protocol that do not read. So bytes wait for the socket of each client.
fn centrifugo_clients_that_do_not_read(count: usize, options: &str) -> (TestServer, usize) {
    let (mut server, publisher) = centrifugo_server();
    let subscribe = format!("{{\"id\":2,\"subscribe\":{{\"channel\":\"t\"{options}}}}}");
    for conn in centrifugo_clients(&mut server, count) {
        send_commands(&mut server, conn, &subscribe);
        server.settle();
        server.set_window(conn, 0);
    }
    publish_text(&mut server, publisher, "first");
    server.settle();
    (server, publisher)
}

#[test]
fn first_pages_are_copied_over_several_turns() {
    const CLIENTS: usize = 60;
    const BYTES: usize = 60 << 10;
    let (mut server, publisher) = centrifugo_server();
    for _ in 0..3 {
        publish_text(&mut server, publisher, &"x".repeat(BYTES / 3));
    }
    server.settle();
    let clients = centrifugo_clients(&mut server, CLIENTS);
    for conn in clients {
        server.set_window(conn, 0);
        let subscribe =
            "{\"id\":2,\"subscribe\":{\"channel\":\"t\",\"recover\":true,\"offset\":0}}";
        send_commands(&mut server, conn, subscribe);
    }
    let waiting_bytes = |server: &TestServer| server.shards[0].accounts().outbox_bytes;
    let (mut before, mut turns) = (waiting_bytes(&server), 0);
    while waiting_bytes(&server) < CLIENTS * BYTES {
        server.flush(0);
        let copied_bytes = waiting_bytes(&server) - before;
        assert!(
            copied_bytes <= CLIENTS / 2 * BYTES,
            "{copied_bytes} bytes in a turn"
        );
        (before, turns) = (waiting_bytes(&server), turns + 1);
        assert!(turns < 1_000, "the turns do not end");
    }
}

/// Publishes to the topic `t`.
fn publish_text(server: &mut TestServer, publisher: usize, text: &str) {
    let line = format!("{{\"topic\":\"t\",\"data\":\"{text}\"}}\n");
    server.send(publisher, batch(&line));
}

/// Each client with deltas has its own copy of a delta.
#[test]
fn copies_for_clients_that_do_not_read_are_made_over_several_turns() {
    const CLIENTS: usize = 60;
    const BYTES: usize = 100 << 10;
    // A text without repetitions has nothing that a delta could copy.
    let text = |multiplier: u32| {
        let numbers = (1..).map(|n: u32| n.wrapping_mul(multiplier));
        numbers
            .map(|n| format!("{n:08x}"))
            .take(BYTES / 8)
            .collect::<String>()
    };
    let (old, new) = (text(0x9e37_79b1), text(0x85eb_ca77));
    let (mut server, publisher) =
        centrifugo_clients_that_do_not_read(CLIENTS, ",\"delta\":\"fossil\"");
    publish_text(&mut server, publisher, &(old.clone() + &old));
    server.settle();
    publish_text(&mut server, publisher, &(old + &new));
    let waiting_bytes = |server: &TestServer| server.shards[0].accounts().outbox_bytes;
    let end = waiting_bytes(&server) + CLIENTS * BYTES;
    let (mut before, mut turns) = (waiting_bytes(&server), 0);
    while waiting_bytes(&server) < end {
        server.flush(0);
        let copied_bytes = waiting_bytes(&server) - before;
        assert!(copied_bytes <= 8 * BYTES, "{copied_bytes} bytes in a turn");
        (before, turns) = (waiting_bytes(&server), turns + 1);
        assert!(turns < 1_000, "the turns do not end");
    }
}

#[test]
fn large_push_is_held_once_for_all_clients_that_do_not_read() {
    const CLIENTS: usize = 60;
    const BYTES: usize = 200 << 10;
    for options in ["", ",\"delta\":\"fossil\""] {
        let (mut server, publisher) = centrifugo_clients_that_do_not_read(CLIENTS, options);
        let held_bytes =
            |server: &TestServer| server.shards[0].accounts().parts.iter().sum::<usize>();
        let before = held_bytes(&server);
        publish_text(&mut server, publisher, &"xyz".repeat(BYTES / 3));
        server.settle();
        assert!(server.shards[0].accounts().outbox_bytes > CLIENTS * (BYTES - 3));
        let held_bytes = held_bytes(&server) - before;
        assert!(held_bytes < 4 * BYTES, "{held_bytes} bytes{options}");
    }
}

fn closed() -> Arc<World> {
    let mut settings = Settings::default();
    settings.access.closed = true;
    support::world(settings, 1, 1)
}

#[test]
fn comparison_of_a_refused_line_with_grants_is_counted() {
    const GRANTS: usize = 420;
    const LINES: usize = 20;
    let mut server = TestServer::new(&closed(), TurnLimits::default(), NOW);
    let conn = server.open(0);
    let lines = "{\"topic\":\"t\",\"data\":\"x\"}\n".repeat(LINES);
    let request = batch(&lines).replacen("\r\n", "\r\nAuthorization: Bearer t\r\n", 1);
    server.send(conn, request);
    server.flush(0);
    let (conn, question) = server.io[0].questions.last().expect("a question");
    let filters: Vec<String> = (0..GRANTS).map(|n| format!("own/{n}/+")).collect();
    let granted = filters.iter().map(|filter| (Right::Publish, &filter[..]));
    let known = VerifiedClient {
        grants: Arc::new(Grants::new("", granted).expect("filters")),
        until_unix_s: u32::MAX,
    };
    let verdict = Verdict {
        digest: question.digest,
        found: Ok(known),
        believed_until_s: NOW.unix_s + 3600,
        settings_generation: question.settings_generation,
    };
    let conn = *conn;
    let before = server.shards[0].steps();
    server.handle(0, Input::Verdict(conn, verdict));
    server.settle();
    let steps = server.shards[0].steps() - before;
    assert!(steps >= (GRANTS * LINES / 4) as u64, "{steps} steps");
    let refusals = server.shards[0].stats().refusals;
    let denied = refusals.count(Reason::PublishNotGranted);
    assert_eq!(denied, LINES as u64);
}
