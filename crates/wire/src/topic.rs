//! Decodes, checks and matches topic names and topic filters. A name is UTF-8 text whose levels are separated by `/`. A filter may also
//! contain MQTT's wildcards (MQTT 5.0 section 4.7).
//!
//! Invariants:
//! * A checked name has no control character, so it is safe in a header or an SSE field.
//! * A checked name has no wildcard, so it cannot be confused with a filter that has one.
//! * Names in a URL are decoded once.
//! * The hash of a name is the same in every version, because positions and the partitions of topics depend on it.
//!
//! Deliberately not here: shared subscriptions (`$share`, see [`crate::mqtt::Filter`]) and authorization.

use alloc::string::String;
use alloc::vec::Vec;

use crate::form;

/// Why a name or a filter was refused (400 over HTTP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}", self.reason())]
pub enum TopicError {
    /// The name or filter is empty.
    Empty,
    /// The name or filter is longer than the setting allows.
    #[display("has {len} bytes, more than limits.topic_bytes allows ({max})")]
    TooLong {
        /// The decoded length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The name or filter is not UTF-8.
    NotUtf8,
    /// The name or filter has a control character: C0 (NUL included), DEL or C1.
    Control,
    /// The name has `+` or `#`.
    Wildcard,
    /// In the filter, `+` or `#` is not a whole level, or `#` is not the last level.
    Misplaced,
    /// The name in a path has an empty level: two adjacent slashes, or a slash at the beginning or the end.
    EmptyLevel,
    /// The name in a URL has a level `.` or `..`, which a proxy would resolve.
    DotSegment,
    /// The name in a path has an encoded slash, which only some proxies decode.
    EncodedSlash,
    /// The name in a URL has a percent sign without two hexadecimal digits after it.
    BadEscape,
    /// The name begins with `$`, which is not allowed here.
    Reserved,
}

impl TopicError {
    /// The fault in words that follow "the topic" or "the filter".
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "is empty (in a URL # is %23)",
            Self::TooLong { .. } => "is longer than limits.topic_bytes allows",
            Self::NotUtf8 => "is not UTF-8",
            Self::Control => {
                "has a control character (U+0000 to U+001F, U+007F to U+009F); leave it out"
            }
            Self::Wildcard => {
                "has a + or #, which only filters may have: subscribe with ?filter=, where + is %2B and # is %23; in a URL a space is %20"
            }
            Self::Misplaced => {
                "has a misplaced wildcard: + and # stand for whole levels, and # is the last; in a URL they are %2B and %23, and a space is %20"
            }
            Self::EmptyLevel => {
                "has an empty level; give it as ?topic=, or a filter as ?filter= (in a URL # is %23)"
            }
            Self::DotSegment => "has a level that is . or ..",
            Self::EncodedSlash => "has an encoded slash; give it as ?topic=",
            Self::BadEscape => "has a percent sign without two hexadecimal digits",
            Self::Reserved => "begins with $, and such topics are the server's own",
        }
    }
}

impl core::error::Error for TopicError {}

/// Decodes a name from a path, checks it, and appends it to `out`. `raw` is the path after a prefix and its slash. A name in a path cannot
/// have empty levels.
///
/// # Errors
/// The first fault of the name; then `out` is unchanged.
pub fn from_path(raw: &[u8], max: usize, out: &mut Vec<u8>) -> Result<(), TopicError> {
    let start = out.len();
    decode(raw, out)?;
    let name = &out[start..];
    let result =
        if memchr::memchr_iter(b'/', name).count() != memchr::memchr_iter(b'/', raw).count() {
            Err(TopicError::EncodedSlash)
        } else if !name.is_empty() && levels(name).any(<[u8]>::is_empty) {
            Err(TopicError::EmptyLevel)
        } else {
            check_url_name(name, max)
        };
    result.inspect_err(|_| out.truncate(start))
}

/// Decodes a name from a query, checks it, and appends it to `out`. Empty levels are allowed (`/p/s1/-`). An encoded slash counts as a
/// slash, because proxies do not change a query.
///
/// # Errors
/// The first fault of the name; then `out` is unchanged.
pub fn from_query(raw: &[u8], max: usize, out: &mut Vec<u8>) -> Result<(), TopicError> {
    let start = out.len();
    decode(raw, out)?;
    check_url_name(&out[start..], max).inspect_err(|_| out.truncate(start))
}

/// Checks a name that is not from a URL, such as a name in a batch or a packet. It may have at most `max` bytes. Empty levels, the levels
/// `.` and `..`, and reserved names ([`is_reserved`]) are allowed.
///
/// # Errors
/// The first fault of the name.
pub fn check_name(name: &[u8], max: usize) -> Result<(), TopicError> {
    match check_text(name, max)? {
        true => Err(TopicError::Wildcard),
        false => Ok(()),
    }
}

/// Whether a name begins with `$`. Such a name is reserved for the server: clients may not publish to it (MQTT 5.0 section 4.7.2).
pub fn is_reserved(name: &[u8]) -> bool {
    name.first() == Some(&b'$')
}

/// Checks a filter of at most `max` bytes. `+` and `#` must be whole levels, and `#` must be the last level.
///
/// # Errors
/// The first fault of the filter.
pub fn check_filter(filter: &[u8], max: usize) -> Result<(), TopicError> {
    match !check_text(filter, max)? || wildcards_stand_alone(filter) {
        true => Ok(()),
        false => Err(TopicError::Misplaced),
    }
}

/// Whether each `+` and `#` is a whole level of `filter`, and `#` is the last level (MQTT 5.0 section 4.7.1).
pub(crate) fn wildcards_stand_alone(filter: &[u8]) -> bool {
    let mut levels = levels(filter).peekable();
    while let Some(level) = levels.next() {
        let has_wildcard = memchr::memchr2(b'+', b'#', level).is_some();
        if has_wildcard && (level.len() > 1 || (level == b"#" && levels.peek().is_some())) {
            return false;
        }
    }
    true
}

/// Whether a filter or a name contains `+` or `#`. In a filter that passed [`check_filter`] both are wildcards.
pub fn has_wildcard(filter: &[u8]) -> bool {
    filter.iter().any(|b| matches!(b, b'+' | b'#'))
}

/// The filter that a user probably meant, if `name` looks like a filter of NATS or of a shell: `*` for one level, `>` or `**` for all
/// further levels, perhaps with dots between the levels. Crore treats such a text as the name of one topic.
pub fn suggested_filter(name: &[u8]) -> Option<String> {
    memchr::memchr2(b'*', b'>', name)?;
    let name = core::str::from_utf8(name).ok()?;
    let separator = if name.contains('/') { '/' } else { '.' };
    let level = |level| match level {
        "*" => "+",
        ">" | "**" => "#",
        level => level,
    };
    let levels: Vec<&str> = name.split(separator).map(level).collect();
    let filter = levels.join("/");
    let is_other = filter != name && check_filter(filter.as_bytes(), usize::MAX).is_ok();
    is_other.then_some(filter)
}

/// Whether `filter`, which passed [`check_filter`], matches `name`.
///
/// `+` matches any one level. `#` matches any number of levels, also none (`a/#` matches `a`). A filter that begins with a wildcard does
/// not match reserved names.
pub fn matches(filter: &[u8], name: &[u8]) -> bool {
    if is_reserved(name) && matches!(filter.first(), Some(b'+' | b'#')) {
        return false;
    }
    let mut name_levels = levels(name);
    for level in levels(filter) {
        match (level, name_levels.next()) {
            (b"#", _) => return true,
            (b"+", Some(_)) => {}
            (level, Some(name_level)) if level == name_level => {}
            _ => return false,
        }
    }
    name_levels.next().is_none()
}

/// Whether the filter `granted` matches every name that `filter` matches. A grant of `granted` then allows a subscription by `filter`. Both
/// must have passed [`check_filter`] or [`check_name`]. For a name the result is that of [`matches()`].
pub fn covers(granted: &[u8], filter: &[u8]) -> bool {
    if is_reserved(filter) && matches!(granted.first(), Some(b'+' | b'#')) {
        return false;
    }
    let mut filter_levels = levels(filter);
    for level in levels(granted) {
        match (level, filter_levels.next()) {
            (b"#", _) => return true,
            (b"+", Some(level)) if level != b"#" => {}
            (level, Some(other)) if level == other => {}
            _ => return false,
        }
    }
    filter_levels.next().is_none()
}

/// Whether some name matches both filters. Both must have passed [`check_filter`] or [`check_name`].
pub fn overlaps(one: &[u8], other: &[u8]) -> bool {
    let begins_with_wildcard = |filter: &[u8]| matches!(filter.first(), Some(b'+' | b'#'));
    if is_reserved(one) && begins_with_wildcard(other)
        || is_reserved(other) && begins_with_wildcard(one)
    {
        return false;
    }
    let (mut one, mut other) = (levels(one), levels(other));
    loop {
        match (one.next(), other.next()) {
            (None, None) | (Some(b"#"), _) | (_, Some(b"#")) => return true,
            (Some(a), Some(b)) if a == b || a == b"+" || b == b"+" => {}
            _ => return false,
        }
    }
}

/// The filter of the names that both filters match; `None` if there are none. Both must have passed [`check_filter`] or [`check_name`].
pub fn intersection(one: &[u8], other: &[u8]) -> Option<Vec<u8>> {
    if !overlaps(one, other) {
        return None;
    }
    let (mut ones, mut others) = (levels(one), levels(other));
    let mut both: Vec<&[u8]> = Vec::new();
    loop {
        match (ones.next(), others.next()) {
            (None, None | Some(b"#")) | (Some(b"#"), None) => break,
            (Some(b"#"), Some(level)) => {
                both.push(level);
                both.extend(others);
                break;
            }
            (Some(level), Some(b"#")) => {
                both.push(level);
                both.extend(ones);
                break;
            }
            (Some(b"+"), Some(level)) | (Some(level), _) => both.push(level),
            (None, Some(_)) => return None,
        }
    }
    Some(both.join(&b'/'))
}

/// The hash of a topic's name, from which the topic's partition follows: XXH3 with 64 bits and seed 0. It is the same on every machine and
/// in every version.
pub fn stable_hash(name: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name)
}

/// The slot of a topic: the top byte of its [`stable_hash`]. All topics of a slot belong to the same partition.
pub fn slot(name: &[u8]) -> u8 {
    stable_hash(name).to_be_bytes()[0]
}

fn levels(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.split(|&b| b == b'/')
}

fn decode(raw: &[u8], out: &mut Vec<u8>) -> Result<(), TopicError> {
    form::decode(raw, out).map_err(|_| TopicError::BadEscape)
}

/// Checks the rules for a name in the path or the query of a URL.
fn check_url_name(name: &[u8], max: usize) -> Result<(), TopicError> {
    check_name(name, max)?;
    if levels(name).any(|level| matches!(level, b"." | b"..")) {
        return Err(TopicError::DotSegment);
    }
    Ok(())
}

/// Checks the rules that names and filters share, and returns whether the text contains `+` or `#`. A filter without wildcards must be a
/// valid name, so all rules of [`check_name`] except the one for wildcards are here.
fn check_text(text: &[u8], max: usize) -> Result<bool, TopicError> {
    if text.is_empty() {
        return Err(TopicError::Empty);
    }
    if text.len() > max {
        let len = text.len();
        return Err(TopicError::TooLong { len, max });
    }
    let classes = classes_of(text);
    if classes & NOT_PRINTABLE_ASCII != 0 {
        let text = core::str::from_utf8(text).map_err(|_| TopicError::NotUtf8)?;
        if text.chars().any(char::is_control) {
            return Err(TopicError::Control);
        }
    }
    Ok(classes & WILDCARD != 0)
}

/// A class of bytes: those that are not printable ASCII.
const NOT_PRINTABLE_ASCII: u8 = 1;
/// A class of bytes: `+` and `#`.
const WILDCARD: u8 = 2;

/// The classes of each byte. To look a byte up takes fewer instructions than to compare it with the bounds of each class.
const CLASSES: [u8; 256] = {
    let mut classes = [NOT_PRINTABLE_ASCII; 256];
    let mut byte = b' ';
    while byte <= b'~' {
        classes[byte as usize] = 0;
        byte += 1;
    }
    classes[b'+' as usize] = WILDCARD;
    classes[b'#' as usize] = WILDCARD;
    classes
};

/// The classes to which the bytes of `text` belong.
fn classes_of(text: &[u8]) -> u8 {
    (text.iter()).fold(0, |classes, &byte| classes | CLASSES[usize::from(byte)])
}

/// Whether all bytes are printable ASCII. Nearly all names and fields are. Such a text is UTF-8 and has no control characters.
pub fn is_printable_ascii(text: &[u8]) -> bool {
    classes_of(text) & NOT_PRINTABLE_ASCII == 0
}
