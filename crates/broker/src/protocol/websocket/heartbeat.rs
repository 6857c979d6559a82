//! Heartbeats of a WebSocket: sends pings, and ends a connection after two unanswered pings.

use crore_wire::websocket::frame::{self, Opcode};

use crate::base::reason::Closed;
use crate::io::{CloseMode, Io};
use crate::protocol::front::Clients;
use crate::protocol::http::options::{PING, PINGS};
use crate::protocol::http::request::is_held;

/// Sends a ping if nothing was sent for too long. Ends the connection if two pings are unanswered.
pub(crate) fn ping_if_quiet<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    if !clients.is_heartbeat_due(slot) {
        return;
    }
    let row = clients.conns.get_mut(slot);
    if row.consumer.options & PINGS == 2 * PING {
        // The pong may be in held bytes that were not processed yet.
        if !is_held(&clients.conns, slot) {
            clients.scratch.set_close_reason(Closed::Timeout);
            clients.drop_connection(slot, CloseMode::Reset);
        }
        return;
    }
    row.consumer.options += PING;
    let reply = &mut clients.scratch.reply;
    reply.clear();
    frame::write_frame(reply, Opcode::Ping, b"");
    clients.send_reply(slot, io);
}
