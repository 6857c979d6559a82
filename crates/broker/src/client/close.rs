//! Ends connections, and counts why.
//!
//! Code that finds a reason to end a connection has only [`Clients`], and not the subscriptions. It only marks the end, with
//! [`Clients::close_after_output`] or [`Clients::drop_connection`]. From then on the connection is `Draining`: it gets no answer and no message, and
//! [`Clients::send_bytes`] sends nothing to it. After the current input or delivery, [`Front::carry_out_ends`] removes its subscriptions and its
//! session, and its row unless it still has bytes to send.
//!
//! Invariants: each end is counted once, when it begins; the flag `CLOSING` shows that it was counted. After a Close frame nothing is sent
//! (RFC 6455 section 5.5.1), even if the frame still waits in the outbox. The row of a marked connection stays until its end is carried
//! out, so a slot names the same connection during a whole input.
//!
//! If one row refers to another that does not exist, the server has a bug. It ends the connection and counts [`Closed::Broken`]. It panics
//! if another client could get wrong bytes.

use crate::base::ids::ConnId;
use crate::base::journal::EventKind;
use crate::base::reason::{Closed, Reason};
use crate::client::front::Front;
use crate::client::parts::Clients;
use crate::client::protocols::{Protocols, protocol_of};
use crate::client::row::{CLOSING, EOF, PAUSED, State, TURNED_AWAY};
use crate::client::scratch::PendingEnd;
use crate::client::subscriptions::unsubscribe_from_all;
use crate::client::types::ProtocolTypes;
use crate::io::{CloseMode, Io};
use crate::store::slab::NONE;

impl<P: Protocols> Front<P> {
    /// Ends the connections that an input has marked. If a row did not exist to which another refers, the input's connection ends too. If the
    /// input had no connection, the bug is only counted.
    pub(crate) fn end_input<I: Io>(&mut self, input_connection: Option<ConnId>, io: &mut I) {
        let missed = [
            self.clients.conns.take_missed(),
            self.subs.topics.take_missed(),
        ];
        if missed.contains(&true) {
            match input_connection.filter(|conn| self.clients.conns.is_current(*conn)) {
                Some(conn) => self.clients.end_as_broken(conn.slot),
                None => self.clients.meter.stats.closed[Closed::Broken as usize] += 1,
            }
        }
        self.clients.report_recorded_events(io);
        self.carry_out_ends(io);
    }

    /// Carries out the marked ends.
    // Called after each delivery, so the usual case only checks for an empty list.
    #[inline(always)]
    pub(crate) fn carry_out_ends<I: Io>(&mut self, io: &mut I) {
        if !self.clients.scratch.ends.is_empty() {
            self.carry_out_marked_ends(io);
        }
    }

    #[cold]
    #[inline(never)]
    fn carry_out_marked_ends<I: Io>(&mut self, io: &mut I) {
        self.clients.report_recorded_events(io);
        while let Some(end) = self.clients.scratch.ends.pop() {
            self.carry_out_marked_end(end, io);
        }
    }

    fn carry_out_marked_end<I: Io>(
        &mut self,
        PendingEnd {
            conn,
            close_mode,
            is_lost,
        }: PendingEnd,
        io: &mut I,
    ) {
        if !self.clients.conns.is_current(conn) {
            return;
        }
        self.clients.scratch.reply.clear();
        self.clients.scratch.is_lost = is_lost;
        P::connection_ends(self, conn.slot);
        unsubscribe_from_all(&mut self.clients, &mut self.subs, conn.slot);
        self.clients.scratch.is_lost = false;
        // From now on `member_place` counts the bytes that are discarded.
        self.clients.conns.get_mut(conn.slot).consumer.member_place = 0;
        self.clients.conns.drop_side_row(conn.slot);
        let Some(how) = close_mode else { return };
        let row = self.clients.conns.remove(conn.slot);
        self.gate.stop_counting(&self.clients.ctx, &row);
        self.clients.conns.close(row.link.socket, how, io);
    }
}

impl<P: Protocols> Clients<P> {
    /// Ends a connection in any state: because it is too slow, because the operator demands it, or because memory is short.
    pub(crate) fn end_connection<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) {
        self.scratch.set_close_reason(reason.row().closed);
        self.record_end_reason(reason.text());
        let row = self.conns.get(slot);
        let for_room = reason.row().closed == Closed::Full;
        if for_room && row.link.outbox != NONE {
            // The client does not read, so the server cannot tell it the reason.
            return self.reset(slot);
        }
        protocol_of!(P, row.consumer.state, end(self, slot, reason, io));
    }
}

impl<P: ProtocolTypes> Clients<P> {
    /// Ends the connection when its last bytes are out; they are written already or in the outbox. The row is freed when the peer has closed too, or
    /// after `timeouts.drain_s`.
    pub(crate) fn close_after_output<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.release_held_output(slot, io);
        let row = self.conns.get(slot);
        let waits = row.link.outbox != NONE;
        // The client of a stream sends nothing after its request.
        let is_last = row.link.has(EOF) || self.conns.is_http2_request(slot);
        let how = (!waits && is_last).then_some(CloseMode::Now);
        self.mark_end(slot, Closed::Done, how);
        if waits || how.is_some() {
            return;
        }
        let row = self.conns.get_mut(slot);
        row.link.flags &= !PAUSED;
        row.link.deadline_s = self.ctx.now.s + self.ctx.world.settings.timeouts.drain_s;
        let socket = row.link.socket;
        self.conns.close(socket, CloseMode::Drain, io);
        self.conns.update_interest(slot, io);
    }

    /// Ends the connection without sending its outbox. The outbox is freed here, since the caller may need the room.
    pub(crate) fn drop_connection(&mut self, slot: u32, mode: CloseMode) {
        // If a part of an answer was sent, the client must not take it for the complete answer.
        let is_cut = self.conns.get(slot).link.outbox != NONE && self.conns.is_http2_request(slot);
        let how = if is_cut { CloseMode::Reset } else { mode };
        self.mark_end(slot, Closed::Peer, Some(how));
        self.conns.drop_outbox(slot);
    }

    /// Resets a connection that cannot be served any more.
    pub(crate) fn reset(&mut self, slot: u32) {
        self.drop_connection(slot, CloseMode::Reset);
    }

    /// Ends a connection because one of its rows refers to a row that does not exist. The caller must return.
    pub(crate) fn end_as_broken(&mut self, slot: u32) {
        self.scratch.reply.clear();
        self.scratch.close_reason = Some(Closed::Broken);
        self.reset(slot);
    }

    /// Marks an end, and drops partly received input. Counts the end, unless the connection is closing already.
    fn mark_end(&mut self, slot: u32, default_reason: Closed, close_mode: Option<CloseMode>) {
        let row = self.conns.get_mut(slot);
        let reason = match self.scratch.close_reason.take() {
            _ if row.link.has(TURNED_AWAY) => Closed::Full,
            Some(reason) => reason,
            None => default_reason,
        };
        let is_closed = core::mem::take(&mut self.scratch.is_closed_by_client);
        let by_server = match reason {
            Closed::Refused | Closed::Deleted => true,
            // Clients that a drain has moved reconnect.
            Closed::Operator => !self.ctx.is_draining,
            _ => false,
        };
        let is_lost = !is_closed && !by_server;
        let is_new_end = !row.link.has(CLOSING);
        row.link.flags |= CLOSING;
        row.consumer.state = State::Draining;
        if is_new_end {
            self.meter.stats.closed[reason as usize] += 1;
            self.record_event(slot, EventKind::Disconnected, reason.name().as_bytes());
        }
        self.conns.take_unprocessed_input(slot);
        let conn = self.conns.id_of(slot);
        self.scratch.ends.push(PendingEnd {
            conn,
            close_mode,
            is_lost,
        });
    }

    /// Discards bytes that arrive after the server's last bytes. If they were not read, a client that still sends the body of a refused
    /// request would get a reset, and might never see the answer. The connection ends after as many bytes as a request may have.
    pub(crate) fn discard_received(&mut self, slot: u32, bytes: usize) {
        let limits = &self.ctx.world.settings.limits;
        let max = limits.message_bytes.max(limits.batch_bytes) + limits.head_bytes;
        let row = self.conns.get_mut(slot);
        row.consumer.member_place = row
            .consumer
            .member_place
            .saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if row.consumer.member_place as usize > max {
            self.drop_connection(slot, CloseMode::Now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::SocketId;
    use crate::base::settings::Settings;
    use crate::base::time::Now;
    use crate::budget::world::World;
    use crate::io::{Input, RecordingIo};
    use crate::shard::Shard;

    const NOW: Now = Now { s: 1, unix_s: 9 };

    fn shard_with_two_connections(io: &mut RecordingIo) -> Shard {
        let mut shard = Shard::new(0, World::for_tests(Settings::default(), 1), NOW);
        for link in [5, 6] {
            let peer = [127, 0, 0, 1].into();
            shard.handle(Input::Accepted(SocketId(link), peer), NOW, io);
        }
        shard
    }

    #[test]
    fn connection_with_a_missing_row_ends_alone_and_is_counted() {
        let mut io = RecordingIo::default();
        let mut shard = shard_with_two_connections(&mut io);
        shard.front().clients.end_as_broken(0);
        shard.front().clients.end_as_broken(0);
        shard.flush(NOW, &mut io);
        assert_eq!(io.closed, [(SocketId(5), CloseMode::Reset)]);
        assert_eq!(shard.stats().closed[Closed::Broken as usize], 1);
        assert_eq!(shard.connection_count(), 1);
    }

    #[test]
    fn bytes_of_a_half_received_message_are_free_when_their_connection_ends() {
        let mut io = RecordingIo::default();
        let mut shard = shard_with_two_connections(&mut io);
        let conn = shard.front().clients.conns.id_of(0);
        let upgrade = b"GET /pubsub/a HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
        // A binary frame of 4096 bytes, of which three have arrived.
        let begun = [0x82, 0xFE, 0x10, 0, 1, 2, 3, 4, 5, 6, 7];
        for bytes in [&upgrade[..], &begun] {
            shard.handle(Input::Received(conn, &mut bytes.to_vec()), NOW, &mut io);
            shard.flush(NOW, &mut io);
        }
        assert!(shard.accounts().receive_bytes > 0);
        shard
            .front()
            .clients
            .end_connection(0, Reason::MemoryFull, &mut io);
        assert_eq!(shard.accounts().receive_bytes, 0);
    }

    #[test]
    fn connection_that_ends_twice_in_an_input_is_counted_once_and_stays_until_the_end_of_the_input()
    {
        let mut io = RecordingIo::default();
        let mut shard = shard_with_two_connections(&mut io);
        let clients = &mut shard.front().clients;
        clients.close_after_output(0, &mut io);
        clients.reset(0);
        clients.send_bytes(0, b"late", &mut io);
        assert_eq!((clients.conns.len(), io.sent.len()), (2, 0));
        shard.flush(NOW, &mut io);
        let ends = [CloseMode::Drain, CloseMode::Reset].map(|how| (SocketId(5), how));
        assert_eq!((&io.closed[..], shard.connection_count()), (&ends[..], 1));
        assert_eq!(shard.stats().closed.iter().sum::<u64>(), 1);
    }
}
