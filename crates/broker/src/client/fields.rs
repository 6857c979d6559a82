//! Rules of the fields of a message besides its topic and data, the same for all protocols.

use crore_wire::sse::OWN_EVENTS;

/// Content types, event names and keys are kept with a one-byte length.
pub(crate) const FIELD_BYTES_MAX: usize = 255;

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
/// Why it is not published.
pub fn check_fields(content_type: &[u8], event: &[u8], key: &[u8]) -> Result<(), &'static str> {
    for (field, [long, coding, control]) in [
        (content_type, faults!("content type")),
        (event, faults!("event name")),
        (key, faults!("key")),
    ] {
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
