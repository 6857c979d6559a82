//! Writes replies and pushes. Each function appends one item: in JSON an object without a line end, in protobuf a message after its length.
//! A frame may contain several items, in JSON with [`delimiter`] between them.

use super::format::Format;
use super::reply::{Nothing, Push, Reply, Wrapped};
use super::write::{self, Message, NotJson};
use alloc::vec::Vec;

/// The bytes between two items of a frame.
pub const fn delimiter(format: Format) -> &'static [u8] {
    match format {
        Format::Json => b"\n",
        Format::Protobuf => b"",
    }
}

/// Appends the answer to a command.
///
/// # Errors
///
/// The data is not valid in JSON. Then `out` is unchanged.
pub fn reply(format: Format, reply: &Reply<'_>, out: &mut Vec<u8>) -> Result<(), NotJson> {
    item(format, reply, out)
}

/// Appends a push for a bidirectional transport. The bytes are the same for all connections of this format.
///
/// # Errors
///
/// The data is not valid in JSON. Then `out` is unchanged.
pub fn push(format: Format, push: &Push<'_>, out: &mut Vec<u8>) -> Result<(), NotJson> {
    item(format, &Wrapped(push), out)
}

/// Appends a push for a unidirectional transport, without a reply around it.
///
/// # Errors
///
/// The data is not valid in JSON. Then `out` is unchanged.
pub fn bare_push(format: Format, push: &Push<'_>, out: &mut Vec<u8>) -> Result<(), NotJson> {
    item(format, push, out)
}

/// Appends a ping of the server: an empty reply, or an empty push on a unidirectional transport.
pub fn ping(format: Format, out: &mut Vec<u8>) {
    item(format, &Nothing, out).expect("no data");
}

fn item(format: Format, message: &impl Message, out: &mut Vec<u8>) -> Result<(), NotJson> {
    match format {
        Format::Json => write::json(message, out),
        Format::Protobuf => {
            write::delimited(message, out);
            Ok(())
        }
    }
}
