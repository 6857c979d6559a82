//! Ends a stream of messages: writes the last chunk of an event stream, or the close frame of a WebSocket.

use alloc::vec::Vec;

use crore_wire::websocket::frame;

use crate::base::reason::{Closed, Reason};
use crate::client::protocols::protocol_of;
use crate::client::row::State;
use crate::io::Io;
use crate::protocol::front::{AllProtocols, Clients};
use crate::protocol::http::body::write_end;

/// The close code for a reason that has none: "internal error" (RFC 6455 section 7.4.1).
const CLOSE_INTERNAL_ERROR: u16 = 1011;

/// Whether the connection's bytes are WebSocket frames.
pub(crate) fn has_frames(clients: &Clients, slot: u32) -> bool {
    let row = clients.conns.get(slot);
    protocol_of!(AllProtocols, row.consumer.state, has_frames(row))
}

/// Ends a stream, and counts the refusal.
pub(crate) fn end_stream<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
    let text = reason.text_with_limit(&clients.ctx.world.settings);
    end_stream_with_text(clients, slot, reason, &text, io);
}

/// Does the same as [`end_stream`], with a more exact text.
pub(crate) fn end_stream_with_text<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: Reason,
    text: &str,
    io: &mut I,
) {
    let row = reason.row();
    if clients.conns.get(slot).consumer.state != State::Draining {
        clients.refused(slot, reason);
        clients.record_end_reason(text);
    }
    let code = row.close.unwrap_or(CLOSE_INTERNAL_ERROR);
    end_stream_with_code(clients, slot, row.closed, code, text, io);
}

/// Ends a stream without counting a refusal. The peer, or the protocol inside the frames, may have chosen the close code. Does nothing if the
/// stream has ended already.
pub(crate) fn end_stream_with_code<I: Io>(
    clients: &mut Clients,
    slot: u32,
    closed: Closed,
    code: u16,
    text: &str,
    io: &mut I,
) {
    let row = clients.conns.get(slot);
    if row.consumer.state == State::Draining {
        clients.scratch.close_reason = None;
        clients.scratch.is_closed_by_client = false;
        return;
    }
    clients.scratch.set_close_reason(closed);
    let mut bytes = Vec::new();
    match has_frames(clients, slot) {
        true => frame::write_close(&mut bytes, code, text),
        false => write_end(clients.conns.get(slot), &mut bytes),
    }
    clients.send_bytes(slot, &bytes, io);
    clients.close_after_output(slot, io);
}
