//! Which of our few representations an `Accept` field prefers (RFC 9110 section 12.5.1).
//!
//! Deliberately not a general negotiation: only the types that the server can answer with are told
//! apart, parameters other than `q` are ignored, nothing is allocated.

use super::{list, trim_ows};

/// The representation of ours that the client prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// `text/event-stream`
    EventStream,
    /// `application/json`, `text/json` or `application/problem+json`
    Json,
    /// `text/plain` or `text/*`
    Text,
    /// No preference among ours: no field, `*/*`, or only types that we do not have.
    Any,
}

/// The media range of the highest weight; among equals a named type before a wildcard, then the first.
pub(crate) fn preferred<'b>(values: impl Iterator<Item = &'b [u8]>) -> Accept {
    let mut best = Accept::Any;
    let mut best_rank = (0, false);
    for range in values.flat_map(list) {
        let mut parts = range.split(|&b| b == b';').map(trim_ows);
        let Some(accept) = parts.next().and_then(named) else {
            continue;
        };
        let weight = parts.find_map(quality).unwrap_or(1000);
        let rank = (weight, accept != Accept::Any);
        if weight > 0 && rank > best_rank {
            best = accept;
            best_rank = rank;
        }
    }
    best
}

fn named(range: &[u8]) -> Option<Accept> {
    const NAMES: [(&str, Accept); 7] = [
        ("text/event-stream", Accept::EventStream),
        ("application/json", Accept::Json),
        ("text/json", Accept::Json),
        ("application/problem+json", Accept::Json),
        ("text/plain", Accept::Text),
        ("text/*", Accept::Text),
        ("*/*", Accept::Any),
    ];
    NAMES
        .iter()
        .find(|(name, _)| range.eq_ignore_ascii_case(name.as_bytes()))
        .map(|&(_, accept)| accept)
}

/// `q=0.75` as thousandths; `None` when this is another parameter. A malformed weight counts as 0, which takes the range
/// out.
fn quality(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', digits @ ..] = parameter else {
        return None;
    };
    let (whole, fraction) = match digits {
        [whole] | [whole, b'.'] => (*whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (*whole, fraction),
        _ => return Some(0),
    };
    if !matches!(whole, b'0' | b'1') || !fraction.iter().all(u8::is_ascii_digit) {
        return Some(0);
    }
    let mut thousandths = u16::from(whole - b'0');
    for place in 0..3 {
        thousandths = thousandths * 10 + fraction.get(place).map_or(0, |d| u16::from(d - b'0'));
    }
    Some(thousandths.min(1000))
}
