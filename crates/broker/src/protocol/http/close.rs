//! Ends HTTP connections, and streams that began as requests, for a reason. Functions that return a bool return whether the
//! connection ends.

use crate::base::reason::{Closed, Reason};
use crate::client::row::{FILTERS, SERVED, SUBSCRIPTION_LIST, State};
use crate::io::{CloseMode, Io};
use crate::protocol::front::{Clients, Connections};
use crate::protocol::http::answer::{finish_request, refuse};
use crate::protocol::http::body::write_part;
use crate::protocol::http::judge::note_reader_of_part;
use crate::protocol::http::options::{AS_EVENTS, FOLLOWS, KEEP_ALIVE, UPGRADE};
use crate::protocol::http::retry;
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// A kept-alive connection that was silent for this many seconds will probably not send a request right now.
const QUIET_S: u32 = 2;

/// Ends an HTTP connection without a stream.
pub(crate) fn end_http<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
    match (clients.conns.get(slot).consumer.state, reason.row().status) {
        (State::Draining | State::Proxy, _) | (_, None) => {
            clients.drop_connection(slot, CloseMode::Now)
        }
        (State::Waiting | State::Poll, Some(_)) if is_subscribing(&clients.conns, slot) => {
            end_subscribing(clients, slot, reason, io);
        }
        _ => {
            note_reader_of_rest(clients, slot);
            refuse(clients, slot, reason, io);
        }
    }
}

/// Records which page may read the refusal of a partly received request.
fn note_reader_of_rest(clients: &mut Clients, slot: u32) {
    // Bytes after a request that waits for its answer belong to another request.
    let is_first = clients.conns.get(slot).consumer.state == State::Http
        || awaits_verdict(&clients.conns, slot);
    // The refusal is the last answer of the connection, so its other bytes are not needed.
    if is_first && let Some(Spill::Http(spill)) = clients.conns.take_unprocessed_input(slot) {
        note_reader_of_part(clients, slot, &spill.data);
    }
}

/// Ends a request that waits for another shard, and that new settings would refuse.
pub(crate) fn end_waiting(clients: &mut Clients, slot: u32, reason: Reason) -> bool {
    clients.scratch.set_close_reason(reason.row().closed);
    clients.drop_connection(slot, CloseMode::Now);
    true
}

/// Ends an idle kept-alive connection, so that its client moves to another server. It stays if it was just active, or has a
/// request.
pub(crate) fn move_idle<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) -> bool {
    let row = clients.conns.get(slot);
    let is_idle =
        row.link.has(SERVED) && row.link.unprocessed_input == NONE && row.link.outbox == NONE;
    if !is_idle || clients.ctx.now.s.saturating_sub(row.link.sent_s) < QUIET_S {
        return false;
    }
    clients.scratch.set_close_reason(Closed::Operator);
    clients.close_after_output(slot, io);
    true
}

/// Refuses a waiting subscription, and ends its connection.
fn end_subscribing<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
    clients.conns.get_mut(slot).consumer.options &= !(KEEP_ALIVE | UPGRADE | AS_EVENTS);
    clients.respond_reason(slot, reason);
    finish_request(clients, slot, io);
}

/// Tells the client of an event stream when to connect again.
pub(crate) fn tell_when_to_come_back<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    clients.scratch.set_close_reason(Closed::Operator);
    let text = retry::move_off_event(clients.ctx.retry_spread(slot), clients.conns.len());
    let reply = &mut clients.scratch.reply;
    reply.clear();
    write_part(clients.conns.get(slot), &text, reply);
    clients.send_reply(slot, io);
}

/// Whether the waiting request is a subscription.
pub(crate) fn is_subscribing(conns: &Connections, slot: u32) -> bool {
    let row = conns.get(slot);
    row.consumer.topic != NONE
        || row.consumer.options & (SUBSCRIPTION_LIST | FILTERS | FOLLOWS) != 0
}

/// Whether the request waits for the verdict on its credential.
pub(crate) fn awaits_verdict(conns: &Connections, slot: u32) -> bool {
    matches!(conns.unprocessed_input(slot), Some(Spill::Http(it)) if it.awaits_verdict)
}
