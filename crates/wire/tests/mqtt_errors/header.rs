//! Tests errors in the fixed header: packet types, flags and the remaining length.

use crore_wire::mqtt::Version::{V5, V311};
use crore_wire::mqtt::{Error, PacketType, ReasonCode, fixed_header};

use crate::{MAX, decode_complete};

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
    assert!(decode_complete(V311, publish).is_ok());
    assert_eq!(
        decode_complete(V5, publish),
        Err(Error::VariableByteInteger)
    );
    let connect = b"\x10\x8D\x00\0\x04MQTT\x05\x02\0\0\0\0\0";
    assert_eq!(
        decode_complete(V5, connect),
        Err(Error::VariableByteInteger)
    );
    let connect = b"\x10\x8C\x00\0\x04MQTT\x04\x02\0\0\0\0";
    assert!(decode_complete(V5, connect).is_ok());
}
