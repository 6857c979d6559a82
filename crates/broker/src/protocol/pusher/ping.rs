//! Asks silent clients for a sign of life, and ends connections that give none. Every byte of a client is one.

use crore_wire::pusher::{ErrorCode, EventData};

use crate::base::reason::Closed;
use crate::io::Io;
use crate::protocol::front::Clients;
use crate::protocol::pusher::close::end_with_code;
use crate::protocol::pusher::options::AWAITS_PONG;
use crate::protocol::pusher::reply::write_event;

/// Called when nothing has come from the client for the time that it may be silent.
pub(super) fn client_is_silent<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    if clients.conns.get(slot).has_option(AWAITS_PONG) {
        let code = ErrorCode::NO_PONG;
        return end_with_code(clients, slot, Closed::Timeout, (code, code.text), io);
    }
    let deadline_s = clients.ctx.now.s + clients.ctx.world.settings.pusher.pong_timeout_s;
    let row = clients.conns.get_mut(slot);
    row.consumer.options |= AWAITS_PONG;
    row.link.deadline_s = deadline_s;
    write_event(clients, b"pusher:ping", None, EventData::Value(b"{}"));
    clients.send_reply(slot, io);
}
