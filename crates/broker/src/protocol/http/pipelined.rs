//! Bytes received behind a request that waits: how many are held, and when they are dropped.
//!
//! Invariant: a request whose credentials are being judged, and frames behind a WebSocket handshake, are never dropped alone to make room:
//! their connection ends instead.

use crate::client::hold::{end_for_room, has_receive_room};
use crate::client::row::{PAUSED, State};
use crate::io::Io;
use crate::protocol::front::{Census, Clients, Connections, Queues};
use crate::protocol::http::options::{KEEP, UPGRADE};
use crate::protocol::side::Spill;

/// Keeps bytes received while a request waits. Past the length of a head the socket is not read; behind a poll, which must be
/// read so that its end is noticed, they are dropped then.
pub(crate) fn hold_pipelined<I: Io>(
    clients: &mut Clients,
    queues: &Queues,
    census: &Census,
    slot: u32,
    bytes: &[u8],
    io: &mut I,
) {
    let limit = clients.ctx.world.settings.limits.head_bytes;
    let row = clients.conns.get(slot);
    if row.state == State::Poll && !row.wants(KEEP) {
        // Bytes after the last request of a connection have no meaning.
        return;
    }
    let (polls, upgrades) = (row.state == State::Poll, row.wants(UPGRADE));
    let (before, asked) = match clients.conns.spill(slot) {
        None => (0, false),
        Some(Spill::Http(spill)) => (spill.data.len(), spill.asked),
        Some(_) => return end_for_room(clients, slot, io),
    };
    let long = polls && before + bytes.len() > limit;
    if long || !has_receive_room(clients, queues, census, slot, bytes.len(), io) {
        return match upgrades || asked {
            // The bytes are frames, or the request whose credentials are being judged.
            true => end_for_room(clients, slot, io),
            false => forget_pipelined(&mut clients.conns, queues, slot, io),
        };
    }
    let held = clients.conns.change_spill(slot, |spill| match spill {
        Spill::Http(spill) => {
            spill.append(bytes, limit);
            spill.data.len()
        }
        _ => 0,
    });
    if held > limit {
        clients.conns.get_mut(slot).flags |= PAUSED;
        clients.conns.update_interest(slot, io);
    }
}

/// Drops the bytes pipelined behind a waiting request, which becomes the last one of its connection: the client sends the
/// dropped requests again (RFC 9112 section 9.3.2).
pub(crate) fn forget_pipelined<I: Io>(
    conns: &mut Connections,
    queues: &Queues,
    slot: u32,
    io: &mut I,
) {
    conns.take_spill(slot);
    let row = conns.get_mut(slot);
    row.options &= !KEEP;
    if row.state == State::Poll {
        // It is read on, so that its end is noticed; received bytes are discarded.
        return queues.read_again(conns, conns.id_of(slot), io);
    }
    if !row.is(PAUSED) {
        row.flags |= PAUSED;
        conns.update_interest(slot, io);
    }
}

/// A long-poll begins to wait: bytes pipelined behind it are dropped if it is the connection's last request, or if they are
/// more than a head may have.
pub(crate) fn polls_from_now<I: Io>(clients: &mut Clients, queues: &Queues, slot: u32, io: &mut I) {
    let limit = clients.ctx.world.settings.limits.head_bytes;
    clients.conns.get_mut(slot).state = State::Poll;
    let row = clients.conns.get(slot);
    let spill = clients.conns.spill(slot);
    let long = matches!(spill, Some(Spill::Http(it)) if it.data.len() > limit);
    if long || !row.wants(KEEP) {
        forget_pipelined(&mut clients.conns, queues, slot, io);
    }
}
