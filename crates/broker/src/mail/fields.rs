//! The checks of a message's topic and fields that hold whoever gives the message: a client, another node that has written it to the log, or the
//! document of a checkpoint. What depends on this process (its limits, rights) is checked when a client publishes (`client/publishing`).
//!
//! Invariant: nothing that a client may publish is refused here when it is read from a log, since limits are at most the bounds of this file.

use crore_settings::MAX_TOPIC_BYTES;
use crore_wire::mqtt::Properties;
use crore_wire::sse::OWN_EVENTS;
use crore_wire::topic;

use crate::mail::frames::ORIGIN_BYTES;
use crate::mail::message::{Headers, Retry, is_utf8};

/// Content types, event names and keys are kept with a one-byte length.
const FIELD_BYTES_MAX: usize = 255;

/// The faults that a field may have: its length, its coding, its characters.
macro_rules! faults {
    ($field:literal) => {
        [
            concat!("the ", $field, " is longer than 255 bytes; shorten it"),
            concat!("the ", $field, " is not UTF-8; send it as UTF-8"),
            concat!("the ", $field, " holds a control character; leave it out"),
        ]
    };
}

/// Checks the fields of a message besides its topic and data. Each of them becomes a header, a line of an event or of a
/// text frame, or a string of MQTT somewhere: so it must be UTF-8 without control characters; that excludes the tab, although a
/// header could hold it.
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
pub(crate) fn check_idempotency_key(key: &[u8]) -> Result<(), &'static str> {
    match (1..=FIELD_BYTES_MAX).contains(&key.len()) {
        true => Ok(()),
        false => Err("an idempotency key has 1 to 255 bytes"),
    }
}

/// Checks the name of a topic that was read: no node has a higher limit.
///
/// # Errors
/// What is wrong.
pub fn check_stored_name(name: &[u8]) -> Result<(), &'static str> {
    topic::check_name(name, MAX_TOPIC_BYTES).map_err(|_| "the name of a topic is not valid")
}

/// Checks a message that was read, as it was checked when a client published it.
///
/// # Errors
/// What is wrong.
pub(crate) fn check_stored_message(
    headers: &Headers<&[u8]>,
    data: &[u8],
    retry: Option<&Retry<&[u8]>>,
) -> Result<(), &'static str> {
    check_fields(headers.content_type, headers.event, headers.key)?;
    retry.map_or(Ok(()), |retry| check_idempotency_key(retry.key))?;
    if headers.qos > 2 {
        return Err("a message has no valid quality of service");
    }
    let says_utf8 = check_attributes(headers.attributes)?;
    if (says_utf8 || !headers.binary) && !is_utf8(data) {
        return Err("a message is not the UTF-8 that it is said to be");
    }
    Ok(())
}

/// Checks the attributes of a message; says whether they say that its data are UTF-8.
fn check_attributes(attributes: &[u8]) -> Result<bool, &'static str> {
    if attributes.is_empty() {
        return Ok(false);
    }
    let properties = attributes.get(ORIGIN_BYTES..);
    let properties = properties.filter(|_| attributes.len() <= usize::from(u16::MAX));
    let properties = properties.ok_or("the properties of a message have an impossible length")?;
    let set = Properties::of_message(properties).map_err(|_| "a message has invalid properties")?;
    match set.content_type() {
        // One that is not empty is a field of its own.
        Some(text) if !text.is_empty() => Err("a message has two content types"),
        _ => Ok(set.payload_is_utf8()),
    }
}
