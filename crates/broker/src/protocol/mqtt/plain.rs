//! Encodes a QoS 0 message once for all plain subscribers of an MQTT version, and writes the properties that every subscriber gets with a message.

use alloc::vec::Vec;

use crore_wire::mqtt::{Properties, Property, PropertyWriter, Publish, Qos, Version, encode};

use crate::mail::properties::{EVENT, KEY, remaining_ttl_s};
use crate::mail::{Frames, Record};

/// Appends the packet of a QoS 0 message up to its data, as all plain subscribers of an MQTT version get it. Returns false if the message cannot be sent.
pub(crate) fn write_plain_head(
    topic: &[u8],
    (record, frames): (&Record, &Frames),
    now_s: u32,
    is_v5: bool,
    out: &mut Vec<u8>,
) -> bool {
    // Topics are UTF-8.
    let Ok(topic) = core::str::from_utf8(topic) else {
        return false;
    };
    let version = if is_v5 { Version::V5 } else { Version::V311 };
    let mut properties = PropertyWriter::new();
    if is_v5 {
        write_properties(
            &mut properties,
            frames,
            record,
            remaining_ttl_s(record, now_s),
        );
    }
    let publish = Publish {
        dup: false,
        qos: Qos::AtMostOnce,
        retain: false,
        topic,
        packet_id: None,
        properties: properties.properties(),
        payload: b"",
    };
    encode::publish_head(out, version, &publish, frames.data(record).len())
}

/// Appends the properties of a message to a subscriber, with the seconds that are left of its time to live.
pub(super) fn write_properties(
    properties: &mut PropertyWriter,
    frames: &Frames,
    record: &Record,
    remaining_ttl_s: Option<u32>,
) {
    message_properties(properties, frames, record);
    if let Some(remaining_ttl_s) = remaining_ttl_s {
        properties.message_expiry_interval_s(remaining_ttl_s);
    }
}

/// Appends the properties of a message that other protocols know too, and those that only MQTT knows.
fn message_properties(properties: &mut PropertyWriter, frames: &Frames, record: &Record) {
    let stored = Properties::stored(frames.properties(record));
    properties.forward(&stored);
    let text = |bytes| core::str::from_utf8(bytes).unwrap_or_default();
    let from_mqtt = frames.origin(record) != 0;
    if !from_mqtt && !stored.has(Property::PayloadFormatIndicator) && !record.binary {
        properties.payload_is_utf8(true);
    }
    let content_type = text(frames.content_type(record));
    if !content_type.is_empty() {
        // Cannot fail: it was checked, and is short.
        let _ = properties.content_type(content_type);
    }
    // If the publisher used MQTT, these are among the user properties that were forwarded above.
    for (name, value) in [(KEY, frames.key(record)), (EVENT, frames.event(record))] {
        if !from_mqtt && !value.is_empty() {
            // Fails only if there are 128 properties already.
            let _ = properties.user_property(name, text(value));
        }
    }
}
