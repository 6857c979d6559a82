//! Encodes messages as events, which all subscribers of a channel share.

use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crore_wire::pusher::{EventData, write_event};

use crate::base::position::{self, Position};
use crate::base::pusher::channel_of;
use crate::mail::properties::publisher;
use crate::mail::{Frames, Record};

/// The name of a message that has none, since it was published by another protocol.
const NO_NAME: &[u8] = b"message";
/// Client events begin with this. Those of presence channels name their user.
const CLIENT_PREFIX: &str = "client-";

/// The event that tells a client the position after a message. An extension of this server's, which libraries ignore. In encrypted channels pusher-js passes on
/// only events of this prefix.
pub(crate) const POSITION: &[u8] = b"pusher:position";

/// The data of the event [`POSITION`].
pub(crate) fn position_data(position: Position) -> Vec<u8> {
    let mut data = Vec::from(b"{\"position\":\"");
    position::write(&mut data, position);
    data.extend_from_slice(b"\"}");
    data
}

/// Appends the position after a message.
pub(crate) fn write_position(topic: &[u8], position: Position, out: &mut Vec<u8>) {
    let channel = channel_of(topic);
    let data = position_data(position);
    write_event(
        POSITION,
        Some(channel.as_bytes()),
        EventData::Text(&data),
        b"",
        out,
    );
}

/// Appends a message. Its data is a string; bytes that are not UTF-8 are in base64.
pub(crate) fn write_message(topic: &[u8], (record, frames): (&Record, &Frames), out: &mut Vec<u8>) {
    let event = match frames.event(record) {
        b"" => NO_NAME,
        event => event,
    };
    let user = match event.starts_with(CLIENT_PREFIX.as_bytes()) {
        true => publisher(frames, record),
        false => b"",
    };
    let channel = channel_of(topic);
    let channel = Some(channel.as_bytes());
    let data = frames.data(record);
    match core::str::from_utf8(data) {
        Ok(_) => write_event(event, channel, EventData::Text(data), user, out),
        Err(_) => {
            let data = STANDARD.encode(data);
            write_event(event, channel, EventData::Text(data.as_bytes()), user, out);
        }
    }
}
