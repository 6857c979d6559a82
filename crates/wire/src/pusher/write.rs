//! Writes the events of the server.

use alloc::vec::Vec;

use crate::json::write_string;

/// The data of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventData<'a> {
    /// UTF-8 that is sent as a string.
    Text(&'a [u8]),
    /// A JSON value.
    Value(&'a [u8]),
}

/// Appends an event. Without a channel (`None`) it is of the connection. `user` is the user of a presence channel who sent a client event; empty for none.
pub fn write_event(
    event: &[u8],
    channel: Option<&[u8]>,
    data: EventData<'_>,
    user: &[u8],
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"event\":");
    write_string(out, event);
    if let Some(channel) = channel {
        out.extend_from_slice(b",\"channel\":");
        write_string(out, channel);
    }
    out.extend_from_slice(b",\"data\":");
    match data {
        EventData::Text(text) => write_string(out, text),
        EventData::Value(json) => out.extend_from_slice(json),
    }
    if !user.is_empty() {
        out.extend_from_slice(b",\"user_id\":");
        write_string(out, user);
    }
    out.push(b'}');
}
