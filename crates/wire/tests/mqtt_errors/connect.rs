//! Tests errors in CONNECT and CONNACK.

use crore_wire::mqtt::Version::{V5, V311};
use crore_wire::mqtt::{Error, Packet, encode};

use crate::{accepted, decode_complete, packet, refused};

#[test]
fn protocol_names_and_versions() {
    use Error::{ProtocolName, ProtocolVersion};
    for (body, error) in [
        (&b"\0\x04MQTX\x04\x02\0\0\0\0"[..], ProtocolName),
        (b"\0\x04mqtt\x04\x02\0\0\0\0", ProtocolName),
        (b"\0\0\x04\x02\0\0\0\0", ProtocolName),
        (b"\0\x06MQIsdp\x03\x02\0\0\0\0", ProtocolVersion(3)),
        (b"\0\x06MQIsdp\x04\x02\0\0\0\0", ProtocolVersion(4)),
        (b"\0\x04MQTT\x03\x02\0\0\0\0", ProtocolVersion(3)),
        (b"\0\x04MQTT\x06\x02\0\0\0\0\0", ProtocolVersion(6)),
        (b"\0\x04MQTT\x83\x02\0\0\0\0", ProtocolVersion(0x83)),
        (b"\0\x04MQTT\x85\x02\0\0\0\0\0", ProtocolVersion(0x85)),
        (b"\0\x06MQIsdp\x83\x02\0\0\0\0", ProtocolVersion(0x83)),
        (b"\0\x06MQIsdp\x84\x02\0\0\0\0", ProtocolVersion(0x84)),
    ] {
        refused(V311, 0x10, body, error, 0x84);
        assert_eq!(error.reason().connect_return_code(), Some(1));
    }
}

#[test]
fn a_bridge_of_3_1_1_is_known_by_its_level() {
    for (level, bridge) in [(0x04, false), (0x84, true)] {
        let bytes = packet(
            0x10,
            &[b"\0\x04MQTT", &[level][..], b"\x02\0\0\0\0"].concat(),
        );
        let Ok(Packet::Connect(connect)) = decode_complete(V311, &bytes) else {
            panic!("{level:#04x} is fine")
        };
        assert_eq!((connect.version, connect.bridge), (V311, bridge));
        let mut encoded = Vec::new();
        encode::connect(&mut encoded, &connect);
        assert_eq!(encoded, bytes);
    }
}

#[test]
fn connect_flags_agree() {
    for flags in 0..=255_u8 {
        let will_qos = flags >> 3 & 3;
        let will = flags & 4 != 0;
        let is_invalid = flags & 1 != 0 || will_qos == 3 || (!will && flags & 0b0011_1000 != 0);
        let (user, password) = (flags & 0x80 != 0, flags & 0x40 != 0);
        for version in [V311, V5] {
            let mut body = b"\0\x04MQTT".to_vec();
            body.extend([version.level(), flags, 0, 0]);
            let no_properties: &[u8] = if version == V5 { b"\0" } else { b"" };
            body.extend_from_slice(no_properties);
            body.extend_from_slice(b"\0\x02id");
            if will {
                body.extend_from_slice(no_properties);
                body.extend_from_slice(b"\0\x01w\0\x01p");
            }
            for _ in 0..u8::from(user) + u8::from(password) {
                body.extend_from_slice(b"\0\x01x");
            }
            if is_invalid || (version == V311 && password && !user) {
                refused(version, 0x10, &body, Error::ConnectFlags, 0x81);
                continue;
            }
            let bytes = packet(0x10, &body);
            let Ok(Packet::Connect(connect)) = decode_complete(V311, &bytes) else {
                panic!("{flags:#04x} is fine")
            };
            assert_eq!(connect.version, version);
            assert_eq!(connect.clean_start, flags & 2 != 0);
            assert_eq!(
                (connect.user_name.is_some(), connect.password.is_some()),
                (user, password)
            );
            assert_eq!(
                connect.will.map(|will| will.qos.bits()),
                will.then_some(will_qos)
            );
        }
    }
}

#[test]
fn connects_that_are_too_short_or_too_long() {
    let full = b"\0\x04MQTT\x05\xC6\0\0\0\0\x02id\0\0\x01w\0\x01p\0\x01u\0\x01s";
    accepted(V5, 0x10, full);
    for len in 0..full.len() {
        refused(V5, 0x10, &full[..len], Error::Truncated, 0x81);
    }
    let longer = [&full[..], b"x"].concat();
    refused(V5, 0x10, &longer, Error::TrailingBytes, 0x81);
    refused(
        V5,
        0x10,
        b"\0\x04MQTT\x04\x06\0\0\0\0\0\x01#\0\0",
        Error::TopicName,
        0x90,
    );
    refused(
        V5,
        0x10,
        b"\0\x04MQTT\x04\x06\0\0\0\0\0\0\0\0",
        Error::TopicName,
        0x90,
    );
}

#[test]
fn connacks() {
    for flags in 2..=255 {
        refused(V311, 0x20, &[flags, 0], Error::ConnAckFlags, 0x81);
        refused(V5, 0x20, &[flags, 0, 0], Error::ConnAckFlags, 0x81);
    }
    refused(V311, 0x20, &[1, 5], Error::SessionPresent, 0x82);
    refused(V5, 0x20, &[1, 0x87, 0], Error::SessionPresent, 0x82);
    refused(V311, 0x20, &[0, 6], Error::ReasonCode(6), 0x82);
    refused(V5, 0x20, &[0, 1, 0], Error::ReasonCode(1), 0x82);
    refused(V311, 0x20, &[0, 0, 0], Error::TrailingBytes, 0x81);
    refused(V5, 0x20, &[0, 0], Error::Truncated, 0x81);
}
