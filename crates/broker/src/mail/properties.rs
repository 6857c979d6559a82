//! Converts a message's attributes: the MQTT properties without a field in [`Headers`](crate::mail::message::Headers) (MQTT 5.0 section
//! 3.3.2.3). In HTTP, user properties are `Crore-Property: name=value` headers.
//!
//! Invariants: attributes are the publisher's number ([`ORIGIN_BYTES`]), followed by properties encoded as in a packet. Attributes are
//! checked on receipt, except for characters that only some protocols forbid. Only the server sets the property [`PUBLISHER`], so this
//! property is removed from a client's message.

use alloc::vec::Vec;

use crore_wire::http::is_field_value;
use crore_wire::mqtt::{Properties, PropertyWriter, USER_PROPERTIES_MAX};

use crate::mail::{Frames, ORIGIN_BYTES, Record};

/// The header of one user property.
pub const PROPERTY_HEADER: &str = "Crore-Property";
/// The header with the number of user properties that are not sent as headers.
pub const LEFT_OUT_HEADER: &str = "Crore-Properties-Left-Out";
/// The user property that represents a message's key.
pub const KEY: &str = "crore-key";
/// The user property that represents a message's event name.
pub const EVENT: &str = "crore-event";
/// The user property that names the user who published the message (`rule.publisher`).
pub const PUBLISHER: &str = "crore-publisher";
/// The HTTP header that names the user who published the message.
pub const PUBLISHER_HEADER: &str = "Crore-Publisher";
/// The maximum number of user properties of a client's message. The server may add one, [`PUBLISHER`].
pub const CLIENT_PROPERTIES_MAX: usize = USER_PROPERTIES_MAX - 1;
/// The maximum bytes of attributes of a client's message. The rest is room for [`PUBLISHER`] with a name of 255 bytes.
pub const CLIENT_ATTRIBUTES_BYTES_MAX: usize = u16::MAX as usize - 5 - PUBLISHER.len() - 255;
/// The maximum bytes of [`PROPERTY_HEADER`] lines in one answer. The other headers have at most about 1.5 KiB, and many proxies and clients refuse a
/// head of more than 4 KiB (nginx: `proxy_buffer_size`, a page of memory).
pub const HEADERS_BYTES_MAX: usize = 2 << 10;

/// The attributes of a message with these user properties, each `name=value`; empty without properties.
///
/// # Errors
/// The fault of a malformed property.
pub fn from_headers<'a>(headers: impl Iterator<Item = &'a [u8]>) -> Result<Vec<u8>, &'static str> {
    let mut set = PropertyWriter::new();
    let mut count = 0;
    for header in headers {
        let text = core::str::from_utf8(header).map_err(|_| "Crore-Property is not UTF-8")?;
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or("Crore-Property takes name=value")?;
        if name == PUBLISHER {
            continue;
        }
        count += 1;
        let result = set.user_property(name, value);
        if count > CLIENT_PROPERTIES_MAX || result.is_err() {
            return Err("at most 127 Crore-Property headers are taken");
        }
    }
    let set = set.properties();
    if set.is_empty() {
        return Ok(Vec::new());
    }
    let mut attributes = alloc::vec![0; ORIGIN_BYTES];
    set.iter()
        .for_each(|(_, item)| attributes.extend_from_slice(item));
    Ok(attributes)
}

/// Adds the name of the user who published the message to the attributes. This property becomes the first, so that a message with more
/// properties than MQTT accepts loses another one.
pub fn with_publisher(attributes: &[u8], user: &str) -> Vec<u8> {
    let (origin, rest) = match attributes.split_at_checked(ORIGIN_BYTES) {
        Some(parts) => parts,
        None => (&[0; ORIGIN_BYTES][..], &[][..]),
    };
    let mut all = Vec::from(origin);
    let mut set = PropertyWriter::new();
    // A user's name has at most 255 bytes, so it fits.
    if set.user_property(PUBLISHER, user).is_ok() {
        let publisher = set.properties();
        publisher
            .iter()
            .for_each(|(_, item)| all.extend_from_slice(item));
    }
    all.extend_from_slice(rest);
    all
}

/// The name of the user who published the message, or empty.
pub fn publisher<'f>(frames: &'f Frames, record: &Record) -> &'f [u8] {
    let set = Properties::stored(frames.properties(record));
    let mut publishers = set.user_properties().filter(|(name, _)| *name == PUBLISHER);
    publishers
        .next()
        .map_or(&b""[..], |(_, user)| user.as_bytes())
}

/// The user properties of a message in their order, without those for its key, its event name and its publisher.
pub fn user_properties_of<'f>(
    frames: &'f Frames,
    record: &Record,
) -> impl Iterator<Item = (&'f str, &'f str)> + use<'f> {
    let set = Properties::stored(frames.properties(record));
    let is_publisher_s = |(name, _): &(&str, &str)| ![KEY, EVENT, PUBLISHER].contains(name);
    set.user_properties().filter(is_publisher_s)
}

/// The user properties of a message as values of [`PROPERTY_HEADER`], and the number of properties left out, because they exceed
/// [`HEADERS_BYTES_MAX`] or have characters that a header cannot contain.
pub fn to_headers(frames: &Frames, record: &Record) -> (Vec<Vec<u8>>, usize) {
    let (mut lines, mut left_out, mut bytes) = (Vec::new(), 0, 0);
    for (name, value) in user_properties_of(frames, record) {
        let line_bytes = PROPERTY_HEADER.len() + ": =\r\n".len() + name.len() + value.len();
        let line = [name.as_bytes(), b"=", value.as_bytes()].concat();
        if bytes + line_bytes > HEADERS_BYTES_MAX || !is_field_value(&line) {
            left_out += 1;
            continue;
        }
        bytes += line_bytes;
        lines.push(line);
    }
    (lines, left_out)
}

/// The remaining seconds of the message's time to live, if the message has one.
pub fn remaining_ttl_s(record: &Record, now_s: u32) -> Option<u32> {
    let ttl_s = record.ttl_s()?;
    Some(ttl_s.saturating_sub(now_s.saturating_sub(record.time_s)))
}
