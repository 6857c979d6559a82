//! Positions: how far a subscriber has read, as text for an SSE `id:`, an `ETag` and a URL.
//!
//! The first character of the text is its version:
//! - `1` is a position in one topic: the epoch in hexadecimal, `-`, the offset in decimal.
//! - `2` is a position in a set of topics: the hash of the set in hexadecimal, `-`, and a vector of positions, one for each topic.
//! - `3` is a position of a subscription by filter: the number of partitions in hexadecimal, `-`, and a vector of positions, one for each partition.
//!
//! A vector is base64url. A position in it is a varint: twice the offset, plus 1 if its epoch differs from that of the position before (0 at first). Then
//! the epoch follows as 4 bytes, little endian.

use alloc::string::String;
use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::ids::PartitionId;

/// A point in the history of a topic or a partition: the last message that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// The epoch of the log's life (`base/lives.rs`).
    pub epoch: u32,
    /// The message's offset in its partition. The offsets of successive messages rise, but not always by 1.
    pub offset: u64,
}

impl Position {
    /// The position at this offset, in the life of the log with this epoch.
    pub const fn new(epoch: u32, offset: u64) -> Position {
        Position { epoch, offset }
    }
}

/// Where a subscription starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// The default of the rule and the transport.
    Default,
    /// The next message.
    Live,
    /// The oldest kept message.
    Oldest,
    /// The newest N kept messages.
    Newest(u32),
    /// The first message after this Unix second (`If-Modified-Since` without an `ETag`).
    After(u32),
    /// The first message after this position.
    At(Position),
    /// The client's position belongs to another server or to another set of topics. The client is told of a gap (lost messages),
    /// then gets the oldest message.
    Unknown,
    /// A long-poll sent back text that is no position. The client is told of a gap, then gets the next message. If it got the
    /// oldest message, a client whose proxy alters every position would get the same answer for ever.
    Unreadable,
}

/// Longest suffix that a proxy may have added to a position, in bytes.
const SUFFIX_BYTES_MAX: usize = 32;
/// The maximum number of prefixes of a text that are tried as a position.
const CUTS_MAX: usize = 8;

/// A position that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Appends the text of a position of one topic.
pub fn write(out: &mut Vec<u8>, position: Position) {
    out.push(b'1');
    write_hex(out, position.epoch);
    out.push(b'-');
    write_decimal(out, position.offset);
}

/// The text of a position of one topic.
pub fn text(position: Position) -> String {
    let mut text = Vec::new();
    write(&mut text, position);
    String::from_utf8(text).expect("it is ASCII")
}

/// Appends the text of the positions of a set of topics.
pub fn write_set(out: &mut Vec<u8>, set: u32, positions: impl Iterator<Item = Position>) {
    write_vector(out, b'2', set, positions);
}

/// Appends the text of the positions of a subscription by filter: one for each of `count` partitions.
pub fn write_partitions(
    out: &mut Vec<u8>,
    count: PartitionId,
    positions: impl Iterator<Item = Position>,
) {
    write_vector(out, b'3', count.into(), positions);
}

fn write_vector(
    out: &mut Vec<u8>,
    version: u8,
    head: u32,
    positions: impl Iterator<Item = Position>,
) {
    let mut bytes = Vec::with_capacity(64);
    let mut epoch = 0;
    for position in positions {
        let changes = position.epoch != epoch;
        write_varint(&mut bytes, position.offset << 1 | u64::from(changes));
        if changes {
            epoch = position.epoch;
            bytes.extend_from_slice(&epoch.to_le_bytes());
        }
    }
    out.push(version);
    write_hex(out, head);
    out.push(b'-');
    let (start, len) = (out.len(), bytes.len() * 4);
    out.resize(start + len.div_ceil(3), 0);
    let encoded = URL_SAFE_NO_PAD.encode_slice(&bytes, &mut out[start..]);
    debug_assert_eq!(encoded, Ok(len.div_ceil(3)), "there is room for it");
}

/// Reads the start of a subscription to a set of `count` topics with the hash `set`. Returns one start for each topic. A valid position of another set
/// gives `Unknown` for each.
pub fn parse(text: &[u8], set: u32, count: usize) -> Result<Vec<Since>, Malformed> {
    parse_as(text, b'2', set, count)
}

/// Like [`parse`], for a subscription by filter: one start for each partition. Positions of topics give `Unknown`, even with a single partition, because
/// they say nothing about losses of other topics. So does version `2`, which servers without partitions used for filters.
pub fn parse_partitions(text: &[u8], count: PartitionId) -> Result<Vec<Since>, Malformed> {
    parse_as(text, b'3', count.into(), count.into())
}

/// Reads a start. A position must have the expected version and, before the dash, the expected number. Any other valid position gives `Unknown`.
fn parse_as(
    text: &[u8],
    expected_version: u8,
    expected_head: u32,
    count: usize,
) -> Result<Vec<Since>, Malformed> {
    let all = |since| Ok(alloc::vec![since; count]);
    match text {
        b"" | b"live" | b"newest" => return all(Since::Live),
        b"oldest" => return all(Since::Oldest),
        _ => {}
    }
    let (version, rest) = text.split_first().ok_or(Malformed)?;
    if *version == b'-' {
        return all(Since::Newest(
            parse_decimal(rest)
                .ok_or(Malformed)?
                .try_into()
                .unwrap_or(u32::MAX),
        ));
    }
    let dash = rest.iter().position(|b| *b == b'-').ok_or(Malformed)?;
    let (hex, rest) = (&rest[..dash], &rest[dash + 1..]);
    let head = parse_hex(hex).ok_or(Malformed)?;
    match version {
        b'1' => {
            let offset = parse_decimal(rest).ok_or(Malformed)?;
            match expected_version == b'2' && count == 1 {
                true => all(Since::At(Position::new(head, offset))),
                false => all(Since::Unknown),
            }
        }
        b'2' | b'3' => {
            let positions = parse_vector(rest)?;
            if *version != expected_version || head != expected_head || positions.len() != count {
                return all(Since::Unknown);
            }
            Ok(positions.into_iter().map(Since::At).collect())
        }
        _ => Err(Malformed),
    }
}

/// Parses a position that a client sent back, with the function `parse`. A proxy that compresses an answer may have added a suffix to the `ETag`, such as `-gzip`,
/// `;br`, `--zstd` or `"-gzip`. The suffix is ignored.
pub fn parse_returned(
    text: &[u8],
    parse: impl Fn(&[u8]) -> Result<Vec<Since>, Malformed>,
) -> Result<Vec<Since>, Malformed> {
    let is_position = |since: &Since| matches!(since, Since::At(_));
    let mut parsed = parse(text);
    if matches!(&parsed, Ok(all) if !all.contains(&Since::Unknown)) {
        return parsed;
    }
    let ends = (1..text.len()).rev().take(SUFFIX_BYTES_MAX);
    let cuts = ends.filter(|at| !text[*at].is_ascii_alphanumeric());
    // The longest prefix that is a position is the right one: with a part of the suffix, a set would have another number of topics.
    for cut in cuts.take(CUTS_MAX) {
        match parse(&text[..cut]) {
            Ok(all) if all.iter().all(is_position) => return Ok(all),
            Ok(all) if all.contains(&Since::Unknown) => parsed = parsed.or(Ok(all)),
            _ => {}
        }
    }
    parsed
}

/// The later of two starts that a client sent for the same topic. `epoch` is the current epoch of the logs.
pub fn later_start(one: Since, other: Since, epoch: u32) -> Since {
    let rank = |since: Since| match since {
        Since::At(at) => (1 + u32::from(at.epoch == epoch), at.offset),
        _ => (0, 0),
    };
    match rank(other) > rank(one) {
        true => other,
        false => one,
    }
}

fn parse_vector(text: &[u8]) -> Result<Vec<Position>, Malformed> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| Malformed)?;
    let (mut rest, mut epoch) = (&bytes[..], 0);
    let mut positions = Vec::new();
    while !rest.is_empty() {
        let value = read_varint(&mut rest).ok_or(Malformed)?;
        if value & 1 == 1 {
            let (word, after) = rest.split_first_chunk::<4>().ok_or(Malformed)?;
            epoch = u32::from_le_bytes(*word);
            rest = after;
        }
        positions.push(Position::new(epoch, value >> 1));
    }
    Ok(positions)
}

/// Appends a varint: seven bits in each byte, the low ones first.
pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a varint from the start of `rest`, and removes it there.
#[inline]
pub fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    // Most numbers are small: the lengths of short fields.
    if let Some((&byte, after)) = rest.split_first()
        && byte < 0x80
    {
        *rest = after;
        return Some(byte.into());
    }
    read_long_varint(rest)
}

fn read_long_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..63).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

pub use crore_wire::http::response::write_decimal;

/// Appends a number in hexadecimal without leading zeros.
pub fn write_hex(out: &mut Vec<u8>, value: u32) {
    let digits = (32 - value.leading_zeros()).div_ceil(4).max(1);
    out.extend(
        (0..digits)
            .rev()
            .map(|n| b"0123456789abcdef"[(value >> (4 * n)) as usize & 15]),
    );
}

/// Reads a decimal number. `None` if the text has other characters than digits, or the number overflows.
pub fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |value, b| {
        value
            .checked_mul(10)?
            .checked_add(u64::from(b.is_ascii_digit().then(|| b - b'0')?))
    })
}

/// Reads a hexadecimal number. Leading zeros are refused, so that most dates are no position: in `2026-11-26`, the version is `2` and the number `026`.
fn parse_hex(text: &[u8]) -> Option<u32> {
    let is_padded = text.len() > 1 && text[0] == b'0';
    if text.is_empty() || text.len() > 8 || is_padded || text.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    u32::from_str_radix(
        core::str::from_utf8(text)
            .ok()
            .filter(|t| !t.starts_with('+'))?,
        16,
    )
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn one_topic_round_trips(epoch: u32, offset: u64) {
            let mut text = Vec::new();
            write(&mut text, Position { epoch, offset });
            prop_assert_eq!(parse(&text, 0, 1), Ok(alloc::vec![Since::At(Position { epoch, offset })]));
            prop_assert_eq!(parse(&text, 0, 2), Ok(alloc::vec![Since::Unknown; 2]));
        }

        #[test]
        fn a_set_round_trips_and_another_set_is_unknown(
            set: u32, positions in prop::collection::vec((0u32..3, 0u64..1 << 62), 1..40),
        ) {
            let positions: Vec<_> =
                positions.into_iter().map(|(epoch, offset)| Position { epoch, offset }).collect();
            let mut text = Vec::new();
            write_set(&mut text, set, positions.iter().copied());
            let expected: Vec<_> = positions.iter().copied().map(Since::At).collect();
            prop_assert_eq!(parse(&text, set, expected.len()), Ok(expected.clone()));
            prop_assert_eq!(parse(&text, !set, expected.len()), Ok(alloc::vec![Since::Unknown; expected.len()]));
        }

        #[test]
        fn any_bytes_are_read_or_refused(text: Vec<u8>, count in 1usize..4) {
            if let Ok(since) = parse(&text, 7, count) {
                prop_assert_eq!(since.len(), count);
            }
        }
    }

    #[test]
    fn partitions_round_trip_and_others_are_unknown() {
        let at = |offset| Position { epoch: 7, offset };
        let (mut three, mut set) = (Vec::new(), Vec::new());
        write_partitions(&mut three, 3, [1, 2, 300].into_iter().map(at));
        write_set(&mut set, 3, [1, 2, 300].into_iter().map(at));
        let expected = [1, 2, 300].map(|offset| Since::At(at(offset)));
        assert_eq!(parse_partitions(&three, 3), Ok(expected.to_vec()));
        for (text, count) in [(&three, 4), (&set, 3)] {
            let unknown = alloc::vec![Since::Unknown; count.into()];
            assert_eq!(parse_partitions(text, count), Ok(unknown));
        }
        assert_eq!(
            parse_partitions(b"17-3", 1),
            Ok(alloc::vec![Since::Unknown])
        );
        assert_eq!(parse(&three, 3, 3), Ok(alloc::vec![Since::Unknown; 3]));
        assert_eq!(
            parse_partitions(b"oldest", 2),
            Ok(alloc::vec![Since::Oldest; 2])
        );
        for bad in ["3-", "33-*", "3", "3zz-AA", "4a-AA"] {
            assert_eq!(parse_partitions(bad.as_bytes(), 3), Err(Malformed), "{bad}");
        }
    }

    #[test]
    fn words_and_counts_are_starts() {
        assert_eq!(parse(b"oldest", 0, 1), Ok(alloc::vec![Since::Oldest]));
        assert_eq!(parse(b"live", 0, 2), Ok(alloc::vec![Since::Live; 2]));
        assert_eq!(parse(b"-5", 0, 1), Ok(alloc::vec![Since::Newest(5)]));
        for bad in [
            "4aa-1",
            "1-1",
            "1zz-1",
            "1a-",
            "1a-x",
            "1a-99999999999999999999",
            "-",
            "--1",
            "1a-1\n",
            "2a-*",
        ] {
            assert_eq!(parse(bad.as_bytes(), 0, 1), Err(Malformed), "{bad}");
        }
    }
}
