//! Frames that carry no message: the report of a gap (lost messages), and the position before the first message.

use alloc::vec::Vec;

use crore_wire::json;
use crore_wire::websocket::frame::{self, Opcode};

use crate::client::row::{FILTERS, Row, SUBSCRIPTION_LIST};
use crate::protocol::encode::meta_line;
use crate::protocol::http::options::{ENVELOPE, META_FRAMES};

/// The text of the report.
const LOST: &[u8] = b"messages before this position are lost";

/// Appends the report of a gap as a JSON object, with the fields of `ws+meta.nchan`.
fn gap_object(out: &mut Vec<u8>, name: &[u8], id: &[u8]) {
    for (label, value) in [
        (&b"{\"gap\":"[..], LOST),
        (b",\"topic\":", name),
        (b",\"id\":", id),
    ] {
        out.extend_from_slice(label);
        json::write_string(out, value);
    }
    out.push(b'}');
}

/// Appends a frame that reports a gap before this position. False if the connection's format has no way to report it.
pub(crate) fn write_gap_frame(row: &Row, name: &[u8], id: &[u8], out: &mut Vec<u8>) -> bool {
    let mut text = Vec::with_capacity(96);
    if row.has_option(META_FRAMES) {
        meta_line(&mut text, b"gap", LOST);
        meta_line(&mut text, b"id", id);
        if row.consumer.options & (SUBSCRIPTION_LIST | FILTERS) != 0 {
            meta_line(&mut text, b"topic", name);
        }
        text.push(b'\n');
    } else if row.has_option(ENVELOPE) {
        gap_object(&mut text, name, id);
    } else {
        // Plain frames cannot report it. The client learns it when the connection is closed.
        return false;
    }
    frame::write_frame(out, Opcode::Text, &text);
    true
}

/// Appends a frame with the position before the first message: a JSON object without data. Other formats have no such frame,
/// because Nchan's clients pass each frame of `ws+meta.nchan` to their page as a message.
pub(crate) fn write_position(id: &[u8], out: &mut Vec<u8>) {
    let mut text = Vec::with_capacity(48);
    text.extend_from_slice(b"{\"id\":");
    json::write_string(&mut text, id);
    text.push(b'}');
    frame::write_frame(out, Opcode::Text, &text);
}
