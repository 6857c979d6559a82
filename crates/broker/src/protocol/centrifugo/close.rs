//! Ends connections of Centrifugo's protocol. A close frame, or else a push, tells the client the code and the text.

use crore_wire::centrifugo::Push;
use crore_wire::centrifugo::codes::Disconnect;

use crate::base::reason::{Closed, Reason};
use crate::io::{CloseMode, Io};
use crate::protocol::centrifugo::reasons::disconnect_of;
use crate::protocol::centrifugo::reply::write_push;
use crate::protocol::centrifugo::state::{state, state_mut};
use crate::protocol::front::Clients;
use crate::protocol::http::stream_end::{end_stream_with_code, has_frames};

/// Ends a connection for a reason of this server.
pub(super) fn centrifugo_end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
    let row = reason.row();
    clients.scratch.set_close_reason(row.closed);
    clients.refused(slot, reason);
    match disconnect_of(reason) {
        Some(code) => end_with_code(clients, slot, row.closed, (code.code as u16, code.text), io),
        None => clients.drop_connection(slot, CloseMode::Now),
    }
}

/// Whether a connection stays when a topic of it ends for this reason.
pub(super) fn stays_after(reason: Reason) -> bool {
    disconnect_of(reason).is_none()
}

/// Ends a connection with a code of the protocol, after the replies that are written.
pub(super) fn end_with_text<I: Io>(
    clients: &mut Clients,
    slot: u32,
    code: Disconnect,
    text: &str,
    io: &mut I,
) {
    clients.send_reply(slot, io);
    let closed = match code {
        Disconnect::NO_PONG | Disconnect::STALE => Closed::Timeout,
        _ => Closed::Refused,
    };
    end_with_code(clients, slot, closed, (code.code as u16, text), io);
}

/// Ends a connection with the code and the reason of an operator.
pub(super) fn end_for_order<I: Io>(
    clients: &mut Clients,
    slot: u32,
    code: u16,
    text: &str,
    io: &mut I,
) {
    clients.refused(slot, Reason::Operator);
    end_with_code(clients, slot, Closed::Operator, (code, text), io);
}

fn end_with_code<I: Io>(
    clients: &mut Clients,
    slot: u32,
    closed: Closed,
    (code, text): (u16, &str),
    io: &mut I,
) {
    clients.record_end_reason(text);
    if !has_frames(clients, slot) {
        // The body of an answer has no close frame, so a push tells the code.
        let push = Push::Disconnect {
            code: code.into(),
            reason: text,
            reconnect: Disconnect::reconnects(code.into()),
        };
        clients.send_reply(slot, io);
        write_push(clients, slot, &push);
        clients.send_reply(slot, io);
    }
    end_stream_with_code(clients, slot, closed, code, text, io);
}

/// Drops held commands, because their connection ends.
pub(crate) fn drop_held(clients: &mut Clients, slot: u32) {
    if state(&clients.conns, slot).is_some() {
        let commands = core::mem::take(&mut state_mut(&mut clients.conns, slot).held_commands);
        clients.conns.stop_counting_held_bytes(commands.bytes());
    }
}
