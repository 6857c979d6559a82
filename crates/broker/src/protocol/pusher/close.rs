//! Ends connections of Pusher's protocol. An error event and the close frame tell the client the code and the text.

use crore_wire::pusher::ErrorCode;

use crate::base::reason::{Closed, Reason};
use crate::io::{CloseMode, Io};
use crate::protocol::front::Clients;
use crate::protocol::http::stream_end::end_stream_with_code;
use crate::protocol::pusher::reasons::close_code_of;
use crate::protocol::pusher::reply::write_error;

/// Ends a connection for a reason of this server.
pub(super) fn pusher_end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
    let row = reason.row();
    clients.scratch.set_close_reason(row.closed);
    clients.refused(slot, reason);
    let text = reason.text_with_limit(&clients.ctx.world.settings);
    match close_code_of(reason) {
        Some(code) => end_with_code(clients, slot, row.closed, (code, &text), io),
        None => clients.drop_connection(slot, CloseMode::Now),
    }
}

/// Ends a connection with a code of the protocol, after the events that are written.
pub(super) fn end_with_code<I: Io>(
    clients: &mut Clients,
    slot: u32,
    closed: Closed,
    (code, text): (ErrorCode, &str),
    io: &mut I,
) {
    clients.record_end_reason(text);
    write_error(clients, Some(code), text);
    clients.send_reply(slot, io);
    end_stream_with_code(clients, slot, closed, code.code, text, io);
}
