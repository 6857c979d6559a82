//! Tests every way in which a single MQTT packet can be malformed: the decoder's error, and the reason code to answer with.

mod connect;
mod header;
mod properties;
mod subscribe;
mod text;

use crore_wire::mqtt::Version::{V5, V311};
use crore_wire::mqtt::{Error, Packet, Version, decode, fixed_header};

const MAX: usize = 1 << 20;

/// A packet's first byte, two parts of its body, and the bytes that a test inserts between or beside them.
type Row = (u8, &'static [u8], &'static [u8], &'static [u8]);

/// Decodes one packet, using its own length field.
fn decode_complete(version: Version, bytes: &[u8]) -> Result<Packet<'_>, Error> {
    let (header, at) = fixed_header(bytes, MAX)?.expect("a whole header");
    assert_eq!(at + header.body_bytes(), bytes.len(), "{bytes:?}");
    decode(version, header, &bytes[at..])
}

/// A packet from its first byte and its body.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut len = body.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(body);
    out
}

#[track_caller]
fn refused(version: Version, first: u8, body: &[u8], error: Error, reason: u8) {
    assert_eq!(decode_complete(version, &packet(first, body)), Err(error));
    assert_eq!(error.reason().value(), reason, "{error}");
}

#[track_caller]
fn accepted(version: Version, first: u8, body: &[u8]) {
    assert!(decode_complete(version, &packet(first, body)).is_ok());
}

#[test]
fn publishes_name_a_topic() {
    refused(V311, 0x30, b"\0\0x", Error::TopicName, 0x90);
    refused(V5, 0x30, b"\0\0\0x", Error::TopicNameMissing, 0x82);
    accepted(V5, 0x30, b"\0\0\x03\x23\0\x01x");
    refused(V5, 0x30, b"\0\0\x03\x23\0\0x", Error::TopicAlias, 0x94);
    for version in [V311, V5] {
        refused(version, 0x30, b"\0\x03a/#\0", Error::TopicName, 0x90);
        refused(version, 0x30, b"\0\x03+/a\0", Error::TopicName, 0x90);
        refused(version, 0x30, b"\0\x03a+b\0", Error::TopicName, 0x90);
        refused(version, 0x30, b"\0\x05a/b", Error::Truncated, 0x81);
        refused(version, 0x32, b"\0\x01t\0\0\0", Error::PacketId, 0x82);
        refused(version, 0x34, b"\0\x01t\x01", Error::Truncated, 0x81);
        accepted(version, 0x3C, b"\0\x01t\0\x01\0");
    }
    refused(V5, 0x30, b"\0\x01t\x04\x08\0\x01#", Error::TopicName, 0x90);
}

#[test]
fn packet_ids_are_not_zero() {
    for first in [0x40, 0x50, 0x62, 0x70] {
        for version in [V311, V5] {
            refused(version, first, b"\0\0", Error::PacketId, 0x82);
            refused(version, first, b"\0", Error::Truncated, 0x81);
        }
        refused(V311, first, b"\0\x01\0", Error::TrailingBytes, 0x81);
        refused(V5, first, b"\0\x01\0\0x", Error::TrailingBytes, 0x81);
    }
    refused(V5, 0x82, b"\0\0\0\0\x01a\0", Error::PacketId, 0x82);
    refused(V5, 0x90, b"\0\0\0\0", Error::PacketId, 0x82);
    refused(V5, 0xA2, b"\0\0\0\0\x01a", Error::PacketId, 0x82);
    refused(V5, 0xB0, b"\0\0\0\0", Error::PacketId, 0x82);
}

/// The reason codes of each packet type, by the tables of sections 3.2.2.2, 3.4.2.1, 3.6.2.1, 3.9.3, 3.11.3, 3.14.2.1 and 3.15.2.1.
#[test]
fn each_packet_has_reason_codes_of_its_own() {
    let connack: &'static [u8] = &[
        0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95,
        0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
    ];
    let puback: &'static [u8] = &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
    let pubrel: &'static [u8] = &[0x00, 0x92];
    let suback: &'static [u8] = &[
        0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2,
    ];
    let unsuback: &'static [u8] = &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91];
    let disconnect: &'static [u8] = &[
        0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93,
        0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    ];
    let auth: &'static [u8] = &[0x00, 0x18, 0x19];
    let method: &'static [u8] = b"\x04\x15\0\x01m";
    let table: [Row; 9] = [
        (0x20, connack, b"\0", b"\0"),
        (0x40, puback, b"\0\x01", b""),
        (0x50, puback, b"\0\x01", b""),
        (0x62, pubrel, b"\0\x01", b""),
        (0x70, pubrel, b"\0\x01", b"\0"),
        (0x90, suback, b"\0\x01\0\0", b""),
        (0xB0, unsuback, b"\0\x01\0", b""),
        (0xE0, disconnect, b"", b""),
        (0xF0, auth, b"", method),
    ];
    for (first, listed, before, after) in table {
        for code in 0..=255_u8 {
            let body = [before, &[code], after].concat();
            match listed.contains(&code) {
                true => accepted(V5, first, &body),
                false => refused(V5, first, &body, Error::ReasonCode(code), 0x82),
            }
        }
    }
    for code in 0..=255_u8 {
        let body = [0, 1, code];
        match code {
            0..=2 | 0x80 => accepted(V311, 0x90, &body),
            _ => refused(V311, 0x90, &body, Error::ReasonCode(code), 0x82),
        }
    }
    refused(V5, 0x90, b"\0\x01\0", Error::NoFilters, 0x82);
    refused(V5, 0xB0, b"\0\x01\0", Error::NoFilters, 0x82);
    refused(V311, 0xB0, b"\0\x01\0", Error::TrailingBytes, 0x81);
}

#[test]
fn farewells_and_authentication() {
    refused(V311, 0xE0, b"\0", Error::TrailingBytes, 0x81);
    refused(V5, 0xE0, b"\0\0\0", Error::TrailingBytes, 0x81);
    refused(V311, 0xF0, b"", Error::PacketType, 0x81);
    refused(V5, 0xF0, b"\x18", Error::Truncated, 0x81);
    refused(V5, 0xF0, b"\x18\0", Error::AuthenticationMethod, 0x82);
    refused(
        V5,
        0xF0,
        b"\x18\x04\x16\0\x01d",
        Error::AuthenticationMethod,
        0x82,
    );
    let connect = b"\0\x04MQTT\x05\x02\0\0\x04\x16\0\x01d\0\0";
    refused(V5, 0x10, connect, Error::AuthenticationMethod, 0x82);
}
