//! Property tests of the MQTT codec: every packet in both versions decodes to what was encoded, however the bytes are cut. Random bytes
//! never panic, and accepted ones are encoded again with the same meaning.

mod oracle;
mod packets;
mod props;

use crore_wire::mqtt::{Error, Packet, Version, decode, encode, fixed_header};
use packets::{packets, versions};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

const MAX: usize = 1 << 16;

/// The first packet of `bytes`, and the number of bytes that it takes.
fn decode_first(version: Version, bytes: &[u8]) -> Result<Option<(Packet<'_>, usize)>, Error> {
    let Some((header, at)) = fixed_header(bytes, MAX)? else {
        return Ok(None);
    };
    let end = at + header.body_bytes();
    match bytes.get(at..end) {
        Some(body) => Ok(Some((decode(version, header, body)?, end))),
        None => Ok(None),
    }
}

/// Decodes the bytes, which must not panic. If a packet is accepted, it means the same after it is encoded again, and a further round
/// changes nothing.
fn assert_round_trip(version: Version, bytes: &[u8]) {
    let Ok(Some((packet, _))) = decode_first(version, bytes) else {
        return;
    };
    // A CONNECT is decoded in the version that it names itself.
    let (mut encoded, mut encoded_again) = (Vec::new(), Vec::new());
    encode::packet(&mut encoded, version, &packet);
    let (decoded, len) = decode_first(version, &encoded).unwrap().unwrap();
    assert_eq!((decoded, len), (packet, encoded.len()));
    encode::packet(&mut encoded_again, version, &decoded);
    assert_eq!(encoded, encoded_again);
    let _ = packet.check_from_client();
}

proptest! {
    #[test]
    fn packets_come_back(
        (version, packet) in versions().prop_flat_map(|v| (Just(v), packets(v))),
    ) {
        let bytes = packet.encoded(version);
        let (decoded, len) = decode_first(version, &bytes).unwrap().unwrap();
        prop_assert_eq!(len, bytes.len());
        packet.assert_is(&decoded);
        let mut encoded_again = Vec::new();
        encode::packet(&mut encoded_again, version, &decoded);
        prop_assert_eq!(encoded_again, bytes);
    }

    #[test]
    fn a_stream_may_be_cut_anywhere(
        (version, sent) in versions().prop_flat_map(|v| (Just(v), vec(packets(v), 1..6))),
        pieces in vec(1_usize..20, 1..20),
    ) {
        let stream: Vec<u8> = sent.iter().flat_map(|packet| packet.encoded(version)).collect();
        let mut pieces = pieces.iter().cycle();
        let mut expected = sent.iter();
        let (mut incomplete, mut rest) = (Vec::new(), stream.as_slice());
        while !rest.is_empty() {
            let (piece, remaining) = rest.split_at(rest.len().min(*pieces.next().unwrap()));
            incomplete.extend_from_slice(piece);
            rest = remaining;
            while let Some((packet, len)) = decode_first(version, &incomplete).unwrap() {
                expected.next().unwrap().assert_is(&packet);
                incomplete.drain(..len);
            }
        }
        prop_assert!(incomplete.is_empty() && expected.next().is_none());
    }

    #[test]
    fn incomplete_packet_is_neither_a_packet_nor_an_error(
        (version, packet) in versions().prop_flat_map(|v| (Just(v), packets(v))),
        cut in any::<Index>(),
    ) {
        let bytes = packet.encoded(version);
        prop_assert_eq!(decode_first(version, &bytes[..cut.index(bytes.len())]), Ok(None));
    }

    #[test]
    fn any_bytes_survive(version in versions(), mut bytes in vec(any::<u8>(), 0..80)) {
        assert_round_trip(version, &bytes);
        // Random bytes rarely have a length that fits, so set it.
        if bytes.len() > 2 {
            bytes[1] = bytes.len() as u8 - 2;
            assert_round_trip(version, &bytes);
        }
    }

    #[test]
    fn damaged_packets_survive(
        (version, packet) in versions().prop_flat_map(|v| (Just(v), packets(v))),
        other in versions(),
        damage in vec((any::<Index>(), any::<u8>(), 0_u8..4), 1..4),
    ) {
        let mut bytes = packet.encoded(version);
        for (at, byte, change) in damage {
            let at = at.index(bytes.len());
            match change {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte & 7),
                2 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => {
                    bytes.remove(at);
                }
                _ => {}
            }
            // Set the length so that it fits. Otherwise most packets would be refused, or wait for more bytes, only because of it.
            if bytes.len() > 2 && bytes.len() < 130 {
                bytes[1] = bytes.len() as u8 - 2;
            }
            assert_round_trip(version, &bytes);
            assert_round_trip(other, &bytes);
        }
    }
}
