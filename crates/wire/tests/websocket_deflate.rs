//! Tests the data format of permessage-deflate: round trips, RFC 7692's own examples, limits, and invalid data.

use crore_wire::deflate::{Compressor, InflateError, inflate};
use proptest::prelude::*;

fn inflated(data: &[u8], limit: usize) -> Result<Vec<u8>, InflateError> {
    let mut out = b"before".to_vec();
    inflate(data, limit, &mut out)?;
    assert!(out.starts_with(b"before"));
    Ok(out.split_off(6))
}

fn compressed(data: &[u8], level: u8) -> Vec<u8> {
    let mut out = Vec::new();
    Compressor::new().compress(data, level, &mut out);
    out
}

#[test]
fn the_examples_of_the_rfc_inflate() {
    // RFC 7692 §7.2.3.1, .3, .4, .5, .6
    let table: &[(&[u8], &[u8])] = &[
        (b"\xF2\x48\xCD\xC9\xC9\x07\x00", b"Hello"),
        (b"\x00\x05\x00\xFA\xFF\x48\x65\x6C\x6C\x6F\x00", b"Hello"),
        (b"\xF3\x48\xCD\xC9\xC9\x07\x00\x00", b"Hello"),
        (b"\xF3\x48\xCD\xC9\xC9\x07\x00", b"Hello"),
        (
            b"\xF2\x48\x05\x00\x00\x00\xFF\xFF\xCA\xC9\xC9\x07\x00",
            b"Hello",
        ),
        (b"\x00", b""),
        (b"", b""),
    ];
    for (data, expected) in table {
        assert_eq!(inflated(data, 100).as_deref(), Ok(*expected), "{data:x?}");
    }
    assert_eq!(compressed(b"", 6), [0]);
}

#[test]
fn bad_data_is_refused() {
    let table: &[&[u8]] = &[
        // The reserved block type, a wrong complement of a stored length, and a distance that reaches before the beginning.
        b"\x07",
        b"\x06",
        b"\x00\x05\x00\x00\x00Hello",
        b"\x4A\x84\x01\x00",
        // Data that is cut off inside a block.
        b"\xF2\x48\xCD",
        b"\x00\x05\x00\xFA\xFFHel",
        // Superfluous bytes after a final block.
        b"\xF3\x48\xCD\xC9\xC9\x07\x00\xFF",
    ];
    for data in table {
        assert_eq!(
            inflated(data, 100),
            Err(InflateError::Malformed),
            "{data:x?}"
        );
    }
}

#[test]
fn inflate_bomb_stops_at_the_limit() {
    let bomb = compressed(&vec![0; 16 << 20], 9);
    assert!(bomb.len() < 32 << 10);
    let mut out = Vec::new();
    assert_eq!(inflate(&bomb, 100_000, &mut out), Err(InflateError::TooBig));
    assert!(out.capacity() <= 300_000, "{}", out.capacity());
    assert_eq!(inflated(&bomb, 16 << 20).map(|out| out.len()), Ok(16 << 20));
    assert_eq!(inflated(&bomb, (16 << 20) - 1), Err(InflateError::TooBig));
}

#[test]
fn a_compressor_is_small_until_used_and_forgets_each_message() {
    assert!(size_of::<Compressor>() <= 16);
    let mut compressor = Compressor::new();
    let text = b"the same text, the same text again".repeat(3);
    let mut payloads = Vec::new();
    for level in [1, 6, 6, 9, 1] {
        let mut out = Vec::new();
        compressor.compress(&text, level, &mut out);
        assert_eq!(
            out,
            compressed(&text, level),
            "no context from earlier messages"
        );
        assert_eq!(inflated(&out, text.len()).as_deref(), Ok(&text[..]));
        payloads.push(out);
    }
    assert!(payloads.iter().all(|out| out.len() < text.len()));
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(prop::sample::select(&b"ab"[..]), 0..3000),
        // Sizes around those at which the compressor ends a block by itself.
        (any::<u8>(), 30_000_usize..140_000).prop_map(|(seed, size)| {
            let mut word = u32::from(seed);
            (0..size)
                .map(|_| {
                    word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (word >> 24) as u8
                })
                .collect()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn compressed_data_inflates_to_itself(data in body(), level in 1_u8..=9) {
        let packed = compressed(&data, level);
        prop_assert!(packed.len() <= data.len() + data.len() / 8 + 64);
        let unpacked = inflated(&packed, data.len());
        prop_assert!(unpacked.as_deref() == Ok(&data[..]));
        if !data.is_empty() {
            prop_assert_eq!(inflated(&packed, data.len() - 1), Err(InflateError::TooBig));
        }
    }

    #[test]
    fn a_truncated_message_is_refused_or_shorter(
        data in prop::collection::vec(prop::sample::select(&b"abc "[..]), 1..200),
        cut in any::<prop::sample::Index>(),
    ) {
        let packed = compressed(&data, 6);
        let cut = cut.index(packed.len());
        if let Ok(out) = inflated(&packed[..cut], 1000) {
            prop_assert!(data.starts_with(&out));
        }
    }

    #[test]
    fn arbitrary_data_neither_panics_nor_passes_the_limit(
        data in prop::collection::vec(any::<u8>(), 0..200),
        limit in 0_usize..400,
    ) {
        if let Ok(out) = inflated(&data, limit) {
            prop_assert!(out.len() <= limit);
        }
    }
}
