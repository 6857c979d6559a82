//! Checks the topic and the fields of a message, in the same way for every source: a client, a log that other nodes write, or a checkpoint.
//! Configured limits and rights are checked elsewhere, when a client publishes (`client/publishing`).
//!
//! Invariant: a message that a client was allowed to publish passes these checks when it is read from a log, since no configured limit exceeds
//! the bounds of this file.

use crore_settings::MAX_TOPIC_BYTES;
use crore_wire::mqtt::Properties;
use crore_wire::sse::OWN_EVENTS;
use crore_wire::topic;

use crate::mail::frames::ORIGIN_BYTES;
use crate::mail::message::{DedupKey, Headers, is_utf8};

/// Content types, event names and keys are kept with a one-byte length.
const FIELD_BYTES_MAX: usize = 255;

/// The error messages of a field: too long, not UTF-8, control characters.
macro_rules! faults {
    ($field:literal) => {
        [
            concat!("the ", $field, " is longer than 255 bytes; shorten it"),
            concat!("the ", $field, " is not UTF-8; send it as UTF-8"),
            concat!("the ", $field, " holds a control character; leave it out"),
        ]
    };
}

/// Checks content type, event name and key. They must be UTF-8 without control characters, since the protocols send them as headers, as lines
/// of an event or of a text frame, or as MQTT strings. The tab is refused too, although a header may contain a tab.
///
/// # Errors
/// What is wrong.
pub fn check_fields(content_type: &[u8], event: &[u8], key: &[u8]) -> Result<(), &'static str> {
    for (field, [long, coding, control]) in [
        (content_type, faults!("content type")),
        (event, faults!("event name")),
        (key, faults!("key")),
    ] {
        if field.is_empty() {
            continue;
        }
        if field.len() > FIELD_BYTES_MAX {
            return Err(long);
        }
        if topic::is_printable_ascii(field) {
            continue;
        }
        let text = core::str::from_utf8(field).map_err(|_| coding)?;
        if text.chars().any(char::is_control) {
            return Err(control);
        }
    }
    if event.starts_with(OWN_EVENTS.as_bytes()) {
        return Err("event names that begin with crore. are the server's own");
    }
    Ok(())
}

/// Checks an idempotency key.
///
/// # Errors
/// What is wrong.
pub fn check_idempotency_key(key: &[u8]) -> Result<(), &'static str> {
    match (1..=FIELD_BYTES_MAX).contains(&key.len()) {
        true => Ok(()),
        false => Err("an idempotency key has 1 to 255 bytes"),
    }
}

/// Checks the name of a topic from a log or a checkpoint, against the highest limit that a node can have.
///
/// # Errors
/// What is wrong.
pub fn check_stored_name(name: &[u8]) -> Result<(), &'static str> {
    topic::check_name(name, MAX_TOPIC_BYTES).map_err(|_| "the name of a topic is not valid")
}

/// Checks a message from a log or a checkpoint.
///
/// # Errors
/// What is wrong.
pub(crate) fn check_stored_message(
    headers: &Headers<&[u8]>,
    data: &[u8],
    dedup: Option<&DedupKey<&[u8]>>,
) -> Result<(), &'static str> {
    check_fields(headers.content_type, headers.event, headers.key)?;
    if let Some(dedup) = dedup {
        check_idempotency_key(dedup.key)?;
        if dedup.publisher.is_qos2_publisher() && dedup.session_key().is_none() {
            return Err("a message of a session has no packet id");
        }
    }
    if headers.qos > 2 {
        return Err("a message has no valid quality of service");
    }
    let says_utf8 = check_attributes(headers.attributes)?;
    if (says_utf8 || !headers.binary) && !is_utf8(data) {
        return Err("a message is not the UTF-8 that it is said to be");
    }
    Ok(())
}

/// Checks the attributes of a message. Returns whether they declare that the data is UTF-8.
fn check_attributes(attributes: &[u8]) -> Result<bool, &'static str> {
    if attributes.is_empty() {
        return Ok(false);
    }
    let properties = attributes.get(ORIGIN_BYTES..);
    let properties = properties.filter(|_| attributes.len() <= usize::from(u16::MAX));
    let properties = properties.ok_or("the properties of a message have an impossible length")?;
    let set = Properties::of_message(properties).map_err(|_| "a message has invalid properties")?;
    match set.content_type() {
        // A content type is stored in its own field. An empty one is allowed here.
        Some(text) if !text.is_empty() => Err("a message has two content types"),
        _ => Ok(set.payload_is_utf8()),
    }
}
