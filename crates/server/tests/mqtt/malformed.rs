//! Tests packets that no client may send, each after a valid CONNECT. In MQTT 5 the server answers with a DISCONNECT that has the reason
//! code of the specification; in 3.1.1 it only closes the connection. Other clients are not affected.

use crate::support::attempt;
use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, message, plain_connect};
use crore_wire::mqtt::{Packet, ReasonCode, Version, encode};

const MALFORMED: ReasonCode = ReasonCode::MALFORMED_PACKET;
const PROTOCOL: ReasonCode = ReasonCode::PROTOCOL_ERROR;
const TOPIC: ReasonCode = ReasonCode::TOPIC_NAME_INVALID;
const FILTER: ReasonCode = ReasonCode::TOPIC_FILTER_INVALID;
const ALIAS: ReasonCode = ReasonCode::TOPIC_ALIAS_INVALID;

/// The fault, the packet, and the reason code.
type Fault = (&'static str, &'static [u8], ReasonCode);

/// Malformed in both versions, also with version 5's properties.
const MALFORMED_IN_BOTH: &[Fault] = &[
    ("packet type 0", b"\x00\x00", MALFORMED),
    ("PINGREQ with flags", b"\xc1\x00", MALFORMED),
    ("PINGREQ with a body", b"\xc0\x01\x00", MALFORMED),
    ("PINGRESP from a client", b"\xd0\x00", PROTOCOL),
    (
        "SUBSCRIBE with other flags",
        b"\x80\x06\0\x01\0\x01a\0",
        MALFORMED,
    ),
    (
        "UNSUBSCRIBE with other flags",
        b"\xa0\x05\0\x01\0\x01a",
        MALFORMED,
    ),
    ("PUBREL with other flags", b"\x60\x02\0\x01", MALFORMED),
    ("PUBACK with flags", b"\x41\x02\0\x01", MALFORMED),
    ("QoS 3", b"\x36\x06\0\x01a\0\x01\0", MALFORMED),
    ("DUP with QoS 0", b"\x38\x04\0\x01a\0", MALFORMED),
    (
        "a remaining length of five bytes",
        b"\x30\xff\xff\xff\xff\x7f",
        MALFORMED,
    ),
    (
        "a topic that is not UTF-8",
        b"\x30\x05\0\x02\xc3\x28\0",
        MALFORMED,
    ),
    (
        "a topic with a surrogate",
        b"\x30\x06\0\x03\xed\xa0\x80\0",
        MALFORMED,
    ),
    ("a topic with NUL", b"\x30\x05\0\x02a\0\0", MALFORMED),
    ("a topic that is cut off", b"\x30\x03\0\x09a", MALFORMED),
    ("a topic with +", b"\x30\x06\0\x03a/+\0", TOPIC),
    ("a topic with #", b"\x30\x04\0\x01#\0", TOPIC),
    (
        "a PUBLISH without a packet id",
        b"\x32\x03\0\x01a",
        MALFORMED,
    ),
    ("packet id 0 in PUBLISH", b"\x32\x06\0\x01a\0\0\0", PROTOCOL),
    ("packet id 0 in PUBACK", b"\x40\x02\0\0", PROTOCOL),
];

/// Malformed in 3.1.1.
const MALFORMED_IN_3_1_1: &[Fault] = &[
    ("packet type 15", b"\xf0\x00", MALFORMED),
    ("CONNACK from a client", b"\x20\x02\0\0", PROTOCOL),
    ("SUBACK from a client", b"\x90\x03\0\x01\0", PROTOCOL),
    ("UNSUBACK from a client", b"\xb0\x02\0\x01", PROTOCOL),
    ("an empty topic", b"\x30\x02\0\0", TOPIC),
    ("SUBSCRIBE without a filter", b"\x82\x02\0\x01", PROTOCOL),
    (
        "SUBSCRIBE with packet id 0",
        b"\x82\x06\0\0\0\x01a\0",
        PROTOCOL,
    ),
    ("UNSUBSCRIBE without a filter", b"\xa2\x02\0\x01", PROTOCOL),
    (
        "a requested QoS of 3",
        b"\x82\x06\0\x01\0\x01a\x03",
        PROTOCOL,
    ),
    (
        "reserved bits of a requested QoS",
        b"\x82\x06\0\x01\0\x01a\x04",
        MALFORMED,
    ),
    ("an empty filter", b"\x82\x05\0\x01\0\0\0", FILTER),
    (
        "a filter with # inside",
        b"\x82\x08\0\x01\0\x03#/a\0",
        FILTER,
    ),
    (
        "a filter with + beside a letter",
        b"\x82\x07\0\x01\0\x02a+\0",
        FILTER,
    ),
    (
        "a filter that is not UTF-8",
        b"\x82\x07\0\x01\0\x02\xc3\x28\0",
        MALFORMED,
    ),
    ("bytes behind a PUBACK", b"\x40\x03\0\x01\0", MALFORMED),
    ("DISCONNECT with a body", b"\xe0\x01\0", MALFORMED),
];

/// Malformed in 5.
const MALFORMED_IN_5: &[Fault] = &[
    ("CONNACK from a client", b"\x20\x03\0\0\0", PROTOCOL),
    ("SUBACK from a client", b"\x90\x04\0\x01\0\0", PROTOCOL),
    ("UNSUBACK from a client", b"\xb0\x04\0\x01\0\0", PROTOCOL),
    ("AUTH without a method", b"\xf0\x02\x18\0", PROTOCOL),
    ("neither topic nor alias", b"\x30\x03\0\0\0", PROTOCOL),
    ("alias 0", b"\x30\x07\0\x01a\x03\x23\0\0", ALIAS),
    (
        "an alias above the maximum",
        b"\x30\x07\0\x01a\x03\x23\xff\xff",
        ALIAS,
    ),
    (
        "an alias that stands for nothing",
        b"\x30\x06\0\0\x03\x23\0\x01",
        PROTOCOL,
    ),
    (
        "a subscription identifier in PUBLISH",
        b"\x30\x06\0\x01a\x02\x0b\x01",
        PROTOCOL,
    ),
    (
        "a response topic with a wildcard",
        b"\x30\x08\0\x01a\x04\x08\0\x01#",
        TOPIC,
    ),
    (
        "an empty response topic",
        b"\x30\x07\0\x01a\x03\x08\0\0",
        PROTOCOL,
    ),
    (
        "a payload format of 2",
        b"\x30\x06\0\x01a\x02\x01\x02",
        PROTOCOL,
    ),
    (
        "a property that does not exist",
        b"\x30\x06\0\x01a\x02\x7f\x00",
        MALFORMED,
    ),
    (
        "a property of another packet",
        b"\x30\x07\0\x01a\x03\x21\0\x01",
        MALFORMED,
    ),
    (
        "a property twice",
        b"\x30\x08\0\x01a\x04\x01\x01\x01\x01",
        PROTOCOL,
    ),
    (
        "a property that is cut off",
        b"\x30\x06\0\x01a\x02\x02\0",
        MALFORMED,
    ),
    (
        "properties longer than the packet",
        b"\x30\x04\0\x01a\x7f",
        MALFORMED,
    ),
    ("SUBSCRIBE without a filter", b"\x82\x03\0\x01\0", PROTOCOL),
    (
        "SUBSCRIBE with packet id 0",
        b"\x82\x07\0\0\0\0\x01a\0",
        PROTOCOL,
    ),
    (
        "UNSUBSCRIBE without a filter",
        b"\xa2\x03\0\x01\0",
        PROTOCOL,
    ),
    (
        "a maximum QoS of 3",
        b"\x82\x07\0\x01\0\0\x01a\x03",
        PROTOCOL,
    ),
    (
        "a retain handling of 3",
        b"\x82\x07\0\x01\0\0\x01a\x30",
        PROTOCOL,
    ),
    (
        "reserved options",
        b"\x82\x07\0\x01\0\0\x01a\x40",
        MALFORMED,
    ),
    (
        "subscription identifier 0",
        b"\x82\x09\0\x01\x02\x0b\0\0\x01a\0",
        PROTOCOL,
    ),
    ("an empty filter", b"\x82\x06\0\x01\0\0\0\0", FILTER),
    (
        "a filter with # inside",
        b"\x82\x09\0\x01\0\0\x03#/a\0",
        FILTER,
    ),
    (
        "a filter with + beside a letter",
        b"\x82\x08\0\x01\0\0\x02a+\0",
        FILTER,
    ),
    (
        "$share without a filter",
        b"\x82\x0e\0\x01\0\0\x08$share/g\0",
        FILTER,
    ),
    (
        "$share with an empty filter",
        b"\x82\x0f\0\x01\0\0\x09$share/g/\0",
        FILTER,
    ),
    (
        "$share without a group",
        b"\x82\x0f\0\x01\0\0\x09$share//a\0",
        FILTER,
    ),
    (
        "$share with a wildcard in the group",
        b"\x82\x10\0\x01\0\0\x0a$share/+/a\0",
        FILTER,
    ),
    (
        "no local on a shared subscription",
        b"\x82\x10\0\x01\0\0\x0a$share/g/a\x04",
        PROTOCOL,
    ),
    (
        "a reason that PUBACK does not have",
        b"\x40\x03\0\x01\x01",
        PROTOCOL,
    ),
    (
        "a reason that DISCONNECT does not have",
        b"\xe0\x01\x01",
        PROTOCOL,
    ),
    ("a server's reason to DISCONNECT", b"\xe0\x01\x8e", PROTOCOL),
    // The expiry was 0 in the CONNECT, so it may not be set here (section 3.14.2.2.2).
    (
        "a session expiry at the end of a session",
        b"\xe0\x07\0\x05\x11\0\0\0\x09",
        PROTOCOL,
    ),
];

#[test]
fn packet_forbidden_to_clients_ends_the_connection_with_its_reason() {
    let broker = Broker::start();
    let mut bystander = Conn::connected(&broker, Version::V311, "bystander");
    bystander.subscribe("a", 1);
    let mut wrong = Vec::new();
    for (version, rows) in [
        (Version::V311, [MALFORMED_IN_BOTH, MALFORMED_IN_3_1_1]),
        (Version::V5, [MALFORMED_IN_BOTH, MALFORMED_IN_5]),
    ] {
        for (name, bytes, reason) in rows.into_iter().flatten() {
            let mut conn = Conn::connected(&broker, version, "sinner");
            conn.send(bytes);
            let wanted = (version == Version::V5).then_some(*reason);
            match attempt(|| conn.end()) {
                Some(reason_received) if reason_received == wanted => {}
                None => wrong.push(format!("{version:?}, {name}: it stays open")),
                Some(reason_received) => {
                    wrong.push(format!(
                        "{version:?}, {name}: {reason_received:?} and not {wanted:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{:#?}", wrong);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    publisher.publish(&message("a", 1, 1, b"nothing is lost"));
    let received = bystander.packet();
    assert_eq!(received.publish().payload, b"nothing is lost");
    assert!(!received.publish().dup);
}

#[test]
fn packets_before_a_malformed_one_count() {
    let broker = Broker::start();
    let mut subscriber = Conn::connected(&broker, Version::V5, "subscriber");
    subscriber.subscribe("t", 0);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for version in [Version::V311, Version::V5] {
        let mut conn = Conn::connected(&broker, version, "it");
        conn.write(|out| {
            encode::publish(out, version, &message("t", 0, 0, b"before"));
            out.extend_from_slice(b"\x00\x00");
            encode::publish(out, version, &message("t", 0, 0, b"behind"));
        });
        assert_eq!(conn.end(), (version == Version::V5).then_some(MALFORMED));
        assert_eq!(subscriber.packet().publish().payload, b"before");
        subscriber.expect_only_from(&mut publisher, "t");
    }
}

#[test]
fn a_packet_over_the_limit_is_refused_by_its_header() {
    let broker = Broker::with("[limits]\nmessage_bytes = 100000\n");
    for version in [Version::V311, Version::V5] {
        let mut conn = Conn::connected(&broker, version, "it");
        // The packet announces 256 MiB, which are never sent.
        conn.send(b"\x30\xff\xff\xff\x7f\0\x01a");
        let wanted = (version == Version::V5).then_some(ReasonCode::PACKET_TOO_LARGE);
        assert_eq!(conn.end(), wanted);
    }
}

#[test]
fn the_maximum_that_is_told_is_the_one_that_holds() {
    let broker = Broker::with("[limits]\nmessage_bytes = 100000\n");
    let mut conn = Conn::open(&broker, Version::V5);
    conn.write(|out| encode::connect(out, &plain_connect(Version::V5, "it")));
    let received = conn.packet();
    let Packet::ConnAck(connack) = received.packet() else {
        panic!("no CONNACK");
    };
    let most = connack
        .properties
        .maximum_packet_size_bytes()
        .expect("a maximum") as usize;
    // The packet has one byte of type, three of length, three of topic, and one of properties.
    let fits = most - 8;
    let payload = vec![b'x'; fits.min(100_000)];
    conn.publish(&message("a", 0, 0, &payload));
    assert!(conn.is_served(), "a packet of the maximum is taken");
    conn.publish(&message("a", 0, 0, &vec![b'x'; fits + 1]));
    assert_eq!(conn.end(), Some(ReasonCode::PACKET_TOO_LARGE));
}
