//! Reads the entity tags that clients send back (RFC 9110 section 8.8.3).
//!
//! Deliberately more lenient than the RFC. Our tags are positions. Scripts send them back without quotes, and proxies add `W/` or a suffix
//! for the content coding.

use super::list;

/// The tags of a list, without `W/` and without quotes around them: `W/"x", "y"-gzip` gives `x` and `y"-gzip`. Escaped quotes are removed
/// too. The caller knows the format of its tags and must handle a suffix. Our tags contain no comma, quote or backslash.
pub fn entity_tags(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    list(value).map(opaque_tag).filter(|tag| !tag.is_empty())
}

/// A tag without `W/` and without quotes.
pub fn opaque_tag(mut tag: &[u8]) -> &[u8] {
    while let [b'W' | b'w', b'/', rest @ ..] | [b'"' | b'\'' | b'\\', rest @ ..] = tag {
        tag = rest;
    }
    while let [rest @ .., b'"' | b'\'' | b'\\'] = tag {
        tag = rest;
    }
    tag
}
