//! Splits the query of a URL into pairs, and decodes percent escapes (RFC 3986 section 2.1).
//!
//! Invariants: everything is decoded exactly once. `+` is a literal plus, because topic filters and positions may contain it. Bodies of the
//! type `application/x-www-form-urlencoded` are not supported.

use alloc::vec::Vec;

/// A `%` without two hexadecimal digits after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("a percent sign without two hexadecimal digits")]
pub struct DecodeError;

impl core::error::Error for DecodeError {}

/// The pairs of a query in order, not decoded. A pair without `=` has an empty value. Empty pairs are skipped.
pub fn pairs(query: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    query
        .split(|&b| b == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match memchr::memchr(b'=', pair) {
            Some(equals) => (&pair[..equals], &pair[equals + 1..]),
            None => (pair, &b""[..]),
        })
}

/// Appends `raw` to `out`, with its percent escapes decoded once.
///
/// # Errors
/// [`DecodeError`]; then `out` is unchanged.
pub fn decode(raw: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let start = out.len();
    let mut rest = raw;
    while let Some(percent) = memchr::memchr(b'%', rest) {
        out.extend_from_slice(&rest[..percent]);
        let byte = match rest[percent + 1..] {
            [high, low, ..] => hex_value(high)
                .zip(hex_value(low))
                .map(|(high, low)| high << 4 | low),
            _ => None,
        };
        let Some(byte) = byte else {
            out.truncate(start);
            return Err(DecodeError);
        };
        out.push(byte);
        rest = &rest[percent + 3..];
    }
    out.extend_from_slice(rest);
    Ok(())
}

const fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}
