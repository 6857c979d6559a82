//! Bytes received behind a request that waits: how many are held, and when they are dropped.
//!
//! Invariant: a request whose credentials are being judged, and frames behind a WebSocket handshake, are never dropped alone to make room:
//! their connection ends instead.

use crate::client::row::{PAUSED, State};
use crate::io::Io;
use crate::protocol::front::{Clients, Connections, Front, Queues};
use crate::protocol::http::options::{KEEP, UPGRADE};
use crate::protocol::side::Spill;

impl Front {
    /// Keeps bytes received while a request waits. Past the length of a head the socket is not read; behind a poll, which must be
    /// read so that its end is noticed, they are dropped then.
    pub(crate) fn hold<I: Io>(&mut self, slot: u32, bytes: &[u8], io: &mut I) {
        let limit = self.clients.ctx.world.settings.limits.head_bytes;
        let row = self.clients.conns.get(slot);
        if row.state == State::Poll && !row.wants(KEEP) {
            // Bytes after the last request of a connection have no meaning.
            return;
        }
        let (polls, upgrades) = (row.state == State::Poll, row.wants(UPGRADE));
        let (before, asked) = match self.clients.conns.spill(slot) {
            None => (0, false),
            Some(Spill::Http(spill)) => (spill.data.len(), spill.asked),
            Some(_) => return self.end_for_room(slot, io),
        };
        let long = polls && before + bytes.len() > limit;
        if long || !self.has_receive_room(slot, bytes.len(), io) {
            return match upgrades || asked {
                // The bytes are frames, or the request whose credentials are being judged.
                true => self.end_for_room(slot, io),
                false => forget_pipelined(&mut self.clients.conns, &self.queues, slot, io),
            };
        }
        let held = self.clients.conns.change_spill(slot, |spill| match spill {
            Spill::Http(spill) => {
                spill.append(bytes, limit);
                spill.data.len()
            }
            _ => 0,
        });
        if held > limit {
            self.clients.conns.get_mut(slot).flags |= PAUSED;
            self.clients.conns.update_interest(slot, io);
        }
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
