//! The codec of HTTP/1.x for servers (RFC 9110, RFC 9112): request heads, bodies, response heads, and the grammars of some fields.
//!
//! Invariants: this code reads no socket and no clock, and no bytes of a peer make it panic. A request that two servers could read in two
//! ways (request smuggling) is refused and never repaired. Deliberately not here: routing, connection state, content codings, and HTTP/2
//! ([`crate::http2`]).

pub mod accept;
pub mod body;
pub mod cookie;
pub mod date;
pub mod etag;
pub mod forwarded;
pub mod head;
pub mod origin;
pub mod proxy;
mod refusal;
mod request_line;
pub mod response;

/// Whether `b` is a `tchar`, a character of methods and field names (RFC 9110 section 5.6.2).
#[inline]
pub(crate) const fn is_tchar(b: u8) -> bool {
    TCHARS[b as usize]
}

/// The results of `is_tchar`. A table, because each byte of each field name is checked.
const TCHARS: [bool; 256] = {
    let mut table = [false; 256];
    let mut b = 0;
    while b < 256 {
        table[b] = (b as u8).is_ascii_alphanumeric();
        b += 1;
    }
    let others = b"!#$%&'*+-.^_`|~";
    let mut n = 0;
    while n < others.len() {
        table[others[n] as usize] = true;
        n += 1;
    }
    table
};

/// Whether `value` is allowed as a field value. It may have no control character except the tab, so it cannot begin a new line (RFC 9110
/// section 5.5).
///
/// A field value from outside must be checked with this or a stricter rule. SSE fields need the stricter `sse::is_field_safe`.
pub fn is_field_value(value: &[u8]) -> bool {
    value
        .iter()
        .all(|&b| b == b'\t' || (b >= b' ' && b != 0x7f))
}

/// The value without optional whitespace at both ends, which is spaces and tabs only (RFC 9110 section 5.6.3).
pub(crate) fn trim_ows(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The value of a decimal number, such as a Content-Length. `None` for an empty text, for other characters, and above 64 bits.
pub(crate) fn read_decimal(digits: &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for digit in digits {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        value = value.checked_mul(10)?.checked_add(digit.into())?;
    }
    (!digits.is_empty()).then_some(value)
}

/// The members of a comma-separated list, trimmed and without empty members (RFC 9110 section 5.6.1.2). Only for lists without quoted
/// strings.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&b| b == b',')
        .map(trim_ows)
        .filter(|m| !m.is_empty())
}
