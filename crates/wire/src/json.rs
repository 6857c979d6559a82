//! Writes JSON strings (RFC 8259), also with bytes as base64. The callers write objects and arrays. `scan` reads and checks JSON.
//!
//! Invariant: only the required characters are escaped (section 7: quote, backslash, control characters).

pub(crate) mod scan;

pub use scan::{Fault, MAX_DEPTH, is_json};

use alloc::vec::Vec;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Number of bytes that are checked at once: two of the smallest vectors, so that the compiler vectorizes the loop.
const STRIDE: usize = 32;
/// For a string of at least this number of bytes, exactly the needed memory is reserved.
const LARGE: usize = 64 << 10;
/// Number of bytes that are escaped as one block, from a byte that needs an escape on.
const BLOCK: usize = 32;
/// The longest form of a byte: `\u001f`.
const ESCAPED_MAX: usize = 6;
/// [`ESCAPED_MAX`], rounded up to a length that one instruction copies.
const CELL: usize = 8;

/// Appends `text`, which must be UTF-8, as a string with its quotes.
pub fn write_string(out: &mut Vec<u8>, mut text: &[u8]) {
    debug_assert!(core::str::from_utf8(text).is_ok());
    let plain = plain_prefix(text);
    let len = plain + escaped_len(&text[plain..]) + 2;
    make_room(out, len);
    out.push(b'"');
    out.extend_from_slice(&text[..plain]);
    text = &text[plain..];
    // There is no branch, so a byte with an escape costs as much as any other. So a client cannot slow the server down by its choice of
    // bytes.
    while !text.is_empty() {
        let (block, rest) = text.split_at(text.len().min(BLOCK));
        let mut written = [0; BLOCK * ESCAPED_MAX + CELL];
        let mut len = 0;
        for byte in block {
            let (cell, taken) = &ESCAPED[usize::from(*byte)];
            written[len..len + CELL].copy_from_slice(cell);
            len += usize::from(*taken);
        }
        out.extend_from_slice(&written[..len]);
        let plain = plain_prefix(rest);
        out.extend_from_slice(&rest[..plain]);
        text = &rest[plain..];
    }
    out.push(b'"');
}

/// The length of `text` in bytes, with escapes and without quotes.
fn escaped_len(text: &[u8]) -> usize {
    text.iter()
        .map(|byte| usize::from(ESCAPED[usize::from(*byte)].1))
        .sum()
}

/// For each byte: its form in a string, padded to `CELL`, and the length of the form.
static ESCAPED: [([u8; CELL], u8); 256] = {
    let mut all = [([0; CELL], 1); 256];
    let mut byte = 0;
    while byte < 256 {
        all[byte] = escaped(byte as u8);
        byte += 1;
    }
    all
};

const fn escaped(byte: u8) -> ([u8; CELL], u8) {
    if !is_special(byte) {
        return ([byte, 0, 0, 0, 0, 0, 0, 0], 1);
    }
    let digits = b"0123456789abcdef";
    let (high, low) = (digits[byte as usize >> 4], digits[byte as usize & 15]);
    match short_escape(byte) {
        Some(short) => ([b'\\', short, 0, 0, 0, 0, 0, 0], 2),
        None => (
            [b'\\', b'u', b'0', b'0', high, low, 0, 0],
            ESCAPED_MAX as u8,
        ),
    }
}

/// Appends `bytes` as a string with its quotes, in padded standard base64 (RFC 4648 section 4).
pub fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    // The length overflows only if the text would not fit the address space.
    let len = base64::encoded_len(bytes.len(), true).expect("the text fits the address space");
    make_room(out, len + 2);
    out.push(b'"');
    let start = out.len();
    out.resize(start + len, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[start..]);
    assert_eq!(written, Ok(len), "room was made for all of it");
    out.push(b'"');
}

/// Reserves memory. For a large string it reserves exactly `len` bytes, because escapes can make the string six times as long.
fn make_room(out: &mut Vec<u8>, len: usize) {
    match len < LARGE {
        true => out.reserve(len),
        false => out.reserve_exact(len),
    }
}

/// The number of bytes before the first byte that needs an escape.
fn plain_prefix(text: &[u8]) -> usize {
    let (strides, _) = text.as_chunks::<STRIDE>();
    let clean = |stride: &&[u8; STRIDE]| stride.iter().fold(true, |all, &b| all & !is_special(b));
    let skipped = strides.iter().take_while(clean).count() * STRIDE;
    let rest = &text[skipped..];
    skipped
        + rest
            .iter()
            .position(|&b| is_special(b))
            .unwrap_or(rest.len())
}

const fn is_special(byte: u8) -> bool {
    (byte < b' ') | (byte == b'"') | (byte == b'\\')
}

/// The character after the backslash in the short escape of a special byte, if it has one.
const fn short_escape(byte: u8) -> Option<u8> {
    Some(match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0C => b'f',
        _ => return None,
    })
}
