//! Parses one line of a batch publish (`application/x-ndjson`): a JSON object (RFC 8259) with a topic and a message. A line is read in one
//! pass, without building a tree of JSON values.
//!
//! | field | value |
//! |---|---|
//! | `topic` | a string, required |
//! | `data` | a string means its text; any other JSON value means its JSON text, exactly as written |
//! | `data_base64` | in place of `data`: bytes, in the standard alphabet with padding (RFC 4648 section 4) |
//! | `content_type`, `event`, `key` | strings, optional |
//! | `idempotency_key` | a string, optional |
//! | `ttl_s` | a whole number of seconds, optional |
//!
//! `null` means that the field is absent, except for `topic` and `data`: serialisers write `null` for a member without a value.
//!
//! Invariants: an accepted line is valid JSON and UTF-8, also inside `data`. A string without escapes is a slice of the line and is not
//! copied. Unknown and repeated fields are refused, so that a typing error is noticed. The caller checks topic names and content types.

use crate::json::Fault;
use crate::json::scan::{Scan, Text};
use alloc::vec::Vec;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub use crate::json::MAX_DEPTH;

/// Buffers for values that are not slices of the line: decoded strings and decoded base64. The buffers keep their memory between lines, so
/// the caller should drop them with the batch.
#[derive(Debug, Default)]
pub struct Scratch {
    text: Vec<u8>,
    bytes: Vec<u8>,
}

impl Scratch {
    /// The name of the unknown field, if the last line was refused as [`LineError::UnknownField`].
    pub fn unknown_field(&self) -> &[u8] {
        &self.text
    }
}

/// Splits a body into its first line, without the line end, and the rest.
#[inline]
pub fn split_line(body: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr::memchr(b'\n', body).unwrap_or(body.len());
    let rest = body.get(end + 1..).unwrap_or_default();
    (body[..end].trim_ascii(), rest)
}

/// A guess of the topic of a line, for a caller that prefetches. [`parse`] may still refuse the line.
#[inline]
pub fn leading_topic(line: &[u8]) -> Option<&[u8]> {
    let value = line.strip_prefix(b"{\"topic\":")?.trim_ascii_start();
    let text = value.strip_prefix(b"\"")?;
    Some(&text[..memchr::memchr(b'"', text)?])
}

/// One message to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The topic: UTF-8, but not yet checked as a name.
    pub topic: &'a [u8],
    /// The message; UTF-8 unless `binary` is set.
    pub data: &'a [u8],
    /// Whether the message was in `data_base64`.
    pub binary: bool,
    /// The content type; empty when the line has none.
    pub content_type: &'a [u8],
    /// The event's name; empty when the line has none.
    pub event: &'a [u8],
    /// The message's key; empty when the line has none.
    pub key: &'a [u8],
    /// The idempotency key, if the line has one. A retry of the publish has the same key.
    pub idempotency_key: Option<&'a [u8]>,
    /// The message's lifetime in seconds; larger values become `u32::MAX`.
    pub ttl_s: Option<u32>,
}

/// A field of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Field {
    Topic,
    Data,
    DataBase64,
    ContentType,
    Event,
    Key,
    IdempotencyKey,
    TtlS,
}

/// The names of the fields of a line.
pub static FIELDS: [&str; 8] = [
    "topic",
    "data",
    "data_base64",
    "content_type",
    "event",
    "key",
    "idempotency_key",
    "ttl_s",
];

/// Why a line was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}", self.reason())]
pub enum LineError {
    /// The line does not begin with `{`.
    NotObject,
    /// The line is not JSON, or `data` nests too deep.
    Json(Fault),
    /// A field that is not in [`FIELDS`].
    UnknownField,
    /// A field that occurs twice.
    DuplicateField(Field),
    /// `topic` is missing.
    NoTopic,
    /// This field must be a string.
    NotString(Field),
    /// `ttl_s` is not a whole number in digits.
    BadTtl,
    /// Both `data` and `data_base64` are missing.
    NoData,
    /// Both `data` and `data_base64` are present.
    TwoData,
    /// `data_base64` is not padded base64 (RFC 4648 section 4).
    BadBase64,
}

/// The name of a field, followed by `words`.
macro_rules! words {
    ($field:expr, $words:literal) => {
        match $field {
            Field::Topic => concat!("topic", $words),
            Field::Data => concat!("data", $words),
            Field::DataBase64 => concat!("data_base64", $words),
            Field::ContentType => concat!("content_type", $words),
            Field::Event => concat!("event", $words),
            Field::Key => concat!("key", $words),
            Field::IdempotencyKey => concat!("idempotency_key", $words),
            Field::TtlS => concat!("ttl_s", $words),
        }
    };
}

impl LineError {
    /// The reason, in words for the publisher.
    pub const fn reason(&self) -> &'static str {
        match self {
            LineError::NotObject => {
                "not a JSON object; each line is one, without brackets around or commas between them"
            }
            LineError::Json(Fault::Trailing) => {
                "not JSON: something follows the object; each object needs a line of its own (curl -d removes the ends of lines, --data-binary keeps them)"
            }
            LineError::Json(fault) => fault.reason(),
            LineError::UnknownField => {
                "an unknown field; a line has topic, data, data_base64, content_type, event, key, idempotency_key and ttl_s"
            }
            LineError::DuplicateField(field) => words!(field, " comes twice"),
            LineError::NoTopic => "topic is missing",
            LineError::NotString(field) => words!(field, " must be a string"),
            LineError::BadTtl => "ttl_s must be a whole number of seconds",
            LineError::NoData => "data is missing, and data_base64 too",
            LineError::TwoData => "data and data_base64 are both there; leave one out",
            LineError::BadBase64 => "data_base64 is not padded standard base64",
        }
    }
}

impl core::error::Error for LineError {}

impl From<Fault> for LineError {
    fn from(fault: Fault) -> Self {
        LineError::Json(fault)
    }
}

/// Parses one line, with or without its line end.
///
/// # Errors
///
/// The first fault of the line. `scratch` can still be used for other lines.
pub fn parse<'a>(line: &'a [u8], scratch: &'a mut Scratch) -> Result<Line<'a>, LineError> {
    scratch.text.clear();
    scratch.bytes.clear();
    let mut scan = Scan::new(line);
    let fields = read_fields(&mut scan, scratch)?;
    let topic = fields.topic.ok_or(LineError::NoTopic)?;
    let not_null = |span: Option<Span>| span.filter(|span| !matches!(span, Span::Null));
    let (data, binary) = match (fields.data, not_null(fields.data_base64)) {
        (Some(data), None) => (data, false),
        (None, Some(bytes)) => (bytes, true),
        (None, None) => return Err(LineError::NoData),
        (Some(_), Some(_)) => return Err(LineError::TwoData),
    };
    let scratch = &*scratch;
    let optional = |span: Option<Span>| span.map_or(&b""[..], |span| span.slice(line, scratch));
    Ok(Line {
        topic: topic.slice(line, scratch),
        data: data.slice(line, scratch),
        binary,
        content_type: optional(fields.content_type),
        event: optional(fields.event),
        key: optional(fields.key),
        idempotency_key: not_null(fields.idempotency_key).map(|span| span.slice(line, scratch)),
        ttl_s: not_null(fields.ttl_s).map(|span| parse_seconds(span.slice(line, scratch))),
    })
}

/// Where the bytes of a field are. A span becomes a slice only after the whole line is read, because the scratch buffer may move when it
/// grows.
#[derive(Clone, Copy)]
enum Span {
    /// These bytes of the line.
    Line { start: usize, end: usize },
    /// These bytes of [`Scratch::text`].
    Text { start: usize, end: usize },
    /// All of [`Scratch::bytes`].
    Bytes,
    /// The value is `null`.
    Null,
}

impl Span {
    fn slice<'a>(self, line: &'a [u8], scratch: &'a Scratch) -> &'a [u8] {
        match self {
            Span::Line { start, end } => &line[start..end],
            Span::Text { start, end } => &scratch.text[start..end],
            Span::Bytes => &scratch.bytes,
            Span::Null => b"",
        }
    }
}

#[derive(Default)]
struct Fields {
    topic: Option<Span>,
    data: Option<Span>,
    data_base64: Option<Span>,
    content_type: Option<Span>,
    event: Option<Span>,
    key: Option<Span>,
    idempotency_key: Option<Span>,
    ttl_s: Option<Span>,
}

/// Reads the fields of the whole line.
fn read_fields(scan: &mut Scan<'_>, scratch: &mut Scratch) -> Result<Fields, LineError> {
    let mut fields = Fields::default();
    if scan.peek() != Some(b'{') {
        return Err(LineError::NotObject);
    }
    scan.step();
    if scan.peek() == Some(b'}') {
        return Err(LineError::NoTopic);
    }
    loop {
        let field = read_key(scan, scratch)?;
        let span = read_value(scan, scratch, field)?;
        let slot = match field {
            Field::Topic => &mut fields.topic,
            Field::Data => &mut fields.data,
            Field::DataBase64 => &mut fields.data_base64,
            Field::ContentType => &mut fields.content_type,
            Field::Event => &mut fields.event,
            Field::Key => &mut fields.key,
            Field::IdempotencyKey => &mut fields.idempotency_key,
            Field::TtlS => &mut fields.ttl_s,
        };
        if slot.replace(span).is_some() {
            return Err(LineError::DuplicateField(field));
        }
        match scan.peek().ok_or(Fault::Incomplete)? {
            b',' => scan.step(),
            b'}' => break,
            _ => return Err(Fault::ExpectedComma.into()),
        }
    }
    scan.step();
    scan.end()?;
    Ok(fields)
}

/// Reads a field's name and the colon after it. Only names with escapes, which are rare, are decoded.
fn read_key(scan: &mut Scan<'_>, scratch: &mut Scratch) -> Result<Field, LineError> {
    scan.quote()?;
    let found = match field_named(scan.rest()) {
        Some((field, len)) => {
            scan.skip(len);
            Some(field)
        }
        None => read_escaped_key(scan, scratch)?,
    };
    scan.colon()?;
    found.ok_or(LineError::UnknownField)
}

/// The field whose name is at the beginning of `rest`, and the length of the name with its closing quote. Without a loop over the fields,
/// each comparison has a constant length and becomes a comparison of machine words.
fn field_named(rest: &[u8]) -> Option<(Field, usize)> {
    if rest.starts_with(b"topic\"") {
        Some((Field::Topic, 6))
    } else if rest.starts_with(b"data\"") {
        Some((Field::Data, 5))
    } else if rest.starts_with(b"event\"") {
        Some((Field::Event, 6))
    } else if rest.starts_with(b"key\"") {
        Some((Field::Key, 4))
    } else if rest.starts_with(b"ttl_s\"") {
        Some((Field::TtlS, 6))
    } else if rest.starts_with(b"idempotency_key\"") {
        Some((Field::IdempotencyKey, 16))
    } else if rest.starts_with(b"data_base64\"") {
        Some((Field::DataBase64, 12))
    } else if rest.starts_with(b"content_type\"") {
        Some((Field::ContentType, 13))
    } else {
        None
    }
}

/// Reads a name that [`field_named`] does not find, because the name is unknown or has escapes.
#[cold]
fn read_escaped_key(
    scan: &mut Scan<'_>,
    scratch: &mut Scratch,
) -> Result<Option<Field>, LineError> {
    let start = scratch.text.len();
    let text = scan.string(&mut scratch.text)?;
    if !text.escaped {
        scratch
            .text
            .extend_from_slice(scan.slice(text.start, text.end));
    }
    // `field_named` expects the closing quote, and no known name contains a quote.
    scratch.text.push(b'"');
    let name = &scratch.text[start..];
    let Some((field, _)) = field_named(name).filter(|&(_, len)| len == name.len()) else {
        scratch.text.pop();
        scratch.text.drain(..start);
        return Ok(None);
    };
    scratch.text.truncate(start);
    Ok(Some(field))
}

fn read_value(scan: &mut Scan<'_>, scratch: &mut Scratch, field: Field) -> Result<Span, LineError> {
    let first = scan.peek().ok_or(Fault::Incomplete)?;
    if first != b'"' {
        return match field {
            Field::Data => {
                let start = scan.at();
                scan.value()?;
                let end = scan.at();
                Ok(Span::Line { start, end })
            }
            Field::Topic => Err(LineError::NotString(field)),
            _ if first == b'n' => {
                scan.value()?;
                Ok(Span::Null)
            }
            Field::TtlS => {
                let start = scan.at();
                scan.value()?;
                let end = scan.at();
                let is_number = scan.slice(start, end).iter().all(u8::is_ascii_digit);
                is_number
                    .then_some(Span::Line { start, end })
                    .ok_or(LineError::BadTtl)
            }
            field => Err(LineError::NotString(field)),
        };
    }
    if matches!(field, Field::TtlS) {
        return Err(LineError::BadTtl);
    }
    scan.step();
    let start = scratch.text.len();
    let text = scan.string(&mut scratch.text)?;
    let Text { start, end, .. } = if text.escaped {
        let end = scratch.text.len();
        Text { start, end, ..text }
    } else {
        text
    };
    if matches!(field, Field::DataBase64) {
        let encoded = if text.escaped {
            &scratch.text[start..end]
        } else {
            scan.slice(start, end)
        };
        // This may append to the bytes of an earlier `data_base64`, but a line with two such fields is refused.
        return match STANDARD.decode_vec(encoded, &mut scratch.bytes) {
            Ok(()) => Ok(Span::Bytes),
            Err(_) => Err(LineError::BadBase64),
        };
    }
    Ok(if text.escaped {
        Span::Text { start, end }
    } else {
        Span::Line { start, end }
    })
}

/// The value of decimal digits; larger values become `u32::MAX`.
fn parse_seconds(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |value: u32, digit| {
        value
            .saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_field_that_it_is_about() {
        for (line, words) in [
            (
                r#"{"topic":"a","data":1,"event":2}"#,
                "event must be a string",
            ),
            (r#"{"topic":"a","key":"b","key":"c"}"#, "key comes twice"),
            (r#"{"data":1}"#, "topic is missing"),
            (
                r#"{"topic":"a","evnet":1}"#,
                "a line has topic, data, data_base64",
            ),
        ] {
            let error = parse(line.as_bytes(), &mut Scratch::default()).unwrap_err();
            assert!(error.reason().contains(words), "{error}");
        }
        let mut scratch = Scratch::default();
        for (line, name) in [
            (r#"{"topic":"a\n","evnet":1}"#, "evnet"),
            (r#"{"topic":"a\n","ev\u006eet\"":1}"#, "evnet\""),
            (r#"{"":1}"#, ""),
        ] {
            let error = parse(line.as_bytes(), &mut scratch).unwrap_err();
            assert_eq!(error, LineError::UnknownField);
            assert_eq!(scratch.unknown_field(), name.as_bytes());
        }
    }
}
