//! Tests the text form of positions: which texts the parser accepts, and which it refuses.

use crore_broker::position::{
    Malformed, Position, Since, later_start, parse, parse_decimal, parse_partitions,
    parse_returned, write, write_partitions, write_set,
};
use proptest::prelude::*;

fn at(epoch: u32, offset: u64) -> Since {
    Since::At(Position { epoch, offset })
}

fn one(text: &str) -> Result<Since, Malformed> {
    parse(text.as_bytes(), 0, 1).map(|since| since[0])
}

#[test]
fn all_forms_of_positions_are_parsed() {
    for (text, since) in [
        ("", Since::Live),
        ("live", Since::Live),
        ("newest", Since::Live),
        ("oldest", Since::Oldest),
        ("-0", Since::Newest(0)),
        ("-7", Since::Newest(7)),
        ("-4294967295", Since::Newest(u32::MAX)),
        ("-4294967296", Since::Newest(u32::MAX)),
        ("10-0", at(0, 0)),
        ("1ffffffff-18446744073709551615", at(u32::MAX, u64::MAX)),
        ("1a-00000000000000000007", at(10, 7)),
    ] {
        assert_eq!(one(text), Ok(since), "{text}");
    }
}

#[test]
fn other_texts_are_refused() {
    for text in [
        "-",
        "--1",
        "- 1",
        "-18446744073709551616",
        "1",
        "1-",
        "1-1",
        "10000000a-7",
        "1a",
        "1a-",
        "1-a-1",
        "0a-1",
        "3a-1",
        "a-1",
        // A number with too many digits, a number that is too large, signs, and capital letters.
        "10000000aa-1",
        "1100000000-1",
        "1a-000000000000000000007",
        "1a-18446744073709551616",
        "1+a-1",
        "1a-+1",
        "1A-1",
        "1aB-1",
        "1g-1",
        "1a-1 ",
        " 1a-1",
        "1a-1-1",
        "1a-a",
        "1a-1\u{e4}",
        "1\u{e4}-1",
        // Positions of sets with padding, another alphabet, a number that does not end, or a truncated epoch.
        "2-AA",
        "2a-AA==",
        "2a-+/",
        "2a-gA",
        "2a-_____________w",
        "2a-AQ",
        "2a-AQAA",
    ] {
        assert_eq!(one(text), Err(Malformed), "{text}");
    }
}

/// A position of a set is accepted only for the same set.
#[test]
fn position_of_another_set_of_topics_is_refused() {
    let positions =
        [(5, 1), (5, 1 << 40), (6, 0)].map(|(epoch, offset)| Position { epoch, offset });
    let mut text = Vec::new();
    write_set(&mut text, 0xab, positions.iter().copied());
    assert!(text.starts_with(b"2ab-"));
    let read = |set, count| parse(&text, set, count);
    assert_eq!(read(0xab, 3), Ok(positions.map(Since::At).to_vec()));
    assert_eq!(read(0xab, 2), Ok(vec![Since::Unknown; 2]));
    assert_eq!(read(0xac, 3), Ok(vec![Since::Unknown; 3]));
    assert_eq!(parse(b"1a-1", 0xab, 2), Ok(vec![Since::Unknown; 2]));
    assert_eq!(
        parse(b"2ab-", 0xab, 1),
        Ok(vec![Since::Unknown]),
        "of no topic"
    );
}

/// Suffixes that proxies (Apache, Caddy, Jetty, LiteSpeed, nginx modules) append to an ETag, before or after the quote.
const SUFFIXES: &[&str] = &[
    "-gzip",
    ";gzip",
    ":gzip",
    "--gzip",
    "-br",
    "--br",
    ";br",
    "-zstd",
    "--zstd",
    "-deflate",
    "_gzip",
    ".gz",
    "+gzip",
    "~br",
    "-gzip-br",
    "\"-gzip",
    "\";br",
    ";;;",
    ";gz",
    "-compress",
    " gzip",
    "\"",
];

#[test]
fn position_with_the_suffix_of_a_proxy_is_parsed() {
    let positions =
        [(5, 1), (5, 1 << 40), (6, 7)].map(|(epoch, offset)| Position { epoch, offset });
    let mut texts = Vec::new();
    for at in positions {
        write(&mut texts, at);
        let read = |suffix: &str| {
            let text = [&texts[..], suffix.as_bytes()].concat();
            parse_returned(&text, |text| parse(text, 0, 1))
        };
        for suffix in ["", "-br"].iter().chain(SUFFIXES) {
            assert_eq!(read(suffix), Ok(vec![Since::At(at)]), "{suffix}");
        }
        texts.clear();
    }
    // Sets of several lengths, so that the base64 text ends at each bit position.
    for count in 1..=positions.len() {
        let all = &positions[..count];
        let expected: Vec<Since> = all.iter().copied().map(Since::At).collect();
        let (mut set, mut filtered) = (Vec::new(), Vec::new());
        write_set(&mut set, 0xab, all.iter().copied());
        write_partitions(&mut filtered, count as u16, all.iter().copied());
        for suffix in SUFFIXES {
            let text = [&set[..], suffix.as_bytes()].concat();
            let read = parse_returned(&text, |text| parse(text, 0xab, count));
            assert_eq!(read.as_ref(), Ok(&expected), "{count} {suffix}");
            let of_another = parse_returned(&text, |text| parse(text, 0xac, count));
            assert_eq!(
                of_another,
                Ok(vec![Since::Unknown; count]),
                "{count} {suffix}"
            );
            let text = [&filtered[..], suffix.as_bytes()].concat();
            let read = parse_returned(&text, |text| parse_partitions(text, count as u16));
            assert_eq!(read.as_ref(), Ok(&expected), "{count} {suffix}");
        }
    }
    let one = |text: &str| parse_returned(text.as_bytes(), |text| parse(text, 0, 1));
    for text in [
        "1a-5gzip",
        "x1a-5",
        "live-gzip",
        "*",
        "1a-gzip",
        "urn:uuid:1-2",
    ] {
        assert_eq!(one(text), Err(Malformed), "{text}");
    }
    assert_eq!(one("oldest"), Ok(vec![Since::Oldest]));
}

#[test]
fn later_of_two_positions_is_used() {
    let (early, late, old) = (at(3, 1), at(3, 2), at(2, 9));
    for (one, other, expected) in [
        (early, late, late),
        (late, early, late),
        (old, early, early),
        (late, old, late),
        (Since::Unknown, early, early),
        (early, Since::Unreadable, early),
        (Since::Unreadable, Since::Unknown, Since::Unreadable),
    ] {
        assert_eq!(later_start(one, other, 3), expected, "{one:?} {other:?}");
    }
}

/// The text of a position contains an epoch only where it differs from the one before.
#[test]
fn a_set_of_one_epoch_is_short() {
    let mut text = Vec::new();
    let position = |offset| Position { epoch: 9, offset };
    write_set(&mut text, 1, (0..60).map(position));
    // In base64: 60 offsets of one byte each, and an epoch of four bytes.
    assert_eq!(text.len(), "21-".len() + (64_usize * 8).div_ceil(6));
}

proptest! {
    #[test]
    fn a_position_is_written_in_its_shortest_form(epoch: u32, offset: u64, shift in 0..32_u32) {
        let epoch = epoch >> shift;
        let offset = offset >> (2 * shift);
        let mut text = Vec::new();
        write(&mut text, Position { epoch, offset });
        prop_assert_eq!(text, format!("1{epoch:x}-{offset}").into_bytes());
    }

    #[test]
    fn decimals_are_parsed_as_by_the_standard_library(text in "[0-9]{0,22}") {
        let expected = text.parse::<u64>().ok().filter(|_| text.len() <= 20);
        prop_assert_eq!(parse_decimal(text.as_bytes()), expected);
    }
}
