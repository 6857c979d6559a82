//! Tests the first packet of a connection, which must be a valid CONNECT.

use crate::support::attempt;
use crate::support::broker::Broker;
use crate::support::eventually;
use crate::support::mqtt::{Conn, VERSIONS, id, message, plain_connect, will};
use crore_wire::mqtt::PacketType::PubAck;
use crore_wire::mqtt::{
    Packet, Properties, PropertyWriter, Qos, ReasonCode, SubscribeOptions, Version, encode,
};

/// HTTP responses, since the port also speaks HTTP: no request was received in time, or the bytes are not a request.
const TIMEOUT: &[u8] = b"HTTP/1.1 408 ";
const NO_REQUEST: &[u8] = b"HTTP/1.1 400 ";

/// The bytes of a CONNECT. `rest` follows the keep alive.
fn connect(version: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
    let mut body = b"\0\x04MQTT".to_vec();
    body.extend([version, flags, 0, 0]);
    body.extend_from_slice(rest);
    [&[0x10, body.len() as u8], body.as_slice()].concat()
}

#[test]
fn a_malformed_connect_is_refused() {
    let broker = Broker::start();
    let mut wrong = Vec::new();
    // Version 5 has properties between keep alive and client id: here none, a zero byte.
    for (version, none) in [(4u8, &b""[..]), (5, b"\0")] {
        let with_properties = |rest: &[u8]| [none, rest].concat();
        let rows = [
            (
                "the reserved flag",
                connect(version, 0x03, &with_properties(b"\0\x01a")),
            ),
            (
                "a will QoS without a will",
                connect(version, 0x0a, &with_properties(b"\0\x01a")),
            ),
            (
                "a retained will without a will",
                connect(version, 0x22, &with_properties(b"\0\x01a")),
            ),
            ("a will QoS of 3", {
                let end = [none, b"\0\x01w\0\x01x"].concat();
                connect(
                    version,
                    0x1e,
                    &with_properties(&[b"\0\x01a", end.as_slice()].concat()),
                )
            }),
            (
                "a client id that is not UTF-8",
                connect(version, 0x02, &with_properties(b"\0\x02\xc3\x28")),
            ),
            (
                "a client id that is cut off",
                connect(version, 0x02, &with_properties(b"\0\x09a")),
            ),
            (
                "bytes behind its end",
                connect(version, 0x02, &with_properties(b"\0\x01a\0")),
            ),
            (
                "no will where one is announced",
                connect(version, 0x06, &with_properties(b"\0\x01a")),
            ),
        ];
        for (name, bytes) in rows {
            let Some(refused) = attempt(|| refusal(&broker, version, &bytes)) else {
                wrong.push(format!("{version}, {name}"));
                continue;
            };
            // In MQTT 5 a CONNACK has the reason. 3.1.1 has no code for it.
            let wanted =
                (version == 5 && broker.is_crore()).then_some(ReasonCode::MALFORMED_PACKET);
            if refused != wanted {
                wrong.push(format!("{version}, {name}: {refused:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Sends these bytes, and returns the reason of the CONNACK that refuses them. `None` if the connection ends without a CONNACK.
fn refusal(broker: &Broker, version: u8, bytes: &[u8]) -> Option<ReasonCode> {
    let version = if version == 5 {
        Version::V5
    } else {
        Version::V311
    };
    let mut conn = Conn::open(broker, version);
    conn.send(bytes);
    let received = conn.packet_or_end()?;
    let Packet::ConnAck(connack) = received.packet() else {
        panic!("{:?} came", received.packet());
    };
    assert_ne!(
        connack.reason,
        ReasonCode::SUCCESS,
        "{bytes:02x?} was taken"
    );
    assert!(!connack.session_present);
    let reason = connack.reason;
    assert_eq!(
        conn.read_to_end(),
        b"",
        "the connection ends behind a refusal"
    );
    Some(reason)
}

/// Properties that are not allowed in a PUBLISH are not allowed in a will either, and are refused with the same code.
#[test]
fn properties_of_a_will_are_refused_as_those_of_a_publish() {
    let Some(broker) = Broker::crore("") else {
        return;
    };
    let (protocol, format) = (
        ReasonCode::PROTOCOL_ERROR,
        ReasonCode::PAYLOAD_FORMAT_INVALID,
    );
    let name = ReasonCode::TOPIC_NAME_INVALID;
    let rows: [(&[u8], ReasonCode); 7] = [
        // A response topic is a topic name: it must not be empty [MQTT-4.7.3-1], nor have a wildcard [MQTT-3.3.2-14].
        (b"\x08\0\0", protocol),
        (b"\x08\0\x03a/#", name),
        (b"\x01\x02", protocol),
        (b"\x01\x01", format),
        (b"\x02\0\0\0\x01\x02\0\0\0\x01", protocol),
        (b"\x03\0\x02a\n", format),
        (b"\x26\0\x0bcrore-event\0\x09crore.gap", format),
    ];
    for (set, reason) in rows {
        let fields = [&[set.len() as u8][..], set].concat();
        let rest = [b"\0\0\x01a", &fields[..], b"\0\x01w\0\x01\xff"].concat();
        let of_will = refusal(&broker, 5, &connect(5, 0x06, &rest));
        let mut conn = Conn::connected(&broker, Version::V5, "it");
        let body = [b"\0\x01w\0\x01", &fields[..], b"\xff"].concat();
        conn.send([&[0x32, body.len() as u8], &body[..]].concat());
        let received = conn.packet();
        let of_publish = match received.packet() {
            Packet::Disconnect(disconnect) => disconnect.reason,
            _ => received.ack(PubAck).1,
        };
        assert_eq!((of_will, of_publish), (Some(reason), reason), "{set:02x?}");
    }
}

#[test]
fn a_password_without_a_user_is_malformed_in_the_old_version() {
    let broker = Broker::start();
    assert_eq!(
        refusal(&broker, 4, &connect(4, 0x42, b"\0\x01a\0\x01p")),
        None
    );
}

#[test]
fn a_version_that_is_not_spoken_is_refused() {
    let broker = Broker::start();
    // 0x83 is the level of a bridge of 3.1 under the name of later versions. 0x85 is no broker's level.
    for version in [0, 1, 3, 6, 0x7f, 0x80, 0x83, 0x85, 0xff] {
        let mut conn = Conn::open(&broker, Version::V311);
        conn.send(connect(version, 0x02, b"\0\0\x01a"));
        // The server answers with a CONNACK of 3.1.1, whatever comes after the level [MQTT-3.1.2-2].
        assert_eq!(conn.read_to_end(), b"\x20\x02\0\x01", "{version}");
    }
    // MQTT 3.1, and bridges of MQTT 3.1.
    for version in [3, 0x83] {
        let mut conn = Conn::open(&broker, Version::V311);
        conn.send([&b"\x10\x0f\0\x06MQIsdp"[..], &[version], b"\x02\0\0\0\x01a"].concat());
        assert_eq!(conn.read_to_end(), b"\x20\x02\0\x01", "{version}");
    }
}

#[test]
fn a_connect_that_ends_too_soon_gets_a_connack_in_5_only() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return; // Mosquitto sends no CONNACK in version 5 either
    }
    for version in [4, 0x84, 5] {
        let whole = connect(
            version,
            0x02,
            if version == 5 {
                b"\0\0\x01a"
            } else {
                b"\0\x01a"
            },
        );
        // The packet is cut before each field (client id, keep alive, flags, level), and within the name.
        for len in 2..whole.len() - 2 {
            let mut bytes = whole.clone();
            bytes.truncate(2 + len);
            bytes[1] = len as u8;
            let mut conn = Conn::open(&broker, Version::V311);
            conn.send(&bytes);
            let names_5 = version == 5 && len >= b"\0\x04MQTT\x05".len();
            let wanted: &[u8] = if names_5 { b"\x20\x03\0\x81\0" } else { b"" };
            assert_eq!(conn.read_to_end(), wanted, "{bytes:02x?}");
        }
    }
}

#[test]
fn a_wrong_name_of_the_protocol_says_nothing_of_its_version() {
    let broker = Broker::start();
    // After a protocol name of another length, a parser could take a wrong byte for a level of 5 or above.
    for body in [
        &b"\0\x05MQTT\x04\xc2\0\x3c\0\x01a"[..],
        b"\0\x05MQTTX\x05\x02\0\x3c\0\0\x01a",
        b"\0\x04MQTX\x05\x02\0\x3c\0\0\x01a",
        b"\0\x04MQTX\x04\x02\0\0\0\x01a",
        b"\0\0\xff\x02\0\x3c\0\x01a",
    ] {
        let mut conn = Conn::open(&broker, Version::V311);
        conn.send([&[0x10, body.len() as u8], body].concat());
        assert_eq!(conn.read_to_end(), b"", "{body:02x?}");
    }
}

#[test]
fn an_old_session_without_a_name_is_refused() {
    let broker = Broker::start();
    let refused = refusal(&broker, 4, &connect(4, 0x00, b"\0\0"));
    assert_eq!(refused, Some(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID));
}

#[test]
fn connect_properties_are_checked() {
    let broker = Broker::start();
    let rows: [(&str, &[u8], ReasonCode); 6] = [
        (
            "receive maximum 0",
            b"\x03\x21\0\0",
            ReasonCode::PROTOCOL_ERROR,
        ),
        (
            "packet maximum 0",
            b"\x05\x27\0\0\0\0",
            ReasonCode::PROTOCOL_ERROR,
        ),
        (
            "session expiry twice",
            b"\x0a\x11\0\0\0\0\x11\0\0\0\0",
            ReasonCode::PROTOCOL_ERROR,
        ),
        (
            "problem information 2",
            b"\x02\x17\x02",
            ReasonCode::PROTOCOL_ERROR,
        ),
        (
            "data without a method",
            b"\x04\x16\0\x01x",
            ReasonCode::PROTOCOL_ERROR,
        ),
        (
            "a method nobody knows",
            b"\x04\x15\0\x01x",
            ReasonCode::BAD_AUTHENTICATION_METHOD,
        ),
    ];
    let mut wrong = Vec::new();
    for (name, properties, wanted) in rows {
        let bytes = connect(5, 0x02, &[properties, b"\0\x01a"].concat());
        match attempt(|| refusal(&broker, 5, &bytes)) {
            Some(Some(outcome)) if outcome == wanted => {}
            outcome => wrong.push(format!("{name}: {outcome:?} and not {wanted:?}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nothing_is_heard_before_connect() {
    let broker = Broker::with("[timeouts]\nhead_s = 1\n");
    let mut bystander = Conn::connected(&broker, Version::V311, "bystander");
    bystander.subscribe("a", 0);
    // The port also speaks HTTP, and the first of these byte sequences could begin a request. So the server answers it only after a
    // timeout.
    let firsts: [(&[u8], &[u8]); 5] = [
        (b"\x30\x05\0\x01ahi", TIMEOUT),
        (b"\x82\x06\0\x01\0\x01a\0", NO_REQUEST),
        (b"\xc0\x00", NO_REQUEST),
        (b"\xe0\x00", NO_REQUEST),
        (b"\x40\x02\0\x01", NO_REQUEST),
    ];
    for (first, answer) in firsts {
        let mut conn = Conn::open(&broker, Version::V311);
        conn.send(first);
        let spoken = if broker.is_crore() { answer } else { b"" };
        let bytes_read = conn.read_to_end();
        assert_eq!(
            &bytes_read[..spoken.len().min(bytes_read.len())],
            spoken,
            "{first:02x?}"
        );
        assert_eq!(bytes_read.is_empty(), spoken.is_empty(), "{first:02x?}");
    }
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    bystander.expect_only_from(&mut publisher, "a");
}

#[test]
fn a_second_connect_is_a_protocol_error() {
    let broker = Broker::start();
    let mut subscriber = Conn::connected(&broker, Version::V5, "subscriber");
    subscriber.subscribe("w", 0);
    for version in VERSIONS {
        let mut connect = plain_connect(version, "it");
        connect.will = Some(will("w"));
        let mut conn = Conn::open(&broker, version);
        conn.connect(&connect);
        conn.write(|out| encode::connect(out, &connect));
        let wanted = (version == Version::V5).then_some(ReasonCode::PROTOCOL_ERROR);
        assert_eq!(conn.end(), wanted);
        assert_eq!(
            subscriber.packet().publish().payload,
            b"gone",
            "it leaves its will"
        );
    }
}

#[test]
fn slow_connect_is_refused_at_its_deadline() {
    let broker = Broker::with("[timeouts]\nhead_s = 1\n");
    if !broker.is_crore() {
        return; // Mosquitto waits for long
    }
    for begin in [&b""[..], b"\x10", b"\x10\x0d\0\x04MQTT"] {
        let mut conn = Conn::open(&broker, Version::V311);
        conn.send(begin);
        let bytes_read = conn.read_to_end();
        // A client that has sent nothing may have meant to speak HTTP.
        let spoken: &[u8] = if begin.is_empty() { TIMEOUT } else { b"" };
        assert!(
            bytes_read.starts_with(spoken),
            "{begin:02x?}: {bytes_read:02x?}"
        );
        assert_eq!(bytes_read.is_empty(), spoken.is_empty(), "{begin:02x?}");
    }
}

#[test]
fn packets_may_follow_before_the_answer() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut conn = Conn::open(&broker, version);
        conn.write(|out| {
            encode::connect(out, &plain_connect(version, "it"));
            let options = SubscribeOptions::of(Qos::AtMostOnce);
            let filters = std::iter::once(("t", options));
            encode::subscribe(out, version, id(1), &Properties::default(), filters);
            encode::publish(out, version, &message("t", 0, 0, b"at once"));
        });
        assert!(matches!(conn.packet().packet(), Packet::ConnAck(_)));
        assert!(matches!(conn.packet().packet(), Packet::SubAck(_)));
        assert_eq!(conn.packet().publish().payload, b"at once");
    }
}

#[test]
fn any_cut_of_the_bytes_gives_the_same_packets() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut conn = Conn::open(&broker, version);
        let mut bytes = Vec::new();
        encode::connect(&mut bytes, &plain_connect(version, "it"));
        let options = SubscribeOptions::of(Qos::AtLeastOnce);
        let filters = std::iter::once(("t", options));
        encode::subscribe(&mut bytes, version, id(1), &Properties::default(), filters);
        encode::publish(&mut bytes, version, &message("t", 1, 7, &[b'x'; 300]));
        encode::pingreq(&mut bytes);
        conn.dribble(&bytes);
        assert!(matches!(conn.packet().packet(), Packet::ConnAck(_)));
        assert!(matches!(conn.packet().packet(), Packet::SubAck(_)));
        let mut left = vec!["publish", "puback", "pingresp"];
        while !left.is_empty() {
            let payload = match conn.packet().packet() {
                Packet::Publish(publish) if publish.payload == [b'x'; 300] => "publish",
                Packet::PubAck(_) => "puback",
                Packet::PingResp => "pingresp",
                other => panic!("{other:?}"),
            };
            let index = left.iter().position(|packet| *packet == payload);
            left.remove(index.unwrap_or_else(|| panic!("{payload} came twice")));
        }
    }
}

#[test]
fn no_answer_exceeds_the_clients_maximum_packet_size() {
    // This maximum packet size leaves no room for a reason string.
    let broker = Broker::start();
    let (mut conn, _) = Conn::with_properties(&broker, "it", true, |set| {
        set.maximum_packet_size_bytes(64);
    });
    assert!(conn.is_served());
}

/// Connects with a session that outlives its connection. Returns the reason of the CONNACK.
fn session_of(broker: &Broker, version: Version, client_id: &str) -> (Conn, ReasonCode) {
    let mut properties = PropertyWriter::new();
    properties.session_expiry_interval_s(600);
    let mut connect = plain_connect(version, client_id);
    connect.clean_start = false;
    if version == Version::V5 {
        connect.properties = properties.properties();
    }
    let mut conn = Conn::open(broker, version);
    conn.write(|out| encode::connect(out, &connect));
    let reason = match conn.packet().packet() {
        Packet::ConnAck(connack) => connack.reason,
        other => panic!("a CONNACK is due, {other:?} came"),
    };
    (conn, reason)
}

/// Connects with a lasting session. Tries again for a while, since another session ends a moment after its connection.
fn session_in_time(broker: &Broker, version: Version, client_id: &str) -> Conn {
    eventually("room for a session", || {
        let (conn, reason) = session_of(broker, version, client_id);
        (reason == ReasonCode::SUCCESS).then_some(conn)
    })
}

#[test]
fn sessions_of_one_address_have_a_limit() {
    for version in VERSIONS {
        let broker = Broker::with("[mqtt]\nsessions_per_address_max = 2\n");
        if !broker.is_crore() {
            return;
        }
        let refused = match version {
            Version::V5 => ReasonCode::QUOTA_EXCEEDED,
            Version::V311 => ReasonCode::SERVER_UNAVAILABLE, // its 3
        };
        let refuse = |id: &str| {
            let (mut conn, reason) = session_of(&broker, version, id);
            assert_eq!(reason, refused, "{id}");
            assert_eq!(conn.read_to_end(), b"");
        };
        let (away, reason) = session_of(&broker, version, "away");
        assert_eq!(reason, ReasonCode::SUCCESS);
        away.cut();
        let mut clean = Conn::connected(&broker, version, "clean");
        refuse("third");
        // A client that resumes or takes over its session needs no further session.
        let taken = session_in_time(&broker, version, "away");
        let away = session_in_time(&broker, version, "away");
        refuse("third");
        drop(taken);
        away.cut();
        refuse("third");
        clean.disconnect();
        session_in_time(&broker, version, "third").cut();
        refuse("fourth");
        // A clean start ends the client's absent session.
        Conn::connected(&broker, version, "away").disconnect();
        session_in_time(&broker, version, "fourth").cut();
    }
}

#[test]
fn client_that_cannot_take_a_connack_is_disconnected_without_one() {
    let broker = Broker::start();
    for (packet_max, is_answered) in [(4, false), (5, true)] {
        let mut properties = PropertyWriter::new();
        properties.maximum_packet_size_bytes(packet_max);
        let mut connect = plain_connect(Version::V5, "it");
        connect.properties = properties.properties();
        let mut conn = Conn::open(&broker, Version::V5);
        conn.write(|out| encode::connect(out, &connect));
        let answer = conn.read_to_end();
        assert_eq!(!answer.is_empty(), is_answered, "{packet_max}: {answer:?}");
        assert!(answer.len() <= packet_max as usize, "{answer:?}");
    }
}
