//! Tests that nothing follows a Close frame (RFC 6455 section 5.5.1), even if the frame waits for the socket while answers, messages and
//! pings are due.

use crore_broker::Control;
use crore_wire::mqtt::{self, PacketId, Properties, Publish, Qos, SubscribeOptions, Version};
use crore_wire::websocket::frame::{Opcode, write_masked};

use super::*;

/// A topic that is kept by the remote one of two shards.
pub(super) fn far() -> String {
    let mut names = (0..).map(|n: u32| format!("t/{n}"));
    let is_far = |name: &String| crore_wire::topic::slot(name.as_bytes()) % 2 == 1;
    names.find(is_far).expect("one is far")
}

/// The opcodes of a server's frames, which must be complete, after the response head.
fn opcodes(bytes: &[u8]) -> Vec<u8> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let mut rest = &bytes[head.expect("it was upgraded") + 4..];
    let mut opcodes = Vec::new();
    while let [first, second, ..] = *rest {
        let (start, len) = match second {
            126 => (4, usize::from(u16::from_be_bytes([rest[2], rest[3]]))),
            127 => panic!("no frame of these is so long"),
            len => (2, usize::from(len)),
        };
        opcodes.push(first & 15);
        rest = &rest[start + len..];
    }
    assert!(rest.is_empty(), "the last frame is whole");
    opcodes
}

/// The frames that a client sends.
fn frames(all: &[(Opcode, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (opcode, payload) in all {
        write_masked(&mut out, *opcode, payload, [1, 2, 3, 4]);
    }
    out
}

const CLOSE: &[u8] = &[0x03, 0xE8];
const PINGED: (Opcode, &[u8]) = (Opcode::Ping, b"are you there");
const CLOSED: (Opcode, &[u8]) = (Opcode::Close, CLOSE);

fn upgraded(server: &mut TestServer, target: &str, protocol: &str) -> usize {
    let link = server.connect_and_send(format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{protocol}\r\n"
    ));
    server.settle();
    link
}

const META: &str = "Sec-WebSocket-Protocol: ws+meta.nchan\r\n";
const MQTT: &str = "Sec-WebSocket-Protocol: mqtt\r\n";

/// Sends these frames, the last one a Close, while the socket accepts nothing, and handles everything in flight. Then the socket accepts
/// all bytes. Returns them.
fn closes(server: &mut TestServer, link: usize, sent: &[(Opcode, &[u8])]) -> Vec<u8> {
    server.set_window(link, Some(0));
    server.send(link, frames(sent));
    for _ in 0..3 {
        server.settle();
        server.run_remote_shard();
    }
    server.publish([(&far()[..], "late".into())]);
    for _ in 0..3 {
        server.settle();
        server.run_remote_shard();
        server.advance_and_tick_s(2);
    }
    server.set_window(link, None);
    server.settle();
    opcodes(server.received(link))
}

pub(super) fn two_shards(limits: impl FnOnce(&mut crore_broker::settings::Limits)) -> TestServer {
    let mut settings = Settings::default();
    settings.heartbeat.interval_s = 1;
    limits(&mut settings.limits);
    TestServer::with(settings, TurnLimits::default(), 2)
}

#[test]
fn late_acknowledgement_is_not_sent_after_a_close_frame() {
    let mut server = two_shards(|_| {});
    let link = upgraded(&mut server, &format!("/pub/{}", far()), META);
    let sent = [(Opcode::Text, &b"one"[..]), PINGED, CLOSED];
    assert_eq!(closes(&mut server, link, &sent), [10, 8]);
}

#[test]
fn late_refusal_sends_no_second_close_frame() {
    let mut server = two_shards(|limits| limits.topics_per_shard = 0);
    let link = upgraded(&mut server, &format!("/pub/{}", far()), "");
    let sent = [(Opcode::Text, &b"one"[..]), PINGED, CLOSED];
    assert_eq!(closes(&mut server, link, &sent), [10, 8]);
}

#[test]
fn late_messages_and_pages_are_not_sent_after_a_close_frame() {
    for (target, protocol) in [("/sub?topic=", ""), ("/sub?topic=", META)] {
        let mut server = two_shards(|_| {});
        let name = far();
        let target = format!("{target}{name}&topic=other&since=oldest");
        server.publish([(&name[..], "early".into())]);
        server.settle();
        server.run_remote_shard();
        let link = upgraded(&mut server, &target, protocol);
        server.run_remote_shard();
        let before = opcodes(server.received(link));
        server.publish([(&name[..], "live".into())]);
        let mut all = before.clone();
        all.extend([10, 8]);
        assert_eq!(closes(&mut server, link, &[PINGED, CLOSED]), all);
    }
}

#[test]
fn disconnect_by_the_operator_sends_no_second_close_frame() {
    let mut server = two_shards(|_| {});
    let link = upgraded(&mut server, &format!("/pub/{}", far()), META);
    server.set_window(link, Some(0));
    server.send(link, frames(&[PINGED, CLOSED]));
    server.give_order(Control::Drain);
    server.advance_and_tick_s(2);
    server.set_window(link, None);
    server.settle();
    assert_eq!(opcodes(server.received(link)), [10, 8]);
}

/// A session with QoS 1 in both directions. Answers and messages of the remote home (the part of the other shard that keeps topics) arrive
/// after the client has closed.
#[test]
fn late_mqtt_packets_are_not_sent_after_a_close_frame() {
    let name = far();
    let version = Version::V311;
    let mut connect = Vec::new();
    mqtt::encode::connect(
        &mut connect,
        &mqtt::Connect {
            version,
            bridge: false,
            clean_start: false,
            keep_alive_s: 0,
            properties: Properties::NONE,
            client_id: "it",
            will: None,
            user_name: None,
            password: None,
        },
    );
    let id = PacketId::new(1).expect("not 0");
    let mut subscribe = Vec::new();
    let filters = [(&name[..], SubscribeOptions::of(Qos::AtLeastOnce))];
    mqtt::encode::subscribe(
        &mut subscribe,
        version,
        id,
        &Properties::NONE,
        filters.into_iter(),
    );
    let mut publish = Vec::new();
    mqtt::encode::publish(
        &mut publish,
        version,
        &Publish {
            dup: false,
            qos: Qos::AtLeastOnce,
            retain: false,
            topic: &name,
            packet_id: Some(id),
            properties: Properties::NONE,
            payload: b"one",
        },
    );
    let mut server = two_shards(|_| {});
    let link = upgraded(&mut server, "/", MQTT);
    server.send(link, frames(&[(Opcode::Binary, &connect)]));
    for _ in 0..3 {
        server.settle();
        server.run_remote_shard();
    }
    let connected = opcodes(server.received(link));
    assert_eq!(connected, [2], "CONNACK");
    let packets = [&subscribe[..], &publish[..]].concat();
    let sent = [(Opcode::Binary, &packets[..]), PINGED, CLOSED];
    assert_eq!(closes(&mut server, link, &sent), [2, 10, 8]);
}
