//! Entity tags that clients send back (RFC 9110 section 8.8.3).
//!
//! Looser than the RFC on purpose: our tags are positions, and scripts send them back without quotes.

use super::trim_ows;

/// The first tag of an `If-None-Match` value, without quotes: of `"x"`, `W/"x"` or an unquoted `x`.
///
/// `None` for `*`, for an empty tag, and for anything that is not a tag.
pub fn first_entity_tag(value: &[u8]) -> Option<&[u8]> {
    let value = trim_ows(value);
    let quoted = value
        .strip_prefix(b"W/")
        .or_else(|| value.strip_prefix(b"w/"));
    let tag = match quoted.unwrap_or(value) {
        [b'"', rest @ ..] => &rest[..memchr::memchr(b'"', rest)?],
        // Weak and not quoted: `W/x` may as well be a tag of its own, but not one that we sent.
        _ if quoted.is_some() => return None,
        bare => trim_ows(&bare[..memchr::memchr(b',', bare).unwrap_or(bare.len())]),
    };
    let fits = |&b: &u8| b > b' ' && b != 0x7f && b != b'"';
    (!tag.is_empty() && tag != b"*" && tag.iter().all(fits)).then_some(tag)
}
