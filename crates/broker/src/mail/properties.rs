//! MQTT properties of a message that other transports have no fields for (MQTT 5.0 section 3.3.2.3), and their form
//! there: user properties are `Crore-Property: name=value` headers in HTTP.
//!
//! Invariants: attributes are the publisher's number ([`ORIGIN_BYTES`]), then properties as in a packet; all that is
//! sent later is checked on receipt, except for characters that only some transports forbid.

use alloc::vec::Vec;

use crore_wire::http::is_field_value;
use crore_wire::mqtt::{Properties, PropertyBuf};

use crate::mail::{Frames, ORIGIN_BYTES, Record};

/// The header that holds one user property.
pub const HEADER: &str = "Crore-Property";

/// The attributes of a message with these user properties, each `name=value`; nothing when there are none.
///
/// # Errors
/// The defect of a malformed property.
pub fn from_headers<'a>(headers: impl Iterator<Item = &'a [u8]>) -> Result<Vec<u8>, &'static str> {
    let mut set = PropertyBuf::new();
    for header in headers {
        let text = core::str::from_utf8(header).map_err(|_| "Crore-Property is not UTF-8")?;
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or("Crore-Property takes name=value")?;
        set.user_property(name, value)
            .map_err(|_| "at most 128 Crore-Property headers are taken")?;
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

/// The user properties of a message as values of the header, without those that a header cannot hold.
pub fn to_headers(frames: &Frames, record: &Record) -> Vec<Vec<u8>> {
    let set = Properties::stored(frames.properties(record));
    let lines = set.user_properties().map(|(name, value)| {
        let mut line = Vec::from(name.as_bytes());
        line.push(b'=');
        line.extend_from_slice(value.as_bytes());
        line
    });
    lines.filter(|line| is_field_value(line)).collect()
}

/// Seconds left of a message's life, if it has an end.
pub fn left_s(record: &Record, now_s: u32) -> Option<u32> {
    let ttl_s = record.ttl_s()?;
    Some(ttl_s.saturating_sub(now_s.saturating_sub(record.time_s)))
}
