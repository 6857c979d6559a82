//! The differences between streams of events and of WebSocket frames.

use alloc::vec::Vec;

use crore_wire::http::head::Head;

use crate::base::reason::Reason;
use crate::protocol::front::{Clients, Connections, Deliveries, Matching};
use crate::protocol::http::options::{AS_EVENTS, ENVELOPE, META_FRAMES};
use crate::protocol::http::state::Gap;
use crate::protocol::sse::{event_of_position, events_head};
use crate::protocol::websocket::handshake::{FrameContent, accept_upgrade};
use crate::protocol::{sse, websocket};

/// Writes the head of the response that begins a stream into `reply`: the upgrade to WebSocket, or the head of an event stream for this topic.
pub(crate) fn stream_head(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    upgrade: bool,
    name: &[u8],
) -> Result<(), Reason> {
    if upgrade {
        return accept_upgrade(clients, slot, head, FrameContent::Messages);
    }
    clients.conns.get_mut(slot).consumer.options |= AS_EVENTS;
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
    if row.has_option(AS_EVENTS) {
        return event_of_position(clients, matching, deliveries, slot, offset);
    }
    if !row.has_option(ENVELOPE) || row.has_option(META_FRAMES) {
        return;
    }
    let mut id = Vec::with_capacity(32);
    clients.write_position(matching, deliveries, slot, offset, &mut id);
    let pending_response = clients.conns.pending_response_mut(slot).as_mut();
    let pending_response = pending_response.expect("the stream is not begun");
    websocket::gap::write_position(&id, &mut pending_response.body.own);
}

/// Appends the report of a gap (lost messages). False if the stream's format has none.
pub(crate) fn write_gap(conns: &Connections, slot: u32, gap: &Gap<'_>, out: &mut Vec<u8>) -> bool {
    let row = conns.get(slot);
    match row.has_option(AS_EVENTS) {
        true => sse::write_gap(row, gap.name, gap.id, out),
        false => return websocket::gap::write_gap_frame(row, gap.name, gap.id, out),
    }
    true
}
