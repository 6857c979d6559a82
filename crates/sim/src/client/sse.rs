//! Reads an event stream. Unlike a browser, it also reports events without data, since they carry positions.

use crate::truth::{Violation, printable};

/// An event: a block of the stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The id, if the block has one.
    pub id: Option<Vec<u8>>,
    /// The event's name; empty is the default.
    pub name: Vec<u8>,
    /// The data, if the block has any.
    pub data: Option<Vec<u8>>,
}

/// Removes the next complete block from `bytes`.
pub fn take_event(bytes: &mut Vec<u8>) -> Result<Option<Event>, Violation> {
    let Some(end) = bytes.windows(2).position(|two| two == b"\n\n") else {
        return Ok(None);
    };
    let block: Vec<u8> = bytes.drain(..end + 2).collect();
    let mut event = Event::default();
    for line in block[..end].split(|b| *b == b'\n') {
        if let Some(value) = line.strip_prefix(b"data: ") {
            match &mut event.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => event.data = Some(value.to_vec()),
            }
        } else if let Some(value) = line.strip_prefix(b"id: ") {
            event.id = Some(value.to_vec());
        } else if let Some(value) = line.strip_prefix(b"event: ") {
            event.name = value.to_vec();
        } else if !(line.is_empty() || line.starts_with(b":") || line.starts_with(b"retry: ")) {
            return Err(format!("no line of an event stream: {}", printable(line)));
        }
    }
    Ok(Some(event))
}
