//! Encodes blocks of header fields with the static table and literals (RFC 7541 section 6).
//!
//! Nothing is inserted into the peer's dynamic table, so its size does not matter. Strings are not Huffman-coded, because responses have
//! few fields and time matters more than their bytes.

use alloc::vec::Vec;

use super::table::STATIC;

/// Marks the first byte of an indexed field.
const INDEXED: u8 = 0x80;
/// Marks the first byte of a literal that every intermediary must send as a literal (RFC 7541 section 6.2.3).
const NEVER_INDEXED: u8 = 0x10;
/// The index of the first `:status`. The next six rows are `:status` with other values.
const STATUS: usize = 8;

/// Appends the pseudo-header field `:status`.
///
/// # Panics
/// If `status` does not have three digits.
pub fn status(out: &mut Vec<u8>, status: u16) {
    assert!(
        (100..1000).contains(&status),
        "status codes have three digits"
    );
    let digits = [100, 10, 1].map(|unit| b'0' + (status / unit % 10) as u8);
    let known = STATIC[STATUS - 1..STATUS + 6].iter();
    match known
        .map(|(_, value)| value.as_bytes())
        .position(|value| value == digits)
    {
        Some(place) => integer(out, INDEXED, 7, STATUS + place),
        None => {
            integer(out, 0, 4, STATUS);
            string(out, &digits);
        }
    }
}

/// Appends a field. The name is written in lower case (RFC 9113 section 8.2).
pub fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let is_secret = name.eq_ignore_ascii_case(b"set-cookie");
    let form = if is_secret { NEVER_INDEXED } else { 0 };
    match index_of(name) {
        Some(index) => integer(out, form, 4, index),
        None => {
            integer(out, form, 4, 0);
            integer(out, 0, 7, name.len());
            out.extend(name.iter().map(u8::to_ascii_lowercase));
        }
    }
    string(out, value);
}

/// The index of the last row of the static table with this name, for fields of responses.
fn index_of(name: &[u8]) -> Option<usize> {
    let of_length: &[(&str, usize)] = match name.len() {
        3 => &[("age", 21)],
        4 => &[("date", 33), ("etag", 34), ("vary", 59), ("link", 45)],
        5 => &[("allow", 22)],
        6 => &[("server", 54)],
        7 => &[("expires", 36)],
        8 => &[("location", 46)],
        10 => &[("set-cookie", 55)],
        11 => &[("retry-after", 53)],
        12 => &[("content-type", 31)],
        13 => &[
            ("cache-control", 24),
            ("last-modified", 44),
            ("accept-ranges", 18),
        ],
        14 => &[("content-length", 28)],
        16 => &[("www-authenticate", 61)],
        27 => &[("access-control-allow-origin", 20)],
        _ => &[],
    };
    let row = of_length
        .iter()
        .find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name));
    row.map(|&(_, index)| index)
}

/// Appends an integer with a prefix of `bits` bits; the other bits of the first byte are those of `form` (RFC 7541 section 5.1).
fn integer(out: &mut Vec<u8>, form: u8, bits: u32, value: usize) {
    let max = (1 << bits) - 1;
    if value < max {
        out.push(form | value as u8);
        return;
    }
    out.push(form | max as u8);
    let mut rest = value - max;
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Appends a string without Huffman coding.
fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    integer(out, 0, 7, bytes.len());
    out.extend_from_slice(bytes);
}
