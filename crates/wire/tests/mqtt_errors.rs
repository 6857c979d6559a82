//! Every way in which a packet can be wrong by itself: the error, and the reason code to answer with.

use crore_wire::mqtt::Version::{V5, V311};
use crore_wire::mqtt::{
    Error, FILTERS_MAX, FilterError, Packet, PacketType, ReasonCode, USER_PROPERTIES_MAX, Version,
    decode, fixed_header,
};

const MAX: usize = 1 << 20;

/// A packet's first byte, two parts of its body, and the bytes that a test puts between them or beside them.
type Row = (u8, &'static [u8], &'static [u8], &'static [u8]);

/// Decodes one packet, with the length field that it has.
fn whole(version: Version, bytes: &[u8]) -> Result<Packet<'_>, Error> {
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
    assert_eq!(whole(version, &packet(first, body)), Err(error));
    assert_eq!(error.reason().value(), reason, "{error}");
}

#[track_caller]
fn accepted(version: Version, first: u8, body: &[u8]) {
    assert!(whole(version, &packet(first, body)).is_ok());
}

#[test]
fn fixed_headers_are_refused_from_their_first_byte() {
    for first in 0..=255_u8 {
        let error = match (first >> 4, first & 0x0F) {
            (0, _) => Some(Error::PacketType),
            (3, flags) if flags & 0b0110 == 0b0110 => Some(Error::Qos),
            (3, flags) if flags & 0b1110 == 0b1000 => Some(Error::Dup),
            (3, _) | (6 | 8 | 10, 0b0010) => None,
            (6 | 8 | 10, _) => Some(Error::HeaderFlags),
            (_, 0) => None,
            _ => Some(Error::HeaderFlags),
        };
        assert_eq!(fixed_header(&[first], MAX).err(), error, "{first:#04x}");
        let reason = error.map_or(ReasonCode::MALFORMED_PACKET, |error| error.reason());
        assert_eq!(reason, ReasonCode::MALFORMED_PACKET);
    }
}

#[test]
fn remaining_lengths_have_four_bytes_at_most() {
    let max = usize::MAX;
    assert_eq!(fixed_header(b"", max), Ok(None));
    assert_eq!(fixed_header(b"\x30\x80\x80\x80", max), Ok(None));
    let error = Err(Error::RemainingLength);
    assert_eq!(fixed_header(b"\x30\x80\x80\x80\x80", max), error);
    assert_eq!(fixed_header(b"\x30\xFF\xFF\xFF\xFF\x01", max), error);
    assert_eq!(fixed_header(b"\xC0\x01", max), error);
    assert_eq!(fixed_header(b"\xD0\x80\x01", max), error);
    for (bytes, len) in [
        (&b"\x30\x00"[..], 0),
        (b"\x30\x7F", 127),
        (b"\x30\x80\x01", 128),
        (b"\x30\xFF\x7F", 16_383),
        (b"\x30\x80\x80\x01", 16_384),
        (b"\x30\xFF\xFF\x7F", 2_097_151),
        (b"\x30\x80\x80\x80\x01", 2_097_152),
        (b"\x30\xFF\xFF\xFF\x7F", 268_435_455),
    ] {
        let (header, at) = fixed_header(bytes, max).unwrap().unwrap();
        assert_eq!(
            (header.kind(), header.body_bytes()),
            (PacketType::Publish, len)
        );
        assert_eq!(at, bytes.len());
    }
}

#[test]
fn the_limit_counts_the_fixed_header() {
    assert!(fixed_header(b"\x30\x80\x01", 131).unwrap().is_some());
    let error = Error::TooLarge {
        bytes: 131,
        max: 130,
    };
    assert_eq!(fixed_header(b"\x30\x80\x01", 130), Err(error));
    assert_eq!(error.reason(), ReasonCode::PACKET_TOO_LARGE);
    assert_eq!(
        error.to_string(),
        "the packet is too large: 131 bytes, at most 130"
    );
}

#[test]
fn a_padded_remaining_length_is_refused_in_5_only() {
    let publish = b"\x30\x84\x00\0\x01tx";
    assert!(whole(V311, publish).is_ok());
    assert_eq!(whole(V5, publish), Err(Error::VariableByteInteger));
    let connect = b"\x10\x8D\x00\0\x04MQTT\x05\x02\0\0\0\0\0";
    assert_eq!(whole(V5, connect), Err(Error::VariableByteInteger));
    let connect = b"\x10\x8C\x00\0\x04MQTT\x04\x02\0\0\0\0";
    assert!(whole(V5, connect).is_ok());
}

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
        (b"\0\x04MQTT\x84\x02\0\0\0\0", ProtocolVersion(0x84)),
    ] {
        refused(V311, 0x10, body, error, 0x84);
        assert_eq!(error.reason().connect_return_code(), Some(1));
    }
}

#[test]
fn connect_flags_agree() {
    for flags in 0..=255_u8 {
        let will_qos = flags >> 3 & 3;
        let will = flags & 4 != 0;
        let bad = flags & 1 != 0 || will_qos == 3 || (!will && flags & 0b0011_1000 != 0);
        let (user, password) = (flags & 0x80 != 0, flags & 0x40 != 0);
        for version in [V311, V5] {
            let mut body = b"\0\x04MQTT".to_vec();
            body.extend([version.level(), flags, 0, 0]);
            let none: &[u8] = if version == V5 { b"\0" } else { b"" };
            body.extend_from_slice(none);
            body.extend_from_slice(b"\0\x02id");
            if will {
                body.extend_from_slice(none);
                body.extend_from_slice(b"\0\x01w\0\x01p");
            }
            for _ in 0..u8::from(user) + u8::from(password) {
                body.extend_from_slice(b"\0\x01x");
            }
            if bad || (version == V311 && password && !user) {
                refused(version, 0x10, &body, Error::ConnectFlags, 0x81);
                continue;
            }
            let bytes = packet(0x10, &body);
            let Ok(Packet::Connect(connect)) = whole(V311, &bytes) else {
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
fn text_is_utf_8_without_null() {
    let with = |text: &[u8]| [&b"\0\x04MQTT\x04\x02\0\0\0"[..], &[text.len() as u8], text].concat();
    for bad in [
        &b"\xC3\x28"[..],
        b"\xED\xA0\x80",     // a surrogate
        b"\xC0\x80",         // an overlong null
        b"\xF4\x90\x80\x80", // beyond U+10FFFF
        b"\xFF",
    ] {
        refused(V311, 0x10, &with(bad), Error::NotUtf8, 0x81);
    }
    refused(V311, 0x10, &with(b"a\0b"), Error::Nul, 0x81);
    // U+FEFF is a character like others [MQTT-1.5.4-3], and so are non-characters (section 1.5.4).
    let bytes = packet(0x10, &with("\u{FEFF}a\u{FFFF}".as_bytes()));
    let Ok(Packet::Connect(connect)) = whole(V311, &bytes) else {
        panic!("a CONNECT")
    };
    assert_eq!(connect.client_id, "\u{FEFF}a\u{FFFF}");
    refused(V311, 0x30, b"\0\x01\xFF", Error::NotUtf8, 0x81);
    refused(V311, 0x82, b"\0\x01\0\x01\0\0", Error::Nul, 0x81);
    refused(
        V5,
        0x30,
        b"\0\x01t\x07\x26\0\x01\xFF\0\x01v",
        Error::NotUtf8,
        0x81,
    );
    refused(
        V5,
        0x30,
        b"\0\x01t\x07\x26\0\x01n\0\x01\xFF",
        Error::NotUtf8,
        0x81,
    );
}

/// Each `~` stands for a separate text field; damage to any one of them is found.
#[test]
fn no_text_field_goes_unchecked() {
    let table: [(u8, &[u8], usize); 9] = [
        (
            0x10,
            b"\0\x04MQTT\x05\x86\0\0\x04\x15\0\x01~\0\x01~\x08\x03\0\x01~\x08\0\x01~\0\x01~\0\0\0\x01~",
            6,
        ),
        (0x10, b"\0\x04MQTT\x04\x86\0\0\0\x01~\0\x01~\0\0\0\x01~", 3),
        (
            0x20,
            b"\0\0\x10\x12\0\x01~\x1A\0\x01~\x1C\0\x01~\x1F\0\x01~",
            4,
        ),
        (0x30, b"\0\x01~\x07\x26\0\x01~\0\x01~", 3),
        (0x82, b"\0\x01\0\0\x01~\0\0\x01~\0", 2),
        (0xA2, b"\0\x01\0\0\x01~\0\x01~", 2),
        (0x40, b"\0\x01\0\x04\x1F\0\x01~", 1),
        (0xE0, b"\0\x08\x1F\0\x01~\x1C\0\x01~", 2),
        (0xF0, b"\x18\x04\x15\0\x01~", 1),
    ];
    for (first, body, fields) in table {
        accepted(V5, first, body);
        let at: Vec<usize> = (0..body.len()).filter(|&at| body[at] == b'~').collect();
        assert_eq!(at.len(), fields);
        for at in at {
            let mut damaged = body.to_vec();
            damaged[at] = 0xFF;
            refused(V5, first, &damaged, Error::NotUtf8, 0x81);
            damaged[at] = 0;
            refused(V5, first, &damaged, Error::Nul, 0x81);
        }
    }
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
    refused(V5, 0x30, b"\0\x01t\x03\x08\0\0", Error::TopicName, 0x90);
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

#[test]
fn subscribes() {
    use Error::{NoFilters, NoLocalShared, SubscribeOptions, SubscribeReserved};
    refused(V311, 0x82, b"\0\x01", NoFilters, 0x82);
    refused(V5, 0x82, b"\0\x01\0", NoFilters, 0x82);
    refused(V5, 0x82, b"\0\x01\0\0\x01a", Error::Truncated, 0x81);
    let filter =
        |text: &[u8], options| [&b"\0\x01\0\0"[..], &[text.len() as u8], text, &[options]].concat();
    let shared = b"$share/g/a";
    for options in 0..=255_u8 {
        let error = match options {
            _ if options >> 6 != 0 => Some((SubscribeReserved, 0x81)),
            _ if options & 3 == 3 || options >> 4 & 3 == 3 => Some((SubscribeOptions, 0x82)),
            _ => None,
        };
        match error {
            Some((error, reason)) => refused(V5, 0x82, &filter(b"a", options), error, reason),
            None => accepted(V5, 0x82, &filter(b"a", options)),
        }
        match error {
            None if options & 4 != 0 => {
                refused(V5, 0x82, &filter(shared, options), NoLocalShared, 0x82);
            }
            None => accepted(V5, 0x82, &filter(shared, options)),
            _ => {}
        }
        let body = [b"\0\x01\0\x01a", &[options][..]].concat();
        match options {
            0..=2 => accepted(V311, 0x82, &body),
            3 => refused(V311, 0x82, &body, SubscribeOptions, 0x82),
            _ => refused(V311, 0x82, &body, SubscribeReserved, 0x81),
        }
    }
    for (text, error) in [
        (&b""[..], FilterError::Empty),
        (b"a#", FilterError::Wildcard),
        (b"#/a", FilterError::Wildcard),
        (b"$share/g/", FilterError::ShareFilter),
        (b"$share/+/a", FilterError::ShareName),
    ] {
        refused(V5, 0x82, &filter(text, 0), Error::Filter(error), 0x8F);
        let unsubscribe = [&b"\0\x01\0\0"[..], &[text.len() as u8], text].concat();
        refused(V5, 0xA2, &unsubscribe, Error::Filter(error), 0x8F);
    }
}

#[test]
fn unsubscribes() {
    refused(V311, 0xA2, b"\0\x01", Error::NoFilters, 0x82);
    refused(V5, 0xA2, b"\0\x01\0", Error::NoFilters, 0x82);
    refused(V5, 0xA2, b"\0\x01\0\0\x02a", Error::Truncated, 0x81);
}

#[test]
fn lists_are_limited() {
    let subscribe = |count| [&b"\0\x01\0"[..], &b"\0\x01a\0".repeat(count)].concat();
    accepted(V5, 0x82, &subscribe(FILTERS_MAX));
    refused(
        V5,
        0x82,
        &subscribe(FILTERS_MAX + 1),
        Error::TooManyFilters,
        0x97,
    );
    let unsubscribe = |count| [&b"\0\x01\0"[..], &b"\0\x01a".repeat(count)].concat();
    accepted(V5, 0xA2, &unsubscribe(FILTERS_MAX));
    refused(
        V5,
        0xA2,
        &unsubscribe(FILTERS_MAX + 1),
        Error::TooManyFilters,
        0x97,
    );
    let suback = |count| [&b"\0\x01\0"[..], &b"\0".repeat(count)].concat();
    accepted(V5, 0x90, &suback(FILTERS_MAX));
    refused(
        V5,
        0x90,
        &suback(FILTERS_MAX + 1),
        Error::TooManyFilters,
        0x97,
    );
    let users = |count: usize| {
        let len = 5 * count;
        let len = [len as u8 | 0x80, (len >> 7) as u8];
        [&b"\0\x01t"[..], &len, &b"\x26\0\0\0\0".repeat(count)].concat()
    };
    accepted(V5, 0x30, &users(USER_PROPERTIES_MAX));
    let error = Error::TooManyUserProperties;
    refused(V5, 0x30, &users(USER_PROPERTIES_MAX + 1), error, 0x97);
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

/// The tables of sections 3.2.2.2, 3.4.2.1, 3.6.2.1, 3.9.3, 3.11.3, 3.14.2.1 and 3.15.2.1.
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

/// Every identifier in every packet, against table 2-4; twice; and with the values that are forbidden.
#[test]
fn properties_have_their_places() {
    let users_only: &'static [u8] = &[0x26];
    let acks: &'static [u8] = &[0x1F, 0x26];
    let table: [Row; 12] = [
        (
            0x10,
            b"\0\x04MQTT\x05\x02\0\0",
            b"\0\0",
            &[0x11, 0x15, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27],
        ),
        (
            0x10,
            b"\0\x04MQTT\x05\x06\0\0\0\0\0",
            b"\0\x01w\0\0",
            &[0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26],
        ),
        (
            0x20,
            b"\0\0",
            b"",
            &[
                0x11, 0x12, 0x13, 0x15, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x28,
                0x29, 0x2A,
            ],
        ),
        (
            0x30,
            b"\0\x01t",
            b"",
            &[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26],
        ),
        (0x40, b"\0\x01\0", b"", acks),
        (0x50, b"\0\x01\0", b"", acks),
        (0x62, b"\0\x01\0", b"", acks),
        (0x70, b"\0\x01\0", b"", acks),
        (0x82, b"\0\x01", b"\0\x01a\0", &[0x0B, 0x26]),
        (0x90, b"\0\x01", b"\0", acks),
        (0xA2, b"\0\x01", b"\0\x01a", users_only),
        (0xE0, b"\0", b"", &[0x11, 0x1C, 0x1F, 0x26]),
    ];
    for (first, before, after, listed) in table {
        for id in 0..=255_u8 {
            let value = value(id);
            let one = [&[id][..], value].concat();
            let len = [one.len() as u8];
            let body = [before, &len, &one, after].concat();
            // Authentication data comes with a method; alone it is an error of its own.
            let fits_alone = listed.contains(&id);
            let data = id == 0x16 && listed.contains(&0x15);
            match (fits_alone, data) {
                (true, _) => accepted(V5, first, &body),
                (_, true) => refused(V5, first, &body, Error::AuthenticationMethod, 0x82),
                _ => refused(V5, first, &body, Error::Property(id), 0x81),
            }
            if !fits_alone {
                continue;
            }
            let len = [2 * one.len() as u8];
            let body = [before, &len, &one, &one, after].concat();
            match id == 0x26 || (id == 0x0B && first == 0x30) {
                true => accepted(V5, first, &body),
                false => refused(V5, first, &body, Error::DuplicateProperty(id), 0x82),
            }
            for bad in forbidden(id) {
                let one = [&[id][..], bad].concat();
                let len = [one.len() as u8];
                let body = [before, &len, &one, after].concat();
                let (error, reason) = match id {
                    0x23 => (Error::TopicAlias, 0x94),
                    0x08 => (Error::TopicName, 0x90),
                    _ => (Error::PropertyValue(id), 0x82),
                };
                refused(V5, first, &body, error, reason);
            }
            for short in 0..value.len() {
                let body = [before, &[1 + short as u8], &[id], &value[..short]].concat();
                refused(V5, first, &body, Error::Truncated, 0x81);
            }
        }
        let body = [before, b"\x80\x80\x80\x80\x01"].concat();
        refused(V5, first, &body, Error::VariableByteInteger, 0x81);
        let body = [before, b"\x80\0", after].concat();
        refused(V5, first, &body, Error::VariableByteInteger, 0x81);
        let body = [before, b"\x7F", after].concat();
        refused(V5, first, &body, Error::Truncated, 0x81);
    }
    let long = b"\0\x01t\x05\x0B\xFF\xFF\xFF\xFF\x7F";
    refused(V5, 0x30, &long[..9], Error::VariableByteInteger, 0x81);
}

/// A value that the property may have.
fn value(id: u8) -> &'static [u8] {
    match id {
        0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2A | 0x0B => b"\x01",
        0x13 | 0x21 | 0x22 | 0x23 => b"\0\x01",
        0x02 | 0x11 | 0x18 | 0x27 => b"\0\0\0\x01",
        0x26 => b"\0\x01n\0\x01v",
        _ => b"\0\x01x",
    }
}

/// Values that it may not have.
fn forbidden(id: u8) -> &'static [&'static [u8]] {
    match id {
        0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2A => &[b"\x02", b"\xFF"],
        0x0B => &[b"\0"],
        0x21 | 0x23 => &[b"\0\0"],
        0x27 => &[b"\0\0\0\0"],
        0x08 => &[b"\0\x01+", b"\0\x01#", b"\0\0"],
        _ => &[],
    }
}
