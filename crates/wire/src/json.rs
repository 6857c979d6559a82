//! JSON as the server writes it (RFC 8259): strings, and bytes as base64.
//!
//! Invariants: only the required characters are escaped (section 7: quote, backslash, control characters), so that text
//! passes nearly as it is. Objects and arrays are put together by the callers.

use alloc::vec::Vec;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// How many bytes are checked at once: two vectors of the smallest kind, so that the compiler uses them.
const STRIDE: usize = 32;
/// Strings of this length get room for themselves only.
const LARGE: usize = 64 << 10;

/// Appends `text`, which must be UTF-8, as a string with its quotes.
pub fn write_string(out: &mut Vec<u8>, mut text: &[u8]) {
    debug_assert!(core::str::from_utf8(text).is_ok());
    let plain = plain_prefix(text);
    let len = plain + escaped_len(&text[plain..]) + 2;
    // A large string may become six times as long: it gets its room at once, and no more.
    match len < LARGE {
        true => out.reserve(len),
        false => out.reserve_exact(len),
    }
    out.push(b'"');
    out.extend_from_slice(&text[..plain]);
    text = &text[plain..];
    while !text.is_empty() {
        let special = text.iter().take_while(|b| is_special(**b)).count();
        for byte in &text[..special] {
            write_escape(out, *byte);
        }
        text = &text[special..];
        let plain = plain_prefix(text);
        out.extend_from_slice(&text[..plain]);
        text = &text[plain..];
    }
    out.push(b'"');
}

/// The bytes that `text` takes between the quotes.
fn escaped_len(text: &[u8]) -> usize {
    text.iter()
        .map(|byte| ESCAPED_LEN[usize::from(*byte)])
        .map(usize::from)
        .sum()
}

/// The bytes that each byte takes.
const ESCAPED_LEN: [u8; 256] = {
    let mut lens = [1; 256];
    let mut byte = 0;
    while byte < 256 {
        if is_special(byte as u8) {
            lens[byte] = match short(byte as u8) {
                Some(_) => 2,
                None => 6,
            };
        }
        byte += 1;
    }
    lens
};

/// Appends `bytes` as a string with its quotes: base64 in the standard alphabet, padded (RFC 4648
/// section 4).
pub fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    let start = out.len();
    // The length overflows only where the bytes would not fit the address space.
    let len = base64::encoded_len(bytes.len(), true).expect("the text fits the address space");
    out.resize(start + len, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[start..]);
    assert_eq!(written, Ok(len), "room was made for all of it");
    out.push(b'"');
}

/// How many bytes come before the first that must be escaped.
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

/// The letter that stands for a special byte behind a backslash, if there is one.
const fn short(byte: u8) -> Option<u8> {
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

fn write_escape(out: &mut Vec<u8>, byte: u8) {
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
    match short(byte) {
        Some(short) => out.extend_from_slice(&[b'\\', short]),
        None => {
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
        }
    }
}
