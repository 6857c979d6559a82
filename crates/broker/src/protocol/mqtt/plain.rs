//! Encodes a QoS 0 message once for all plain subscribers of an MQTT version, and writes the properties that every subscriber gets with a message.

use alloc::vec::Vec;

use crore_wire::mqtt::{Properties, Property, PropertyWriter, Publish, Qos, Version, encode};

use crate::mail::properties::{EVENT, KEY, left_s};
use crate::mail::{Frames, Record};

/// Appends the packet of a QoS 0 message, without the data, as all plain subscribers of an MQTT version get it; false where the
/// message cannot be sent.
pub(crate) fn write_head(
    topic: &[u8],
    (record, frames): (&Record, &Frames),
    now_s: u32,
    v5: bool,
    out: &mut Vec<u8>,
) -> bool {
    // Topics are UTF-8.
    let Ok(topic) = core::str::from_utf8(topic) else {
        return false;
    };
    let version = if v5 { Version::V5 } else { Version::V311 };
    let mut set = PropertyWriter::new();
    if v5 {
        write_properties(&mut set, frames, record, left_s(record, now_s));
    }
    let publish = Publish {
        dup: false,
        qos: Qos::AtMostOnce,
        retain: false,
        topic,
        packet_id: None,
        properties: set.properties(),
        payload: b"",
    };
    encode::publish_head(out, version, &publish, frames.data(record).len())
}

/// Appends the properties of a message on its way to a subscriber, with the seconds that are left of its life.
pub(super) fn write_properties(
    set: &mut PropertyWriter,
    frames: &Frames,
    record: &Record,
    left_s: Option<u32>,
) {
    message_properties(set, frames, record);
    if let Some(left_s) = left_s {
        set.message_expiry_interval_s(left_s);
    }
}

/// Appends the properties of a message that other protocols know too, and those that only MQTT knows.
fn message_properties(set: &mut PropertyWriter, frames: &Frames, record: &Record) {
    let stored = Properties::stored(frames.properties(record));
    set.forward(&stored);
    let text = |bytes| core::str::from_utf8(bytes).unwrap_or_default();
    let from_mqtt = frames.origin(record) != 0;
    if !from_mqtt && !stored.has(Property::PayloadFormatIndicator) && !record.binary {
        set.payload_is_utf8(true);
    }
    let content_type = text(frames.content_type(record));
    if !content_type.is_empty() {
        // It was checked, and is short.
        let _ = set.content_type(content_type);
    }
    // A publisher of MQTT said them by user properties, which were passed on in their order.
    for (name, value) in [(KEY, frames.key(record)), (EVENT, frames.event(record))] {
        if !from_mqtt && !value.is_empty() {
            // They fail only when all 128 properties are taken.
            let _ = set.user_property(name, text(value));
        }
    }
}
