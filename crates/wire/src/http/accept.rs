//! Reads the `Accept` fields of a request: the representation that the client prefers (RFC 9110 section 12.5.1).
//!
//! The server offers three choices, each for different resources. [`read`] makes two of them: an event stream or one message, and JSON or
//! text. [`prefers_open_metrics`] makes the third: OpenMetrics or the text format of Prometheus. There is deliberately no general
//! negotiation: types that the server never sends are ignored, and so are all parameters except `q`.

use super::trim_ows;

/// The client's preferences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// Whether the client names `text/event-stream` with a weight above 0. The weight is not compared with other weights, because a client
    /// that names this type lists other types only as a fallback.
    pub events: bool,
    /// Whether the client prefers JSON to text.
    pub json: bool,
}

/// A type that the server can send, or a range that contains one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Range {
    EventStream,
    Json,
    OpenMetrics,
    Text,
    Any,
}

/// Reads all `Accept` fields of a request. Of JSON and text, the type with the higher weight wins. At equal weights, a named type wins over
/// `*/*`, and the first of two named types wins.
pub fn read<'b>(values: impl Iterator<Item = &'b [u8]>) -> Accept {
    let mut accept = Accept::default();
    let mut best_rank = (0, false);
    for (range, weight) in ranges(values) {
        let rank = (weight, range != Range::Any);
        match range {
            Range::EventStream => accept.events = true,
            Range::OpenMetrics => {}
            _ if rank <= best_rank => {}
            range => {
                accept.json = range == Range::Json;
                best_rank = rank;
            }
        }
    }
    accept
}

/// Whether the client prefers metrics as OpenMetrics: it names that type, and gives text no higher weight.
pub fn prefers_open_metrics<'b>(values: impl Iterator<Item = &'b [u8]>) -> bool {
    let (mut open_metrics, mut text) = (0, 0);
    for (range, weight) in ranges(values) {
        match range {
            Range::OpenMetrics => open_metrics = weight.max(open_metrics),
            Range::Text => text = weight.max(text),
            _ => {}
        }
    }
    open_metrics > 0 && open_metrics >= text
}

/// The media ranges that the server knows and the client accepts, with weights in thousandths.
fn ranges<'b>(values: impl Iterator<Item = &'b [u8]>) -> impl Iterator<Item = (Range, u16)> {
    let members = values.flat_map(|value| split_unquoted(value, b','));
    members.filter_map(|member| {
        let mut parts = split_unquoted(member, b';').map(trim_ows);
        let range = range_of(parts.next()?)?;
        let weight = parts.find_map(quality).unwrap_or(1000);
        (weight > 0).then_some((range, weight))
    })
}

/// Splits at `separator`, but not inside quoted strings (RFC 9110 section 5.6.4).
fn split_unquoted(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    value.split(move |&b| {
        match b {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_quoted,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
        b == separator && !is_quoted
    })
}

fn range_of(name: &[u8]) -> Option<Range> {
    const NAMES: [(&str, Range); 9] = [
        ("text/event-stream", Range::EventStream),
        ("application/json", Range::Json),
        ("text/json", Range::Json),
        ("application/problem+json", Range::Json),
        ("application/*", Range::Json),
        ("application/openmetrics-text", Range::OpenMetrics),
        ("text/plain", Range::Text),
        ("text/*", Range::Text),
        ("*/*", Range::Any),
    ];
    NAMES
        .iter()
        .find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))
        .map(|&(_, range)| range)
}

/// The value of `q=0.75` in thousandths; `None` for another parameter. A malformed weight counts as 0, "not acceptable".
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
    for digit_index in 0..3 {
        thousandths =
            thousandths * 10 + fraction.get(digit_index).map_or(0, |d| u16::from(d - b'0'));
    }
    Some(thousandths.min(1000))
}
