//! Tests WebSocket frames and MQTT packets: each must leave the state of its connection as it was, at the latest after the next sweep (the
//! regular check of all connections).

use crore_wire::mqtt::{
    Ack, Connect, PacketId, Properties, Publish, Qos, ReasonCode, SubscribeOptions, Version, encode,
};
use crore_wire::websocket::frame::{Opcode, write_masked};

use crate::served::Step::{self, Drip, Publish as Other, Say, Seconds};
use crate::served::{Exchange, all_leave_nothing};

/// Seconds within which the sweep visits each connection.
const SWEPT_S: u32 = 2;

fn does(
    name: &'static str,
    told: &'static [&'static str],
    steps: impl IntoIterator<Item = Step>,
) -> Exchange {
    let steps = steps.into_iter().chain([Seconds(SWEPT_S)]);
    Exchange {
        name,
        steps: steps.collect(),
        expected_parts: told,
    }
}

fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_masked(&mut out, opcode, payload, [0; 4]);
    out
}

/// The first part of a fragmented message.
fn first_part(payload: &[u8]) -> Vec<u8> {
    let mut out = frame(Opcode::Text, payload);
    out[0] &= 0x7f;
    out
}

#[test]
fn no_frame_changes_the_state_of_its_websocket() {
    let text = |text: &str| frame(Opcode::Text, text.as_bytes());
    let last_part = frame(Opcode::Continuation, b"lo");
    let all = [
        does("message", &["ack: 0", "hello"], [Say(text("hello"))]),
        does(
            "message byte by byte",
            &["ack: 0", "hello"],
            [Drip(text("hello"))],
        ),
        does(
            "messages at once",
            &["one", "two"],
            [Say([text("one"), text("two")].concat())],
        ),
        does(
            "message in parts",
            &["hello"],
            [Say(first_part(b"hel")), Say(last_part)],
        ),
        does(
            "refused message",
            &["ack: 2\nstatus: 503"],
            [Say([text("a"), text("b"), text("c")].concat())],
        ),
        does("ping", &["hello"], [Say(frame(Opcode::Ping, b"hello"))]),
        does("pong", &[], [Say(frame(Opcode::Pong, b"hello"))]),
        does("message of another client", &["other"], [Other]),
    ];
    let upgrade = b"GET /pubsub/#### HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: ws+meta.nchan\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let (refused, others): (Vec<_>, Vec<_>) =
        all.iter().partition(|it| it.name == "refused message");
    all_leave_nothing(|_| {}, upgrade, others);
    let slow = |settings: &mut crore_broker::settings::Settings| {
        (
            settings.limits.publishes_per_s,
            settings.limits.publishes_burst,
        ) = (2, 2);
    };
    all_leave_nothing(slow, upgrade, refused);
}

const ID: PacketId = PacketId::new(7).expect("it is not 0");
const NOTHING: Properties<'static> = Properties::NONE;

fn packet(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

/// A CONNECT with a clean session, and a SUBSCRIBE for the client's own topic.
fn opening(qos: Qos) -> Vec<u8> {
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: true,
        keep_alive_s: 0,
        properties: NOTHING,
        client_id: "client-####",
        will: None,
        user_name: None,
        password: None,
    };
    [
        packet(|out| encode::connect(out, &connect)),
        subscribe("####", qos),
    ]
    .concat()
}

fn subscribe(filter: &str, qos: Qos) -> Vec<u8> {
    let filters = [(filter, SubscribeOptions::of(qos))].into_iter();
    packet(|out| encode::subscribe(out, Version::V5, ID, &NOTHING, filters))
}

fn unsubscribe(filter: &str) -> Vec<u8> {
    packet(|out| encode::unsubscribe(out, Version::V5, ID, &NOTHING, [filter].into_iter()))
}

fn publish(topic: &str, qos: Qos) -> Vec<u8> {
    let publish = Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id: (qos != Qos::AtMostOnce).then_some(ID),
        properties: NOTHING,
        payload: b"hello",
    };
    packet(|out| encode::publish(out, Version::V5, &publish))
}

fn acknowledge(id: u16, write: impl FnOnce(&mut Vec<u8>, Version, &Ack<'_>)) -> Vec<u8> {
    let ack = Ack {
        packet_id: PacketId::new(id).expect("it is not 0"),
        reason: ReasonCode::SUCCESS,
        properties: NOTHING,
    };
    packet(|out| write(out, Version::V5, &ack))
}

#[test]
fn no_packet_changes_the_state_of_its_mqtt_client() {
    let release = || acknowledge(7, encode::pubrel);
    let both = |filter| {
        [
            Say(subscribe(filter, Qos::AtMostOnce)),
            Say(unsubscribe(filter)),
        ]
    };
    let all = [
        does("ping", &["\u{fffd}\0"], [Say(packet(encode::pingreq))]),
        does("QoS 0", &["hello"], [Say(publish("####", Qos::AtMostOnce))]),
        does(
            "QoS 1",
            &["@\u{2}\0\u{7}"],
            [Say(publish("####", Qos::AtLeastOnce))],
        ),
        does(
            "QoS 2",
            &["P\u{2}\0\u{7}", "p\u{2}\0\u{7}"],
            [Say(publish("####", Qos::ExactlyOnce)), Say(release())],
        ),
        does(
            "byte by byte",
            &["@\u{2}\0\u{7}"],
            [Drip(publish("####", Qos::AtLeastOnce))],
        ),
        does(
            "refused",
            &["@\u{3}\0\u{7}"],
            [Say(publish("$SYS/x", Qos::AtLeastOnce))],
        ),
        does("release of nothing", &["p\u{3}\0\u{7}"], [Say(release())]),
        does("message of another client", &["other"], [Other]),
        does("another topic and back", &[], both("more####")),
        does("a filter and back", &[], both("more/+")),
        does(
            "the same topic again",
            &[],
            [Say(subscribe("####", Qos::AtMostOnce))],
        ),
        does("unsubscribe of nothing", &[], [Say(unsubscribe("none"))]),
        does(
            "the only topic anew",
            &["other"],
            [
                Say(unsubscribe("####")),
                Say(subscribe("####", Qos::AtMostOnce)),
                Other,
            ],
        ),
        does(
            "other topics in its place",
            &["other"],
            [
                Say(subscribe("more####", Qos::AtMostOnce)),
                Say(unsubscribe("####")),
                Say(subscribe("####", Qos::AtMostOnce)),
                Say(unsubscribe("more####")),
                Seconds(SWEPT_S),
                Other,
            ],
        ),
    ];
    all_leave_nothing(|_| {}, &opening(Qos::AtMostOnce), &all);
}

#[test]
fn no_acknowledged_message_changes_the_state_of_its_mqtt_client() {
    let one = does(
        "QoS 1",
        &["other"],
        [Other, Say(acknowledge(1, encode::puback))],
    );
    all_leave_nothing(|_| {}, &opening(Qos::AtLeastOnce), [&one]);
}
