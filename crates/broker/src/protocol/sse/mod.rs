//! Server-Sent Events: the response head, comments and the report of a gap (lost messages). `protocol/encode.rs` writes messages.
//! A stream begins and gets its pages in the same way for events and frames (`protocol/stream/stream_pages.rs`).

use alloc::vec::Vec;

use crore_wire::sse;

use crate::client::row::Row;
use crate::io::Io;
use crate::protocol::front::{Clients, Deliveries, Matching};
use crate::protocol::http::answer::stream_head;
use crate::protocol::http::body::write_part;
use crate::protocol::http::options::HEAD_REQUEST;

/// A comment of an event stream. Without an empty line after it, since some readers would take that for an event.
const COMMENT: &[u8] = b":\n";

/// Appends an event that reports a gap before this position.
pub(crate) fn write_gap(row: &Row, name: &[u8], id: &[u8], out: &mut Vec<u8>) {
    let mut text = Vec::with_capacity(64);
    sse::write_gap(&mut text, id, name);
    write_part(row, &text, out);
}

/// Sends a comment if nothing was sent for too long.
pub(crate) fn comment_if_quiet<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    if !clients.is_heartbeat_due(slot) {
        return;
    }
    let reply = &mut clients.scratch.reply;
    reply.clear();
    write_part(clients.conns.get(slot), COMMENT, reply);
    clients.send_reply(slot, io);
}

/// Writes the head of an event stream and its first comment into `reply`.
pub(crate) fn events_head(clients: &mut Clients, slot: u32, name: &[u8]) {
    let rules = &clients.ctx.world.rules;
    let retry_ms = rules.get(rules.number_for(name)).sse_retry_ms;
    stream_head(clients, slot, b"text/event-stream");
    if clients.conns.get(slot).has_option(HEAD_REQUEST) {
        return;
    }
    let mut text = Vec::with_capacity(32);
    sse::write_comment(&mut text, "");
    sse::write_retry(&mut text, retry_ms);
    let row = clients.conns.get(slot);
    write_part(row, &text, &mut clients.scratch.reply);
}

/// Writes an id without data, so that the client remembers the position before the first message. An empty line after it would make
/// the id effective at once, and is no event by the standard, but some libraries take it for an event. So only clients with
/// `no-cache` get the empty line: those follow the standard (HTML, section 9.2.2, and Fetch, section 4.6, for the cache mode).
pub(crate) fn event_of_position(
    clients: &mut Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    offset: u64,
) {
    let pending_response = clients.conns.pending_response_mut(slot).as_ref();
    let no_cache = pending_response.is_some_and(|begun| begun.no_cache);
    let mut text = Vec::with_capacity(48);
    text.extend_from_slice(b"id: ");
    clients.write_position(matching, deliveries, slot, offset, &mut text);
    text.extend_from_slice(if no_cache { b"\n\n" } else { b"\n" });
    let mut bytes = Vec::with_capacity(64);
    write_part(clients.conns.get(slot), &text, &mut bytes);
    let pending_response = clients
        .conns
        .pending_response_mut(slot)
        .as_mut()
        .expect("the stream is not begun");
    pending_response.body.own.extend_from_slice(&bytes);
}
