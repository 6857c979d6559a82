//! HTTP/1.x as a server sees it (RFC 9110, RFC 9112): request heads, bodies, response heads, and
//! the small grammars that travel in header fields.
//!
//! Invariants: nothing here reads a socket or a clock; nothing panics on a peer's bytes; anything that two servers could
//! read in two ways (request smuggling) is refused rather than repaired. Deliberately absent: routing, connection state,
//! HTTP/2 but for its refusal, and content codings.

pub mod accept;
pub mod body;
pub mod cookie;
pub mod date;
pub mod etag;
pub mod forwarded;
pub mod head;
pub mod origin;
pub mod prior;
pub mod proxy;
mod refusal;
mod request_line;
pub mod response;

/// Whether `b` is a `tchar`, a character of methods and field names (RFC 9110 section 5.6.2).
#[inline]
pub(crate) const fn is_tchar(b: u8) -> bool {
    TCHARS[b as usize]
}

/// A table, since every name of every header field is checked.
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

/// Whether `value` may stand in a header field as it is: no control characters save the tab, so
/// nothing can begin a line of its own (RFC 9110 section 5.5).
///
/// Every path on which a header value or an SSE field comes from outside checks this.
pub fn is_field_value(value: &[u8]) -> bool {
    value
        .iter()
        .all(|&b| b == b'\t' || (b >= b' ' && b != 0x7f))
}

/// Without the optional whitespace at both ends: spaces and tabs only (RFC 9110 section 5.6.3).
pub(crate) fn trim_ows(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The members of a comma list, trimmed, empty ones left out (RFC 9110 section 5.6.1.2).
///
/// Quoted strings are not looked into: none of the lists read with this may hold one.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&b| b == b',')
        .map(trim_ows)
        .filter(|m| !m.is_empty())
}
