//! Entity tags that clients send back (RFC 9110 section 8.8.3).
//!
//! Looser than the RFC on purpose: our tags are positions, and scripts send them back without quotes, and proxies on the way
//! with a `W/`, or with a suffix for the coding in which they passed the message on.

use super::list;

/// The tags of a list without quotes (escaped ones too) and `W/`: of `W/"x", "y"-gzip` they are `x`
/// and `y"-gzip`. The caller, which knows the form of its tags, judges the suffix. No tag of ours has a comma, a quote or a backslash.
pub fn entity_tags(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    list(value).map(undress).filter(|tag| !tag.is_empty())
}

/// A tag without quotes and without `W/`.
pub fn undress(mut tag: &[u8]) -> &[u8] {
    while let [b'W' | b'w', b'/', rest @ ..] | [b'"' | b'\'' | b'\\', rest @ ..] = tag {
        tag = rest;
    }
    while let [rest @ .., b'"' | b'\'' | b'\\'] = tag {
        tag = rest;
    }
    tag
}
