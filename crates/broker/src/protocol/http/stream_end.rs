//! Ends streams of messages: event streams by their last chunk, WebSockets by a close frame.

use alloc::vec::Vec;

use crore_wire::websocket::frame;

use crate::base::reason::{Closed, Reason};
use crate::client::protocols::protocol_of;
use crate::client::row::State;
use crate::io::Io;
use crate::protocol::front::{AllProtocols, Clients};
use crate::protocol::http::body::write_end;

/// The close code for a reason that has none: a fault of the server (RFC 6455 section 7.4.1).
const INTERNAL: u16 = 1011;

/// Whether the connection's bytes are WebSocket frames.
pub(crate) fn has_frames(clients: &Clients, slot: u32) -> bool {
    let row = clients.conns.get(slot);
    protocol_of!(AllProtocols, row.consumer.state, has_frames(row))
}

/// Ends a stream as its protocol demands: with a close frame, or with the last chunk.
pub(crate) fn end_stream<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
    let words = reason.words(&clients.ctx.world.settings);
    end_stream_saying(clients, slot, reason, &words, io);
}

/// Ends a stream as `end_stream` does, with a more exact text.
pub(crate) fn end_stream_saying<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: Reason,
    words: &str,
    io: &mut I,
) {
    let row = reason.row();
    if clients.conns.get(slot).consumer.state != State::Draining {
        clients.refused(slot, reason);
        clients.note_end_reason(words);
    }
    let code = row.close.unwrap_or(INTERNAL);
    end_stream_by(clients, slot, row.closed, code, words, io);
}

/// Ends a stream as `end_stream` does, with a code that is not in the table of reasons: the peer chose it, or the protocol within the frames.
pub(crate) fn end_stream_by<I: Io>(
    clients: &mut Clients,
    slot: u32,
    closed: Closed,
    code: u16,
    words: &str,
    io: &mut I,
) {
    let row = clients.conns.get(slot);
    if row.consumer.state == State::Draining {
        clients.scratch.why = None;
        clients.scratch.is_closed = false;
        return;
    }
    clients.scratch.note_close_reason(closed);
    let mut bytes = Vec::new();
    match has_frames(clients, slot) {
        true => frame::write_close(&mut bytes, code, words),
        false => write_end(clients.conns.get(slot), &mut bytes),
    }
    clients.put(slot, &bytes, io);
    clients.shut(slot, io);
}
