//! Holds bytes received after a request that waits, up to a limit, and drops them when there is no room.
//!
//! Invariant: a request that waits for the verdict on its credential, and frames after a WebSocket handshake, are never dropped
//! while their connection lives. If there is no room for them, the connection ends.

use crate::client::hold::{end_for_room, has_receive_room};
use crate::client::row::{PAUSED, State};
use crate::io::Io;
use crate::protocol::front::{Clients, Connections, Front, Queues};
use crate::protocol::http::options::{KEEP_ALIVE, UPGRADE};
use crate::protocol::side::Spill;

/// Holds bytes received while a request waits. If they exceed the size limit of a head, the socket is not read any more. After a
/// poll they are dropped instead, because the socket of a poll must be read to notice its end.
pub(crate) fn hold_pipelined<I: Io>(front: &mut Front, slot: u32, bytes: &[u8], io: &mut I) {
    let (clients, queues, census) = (&mut front.clients, &front.queues, &front.census);
    let limit = clients.ctx.world.settings.limits.head_bytes;
    let row = clients.conns.get(slot);
    if row.consumer.state == State::Poll && !row.has_option(KEEP_ALIVE) {
        // Bytes after the last request of a connection have no meaning.
        return;
    }
    let (is_poll, is_upgrade) = (row.consumer.state == State::Poll, row.has_option(UPGRADE));
    let (held_bytes, awaits_verdict) = match clients.conns.unprocessed_input(slot) {
        None => (0, false),
        Some(Spill::Http(spill)) => (spill.data.len(), spill.awaits_verdict),
        Some(_) => return end_for_room(clients, slot, io),
    };
    let is_too_long = is_poll && held_bytes + bytes.len() > limit;
    if is_too_long || !has_receive_room(clients, queues, census, slot, bytes.len(), io) {
        return match is_upgrade || awaits_verdict {
            // The bytes are frames, or they are the request that waits for its verdict.
            true => end_for_room(clients, slot, io),
            false => drop_pipelined_bytes(&mut clients.conns, queues, slot, io),
        };
    }
    let held_now = clients
        .conns
        .change_unprocessed_input(slot, |spill| match spill {
            Spill::Http(spill) => {
                spill.append(bytes, limit);
                spill.data.len()
            }
            _ => 0,
        });
    if held_now > limit {
        clients.conns.get_mut(slot).link.flags |= PAUSED;
        clients.conns.update_interest(slot, io);
    }
}

/// Drops the bytes after a waiting request, which becomes the last one of its connection. The client sends the dropped requests
/// again (RFC 9112 section 9.3.2).
pub(crate) fn drop_pipelined_bytes<I: Io>(
    conns: &mut Connections,
    queues: &Queues,
    slot: u32,
    io: &mut I,
) {
    conns.take_unprocessed_input(slot);
    let row = conns.get_mut(slot);
    row.consumer.options &= !KEEP_ALIVE;
    if row.consumer.state == State::Poll {
        // The socket is read, so that its end is noticed. Received bytes are discarded.
        return queues.resume_reading(conns, conns.id_of(slot), io);
    }
    if !row.link.has(PAUSED) {
        row.link.flags |= PAUSED;
        conns.update_interest(slot, io);
    }
}

/// Lets a long-poll wait. Drops the bytes after it if it is the connection's last request, or if they exceed the size limit of a
/// head.
pub(crate) fn begin_poll_wait<I: Io>(
    clients: &mut Clients,
    queues: &Queues,
    slot: u32,
    io: &mut I,
) {
    let limit = clients.ctx.world.settings.limits.head_bytes;
    clients.conns.get_mut(slot).consumer.state = State::Poll;
    let row = clients.conns.get(slot);
    let spill = clients.conns.unprocessed_input(slot);
    let is_too_long = matches!(spill, Some(Spill::Http(it)) if it.data.len() > limit);
    if is_too_long || !row.has_option(KEEP_ALIVE) {
        drop_pipelined_bytes(&mut clients.conns, queues, slot, io);
    }
}
