//! Writes JSON strings (RFC 8259), also with bytes as base64. The callers write objects and arrays. `scan` reads and checks JSON.
//!
//! Invariant: only the required characters are escaped (section 7: quote, backslash, control characters).

pub(crate) mod scan;

pub use scan::{Fault, MAX_DEPTH, is_json};

use alloc::vec::Vec;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Number of bytes that are checked at once: two of the smallest vectors, so that the compiler vectorizes the loop.
const STRIDE_BYTES: usize = 32;
/// For a string of at least this number of bytes, exactly the needed memory is reserved.
const LARGE_BYTES: usize = 64 << 10;
/// Number of bytes that are escaped as one block, from a byte that needs an escape on.
const BLOCK_BYTES: usize = 32;
/// The longest form of a byte: `\u001f`.
const ESCAPED_BYTES_MAX: usize = 6;
/// [`ESCAPED_BYTES_MAX`], rounded up to a length that one instruction copies.
const CELL_BYTES: usize = 8;

/// Appends `text`, which must be UTF-8, as a string with its quotes.
pub fn write_string(out: &mut Vec<u8>, mut text: &[u8]) {
    debug_assert!(core::str::from_utf8(text).is_ok());
    let plain_len = plain_prefix_len(text);
    let len = plain_len + escaped_len(&text[plain_len..]) + 2;
    reserve(out, len);
    out.push(b'"');
    out.extend_from_slice(&text[..plain_len]);
    text = &text[plain_len..];
    // There is no branch, so a byte with an escape costs as much as any other, and a client cannot slow the server down by its choice of
    // bytes.
    while !text.is_empty() {
        let (block, rest) = text.split_at(text.len().min(BLOCK_BYTES));
        let mut written = [0; BLOCK_BYTES * ESCAPED_BYTES_MAX + CELL_BYTES];
        let mut len = 0;
        for byte in block {
            let (cell, cell_len) = &ESCAPED_FORMS[usize::from(*byte)];
            written[len..len + CELL_BYTES].copy_from_slice(cell);
            len += usize::from(*cell_len);
        }
        out.extend_from_slice(&written[..len]);
        let plain_len = plain_prefix_len(rest);
        out.extend_from_slice(&rest[..plain_len]);
        text = &rest[plain_len..];
    }
    out.push(b'"');
}

/// The length of `text` in bytes, with escapes and without quotes.
fn escaped_len(text: &[u8]) -> usize {
    text.iter()
        .map(|byte| usize::from(ESCAPED_FORMS[usize::from(*byte)].1))
        .sum()
}

/// For each byte: its form in a string, padded to `CELL_BYTES`, and the length of the form.
static ESCAPED_FORMS: [([u8; CELL_BYTES], u8); 256] = {
    let mut forms = [([0; CELL_BYTES], 1); 256];
    let mut byte = 0;
    while byte < 256 {
        forms[byte] = escaped_form(byte as u8);
        byte += 1;
    }
    forms
};

const fn escaped_form(byte: u8) -> ([u8; CELL_BYTES], u8) {
    if !is_special(byte) {
        return ([byte, 0, 0, 0, 0, 0, 0, 0], 1);
    }
    let digits = b"0123456789abcdef";
    let (high, low) = (digits[byte as usize >> 4], digits[byte as usize & 15]);
    match short_escape(byte) {
        Some(short) => ([b'\\', short, 0, 0, 0, 0, 0, 0], 2),
        None => (
            [b'\\', b'u', b'0', b'0', high, low, 0, 0],
            ESCAPED_BYTES_MAX as u8,
        ),
    }
}

/// Appends `bytes` as a string with its quotes, in padded standard base64 (RFC 4648 section 4).
pub fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    // The length overflows only if the text would not fit the address space.
    let len = base64::encoded_len(bytes.len(), true).expect("the text fits the address space");
    reserve(out, len + 2);
    out.push(b'"');
    let start = out.len();
    out.resize(start + len, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[start..]);
    assert_eq!(written, Ok(len), "room was made for all of it");
    out.push(b'"');
}

/// Reserves memory. For a large string it reserves exactly `len` bytes, because escapes can make the string six times as long.
fn reserve(out: &mut Vec<u8>, len: usize) {
    match len < LARGE_BYTES {
        true => out.reserve(len),
        false => out.reserve_exact(len),
    }
}

/// The number of bytes before the first byte that needs an escape.
fn plain_prefix_len(text: &[u8]) -> usize {
    let (strides, _) = text.as_chunks::<STRIDE_BYTES>();
    let is_clean = |stride: &&[u8; STRIDE_BYTES]| {
        stride
            .iter()
            .fold(true, |is_clean, &b| is_clean & !is_special(b))
    };
    let clean_bytes = strides.iter().take_while(is_clean).count() * STRIDE_BYTES;
    let rest = &text[clean_bytes..];
    clean_bytes
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
