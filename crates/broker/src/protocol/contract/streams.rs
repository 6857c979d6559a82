//! Dispatches for streams of messages: the differences between event streams and WebSocket frames.

use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::websocket::frame;

use crate::base::reason::{Closed, Reason};
use crate::client::row::State;
use crate::io::Io;
use crate::protocol::front::{Clients, Connections, Deliveries, Matching};
use crate::protocol::http::body::write_end;
use crate::protocol::http::options::{ENVELOPE, EVENTS, META};
use crate::protocol::http::state::Gap;
use crate::protocol::mqtt::options::FRAMED;
use crate::protocol::sse::{event_of_position, events_head};
use crate::protocol::websocket::handshake::accept_upgrade;
use crate::protocol::{sse, websocket};

/// The close code for a reason that has none: a fault of the server (RFC 6455 section 7.4.1).
const INTERNAL: u16 = 1011;

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
    if clients.conns.get(slot).state != State::Draining {
        clients.meter.stats.refusals.add(reason);
        clients.note_end_reason(words);
    }
    end_stream_by(
        clients,
        slot,
        row.closed,
        row.close.unwrap_or(INTERNAL),
        words,
        io,
    );
}

/// Ends a stream as `end_stream` does, with a code that the peer chose, or that the parser of frames gave.
pub(crate) fn end_stream_by<I: Io>(
    clients: &mut Clients,
    slot: u32,
    closed: Closed,
    code: u16,
    words: &str,
    io: &mut I,
) {
    let row = clients.conns.get(slot);
    if row.state == State::Draining {
        clients.scratch.why = None;
        return;
    }
    clients.scratch.note_close_reason(closed);
    let mut bytes = Vec::new();
    match has_frames(&clients.conns, slot) {
        true => frame::write_close(&mut bytes, code, words),
        false => write_end(clients.conns.get(slot), &mut bytes),
    }
    clients.put(slot, &bytes, io);
    clients.shut(slot, io);
}

/// Writes the head of the response that begins a stream into `reply`: the upgrade to WebSocket, or the head of an event stream for this topic.
pub(crate) fn stream_head(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    upgrade: bool,
    name: &[u8],
) -> Result<(), Reason> {
    if upgrade {
        return accept_upgrade(clients, slot, head, None);
    }
    clients.conns.get_mut(slot).options |= EVENTS;
    events_head(clients, slot, name);
    Ok(())
}

/// Tells the client of a stream that has not begun the position before its first message, if its format has a way to.
pub(crate) fn tell_position(
    clients: &mut Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    offset: u64,
) {
    let row = clients.conns.get(slot);
    if row.wants(EVENTS) {
        return event_of_position(clients, matching, deliveries, slot, offset);
    }
    if !row.wants(ENVELOPE) || row.wants(META) {
        return;
    }
    let mut id = Vec::with_capacity(32);
    clients.write_id(matching, deliveries, slot, offset, &mut id);
    let attaching = clients.conns.extra(slot).own.attaching.as_mut();
    let attaching = attaching.expect("the stream is not begun");
    websocket::gap::write_position(&id, &mut attaching.body.own);
}

/// Appends the report of a gap (lost messages). False if the stream's format has none.
pub(crate) fn write_gap(conns: &Connections, slot: u32, gap: &Gap<'_>, out: &mut Vec<u8>) -> bool {
    let row = conns.get(slot);
    match row.wants(EVENTS) {
        true => sse::write_gap(row, gap.name, gap.id, out),
        false => return websocket::gap::write(row, gap.name, gap.id, out),
    }
    true
}

/// Whether the connection's bytes are WebSocket frames.
pub(crate) fn has_frames(conns: &Connections, slot: u32) -> bool {
    let row = conns.get(slot);
    match row.state {
        State::WebSocket => true,
        State::Mqtt => row.wants(FRAMED),
        State::Proxy
        | State::Http
        | State::Waiting
        | State::Poll
        | State::Sse
        | State::Draining => false,
    }
}
