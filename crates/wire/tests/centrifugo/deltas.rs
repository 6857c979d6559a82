//! Tests deltas. The server only encodes, so this file has a decoder, which must make the new text again.

use crore_wire::centrifugo::fossil;
use proptest::prelude::*;

fn create_delta(old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    fossil::create(old, new, &mut Vec::new(), &mut out);
    out
}

/// Reads a number. Returns it, and the byte behind it, which is consumed too.
fn read_number(delta: &mut &[u8]) -> (usize, u8) {
    let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz~";
    let mut value = 0;
    loop {
        let byte = delta[0];
        *delta = &delta[1..];
        match digits.iter().position(|digit| *digit == byte) {
            Some(digit) => value = value << 6 | digit,
            None => return (value, byte),
        }
    }
}

/// Applies a delta as clients do.
fn apply(old: &[u8], mut delta: &[u8]) -> Vec<u8> {
    let (len, end) = read_number(&mut delta);
    assert_eq!(end, b'\n');
    let mut new = Vec::new();
    loop {
        match read_number(&mut delta) {
            (len, b'@') => {
                let (offset, end) = read_number(&mut delta);
                assert_eq!(end, b',');
                new.extend_from_slice(&old[offset..offset + len]);
            }
            (len, b':') => {
                new.extend_from_slice(&delta[..len]);
                delta = &delta[len..];
            }
            (checksum, b';') => {
                assert_eq!(new.len(), len);
                let sum = new.chunks(4).fold(0_u32, |sum, chunk| {
                    let mut word = [0; 4];
                    word[..chunk.len()].copy_from_slice(chunk);
                    sum.wrapping_add(u32::from_be_bytes(word))
                });
                assert_eq!(sum as usize, checksum);
                assert!(delta.is_empty());
                return new;
            }
            (_, other) => panic!("operator {other}"),
        }
    }
}

#[test]
fn deltas_have_the_form_of_fossil() {
    for (old, new, expected_start) in [
        ("", "", "0\n0;"),
        ("", "abc", "3\n3:abc1XObC0;"),
        (
            "0123456789abcdef0123456789",
            "0123456789abcdef0123456789",
            "Q\nQ@0,",
        ),
        (
            r#"{"symbol":"BTC","price":100.25,"volume":7}"#,
            r#"{"symbol":"BTC","price":101.75,"volume":7}"#,
            "f\nQ@0,3:1.7D@T,",
        ),
    ] {
        let delta = create_delta(old.as_bytes(), new.as_bytes());
        assert_eq!(apply(old.as_bytes(), &delta), new.as_bytes());
        let delta = String::from_utf8(delta).expect("ASCII");
        assert!(delta.starts_with(expected_start), "{delta:?}");
    }
}

#[test]
fn a_moved_part_is_copied() {
    let old: Vec<u8> = (0..4000_u32).map(|n| (n * n % 251) as u8).collect();
    let new = [&old[2000..], b"new", &old[..2000]].concat();
    let expected_start = create_delta(&old, &new);
    assert!(expected_start.len() < 40, "{}", expected_start.len());
    assert_eq!(apply(&old, &expected_start), new);
}

#[test]
fn a_text_that_repeats_one_block_is_copied_and_the_table_stays_small() {
    let old = b"a".repeat(100_000);
    let new = [&old[..], b"b", &old[..]].concat();
    let mut table = vec![7; 3];
    let mut delta = Vec::new();
    fossil::create(&old, &new, &mut table, &mut delta);
    assert!(table.len() <= 4 * old.len() / 16);
    assert!(delta.len() < 40, "{}", delta.len());
    assert_eq!(apply(&old, &delta), new);
}

/// An old text of random pieces, and a new text of some of these pieces, a few of them edited.
fn old_and_new() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        prop::collection::vec(0_u8..2, 0..80),
        prop::collection::vec(0x80_u8..0xC0, 0..40),
    ];
    let order = prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..12);
    (prop::collection::vec(piece, 1..8), order).prop_map(|(pieces, order)| {
        let picked = order.iter().map(|(index, edited)| {
            let mut piece = pieces[index.index(pieces.len())].clone();
            if *edited && !piece.is_empty() {
                let at = index.index(piece.len());
                piece[at] ^= 0x55;
            }
            piece
        });
        (pieces.concat(), picked.collect::<Vec<_>>().concat())
    })
}

proptest! {
    #[test]
    fn a_delta_makes_the_new_text((old, new) in old_and_new()) {
        let delta = create_delta(&old, &new);
        prop_assert!(delta.len() <= new.len() + 24);
        prop_assert_eq!(apply(&old, &delta), new);
    }

    #[test]
    fn a_delta_of_texts_is_a_text(old in "[aéß€😀😁]{0,60}", cut in any::<prop::sample::Index>(), inserted in "[aéê€₭😀😂]{0,8}") {
        let chars: Vec<char> = old.chars().collect();
        let at = cut.index(chars.len() + 1);
        let new: String = chars[..at].iter().collect::<String>() + &inserted + &chars[at..].iter().skip(1).collect::<String>();
        let delta = create_delta(old.as_bytes(), new.as_bytes());
        prop_assert!(std::str::from_utf8(&delta).is_ok());
        prop_assert_eq!(apply(old.as_bytes(), &delta), new.as_bytes());
    }
}
