//! The end of a turn for links of HTTP/2: their frames are given to their sockets, and answers that waited for a window go on.
//!
//! Invariant: streams that wait take turns of one frame each, so a stream with much to send holds up no other.

use alloc::vec::Vec;

use crore_wire::http2::frame::PAYLOAD_MAX;

use crate::client::row::HELD;
use crate::client::send::writable;
use crate::io::Io;
use crate::protocol::front::{Clients, Connections, Front};
use crate::store::slab::NONE;

/// Sends the frames of all links, and goes on with answers that waited.
pub(crate) fn flush_links<I: Io>(front: &mut Front, io: &mut I) {
    while let Some(slot) = front.clients.conns.links.next_dirty() {
        flush(&mut front.clients, slot, io);
        if front.clients.conns.links.take_waiting(slot) {
            go_on(front, slot, io);
        }
        front.clients.conns.weigh_link(slot);
    }
}

fn flush<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let frames = clients.conns.links.take_frames(slot);
    if !frames.is_empty() {
        clients.put(slot, &frames, io);
        let is_full = clients.conns.get(slot).link.outbox != NONE;
        clients.conns.links.set_full(slot, is_full);
    }
}

/// Writes the outboxes of the link's streams, in rounds of one frame each, as far as the windows and the socket allow.
fn go_on<I: Io>(front: &mut Front, link: u32, io: &mut I) {
    loop {
        let streams = due(&front.clients.conns, link);
        let mut wrote = false;
        for (stream, slot) in streams {
            let before = waiting_bytes(&front.clients.conns, slot);
            writable(front, slot, PAYLOAD_MAX, io);
            wrote |= waiting_bytes(&front.clients.conns, slot) < before;
            let Some(link) = front.clients.conns.links.get_mut(link) else {
                return;
            };
            link.cursor = stream;
            if link.is_full {
                return;
            }
        }
        if !wrote {
            return;
        }
    }
}

/// The streams whose outbox may be written, from the one after the last round's on.
fn due(conns: &Connections, link: u32) -> Vec<(u32, u32)> {
    let Some(link) = conns.links.get(link) else {
        return Vec::new();
    };
    let waits = |&(stream, slot): &(u32, u32)| {
        slot != NONE && {
            let row = conns.get(slot);
            row.link.outbox != NONE && !row.link.has(HELD) && link.codec.capacity(stream) > 0
        }
    };
    let mut streams: Vec<_> = link.codec.slots().filter(waits).collect();
    let first = streams.partition_point(|(stream, _)| *stream <= link.cursor);
    streams.rotate_left(first);
    streams
}

fn waiting_bytes(conns: &Connections, slot: u32) -> usize {
    let outbox = conns.outbox(slot);
    outbox.map_or(0, |outbox| outbox.waiting_bytes())
}
