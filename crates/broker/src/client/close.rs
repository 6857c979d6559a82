//! How connections end, and the count of why.
//!
//! Invariants: each end is counted once, when it begins: a connection with `CLOSING` was counted. After its last bytes a
//! connection is sent nothing, also while they wait for the socket: it is `Draining` from then on, gets no answer and no
//! message, and [`Clients::put`] sends nothing to it. So nothing follows a Close frame (RFC 6455 section 5.5.1).
//!
//! Where rows contradict each other, which is a fault of the server, their connection ends and is counted as
//! [`Closed::Broken`]. A contradiction that would endanger other clients' bytes still asserts.

use crate::base::ids::ConnId;
use crate::base::reason::{Closed, Reason};
use crate::client::front::Front;
use crate::client::parts::{Clients, Stats};
use crate::client::protocols::Protocols;
use crate::client::row::{CLOSING, EOF, PAUSED, State, TURNED_AWAY};
use crate::client::types::ProtocolTypes;
use crate::io::{Close, Io};
use crate::store::slab::NONE;

impl<P: Protocols> Front<P> {
    /// Our last bytes are written, or wait for the socket: ends the subscription and lets the peer close.
    pub(crate) fn shut<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.unsubscribe(slot);
        count_end(&mut self.clients, &mut self.meter.stats, slot, Closed::Done);
        let row = self.clients.conns.get_mut(slot);
        row.flags |= CLOSING;
        row.state = State::Draining;
        if row.outbox != NONE {
            return;
        }
        if row.is(EOF) {
            self.drop_conn(slot, Close::Now, io);
            return;
        }
        row.flags &= !PAUSED;
        row.place = 0;
        row.deadline_s = self.clients.ctx.now.s + self.clients.ctx.world.settings.timeouts.drain_s;
        io.close(row.link, Close::Drain);
        self.clients.conns.update_interest(slot, io);
    }

    /// Discards bytes that come after our last ones. A client that still sends the body of a refused request would get a reset if
    /// they were not read, and might never see the answer. No more are discarded than a body may have.
    pub(crate) fn throw_away<I: Io>(&mut self, slot: u32, bytes: usize, io: &mut I) {
        let limits = &self.clients.ctx.world.settings.limits;
        let most = limits.message_bytes.max(limits.batch_bytes) + limits.head_bytes;
        let row = self.clients.conns.get_mut(slot);
        row.place = row
            .place
            .saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if row.place as usize > most {
            self.drop_conn(slot, Close::Now, io);
        }
    }

    /// Forgets the connection.
    pub(crate) fn drop_conn<I: Io>(&mut self, slot: u32, how: Close, io: &mut I) {
        self.unsubscribe(slot);
        count_end(&mut self.clients, &mut self.meter.stats, slot, Closed::Peer);
        P::dropped(&mut self.clients, slot);
        let row = self.clients.conns.remove(slot);
        self.gate.left(&self.clients.ctx, &row);
        io.close(row.link, how);
    }

    /// Ends the connection that an input was about, if its rows were followed to a row that is not there, and all connections
    /// marked by [`Clients::broken`]. If the input was about no connection, the fault is only counted.
    pub(crate) fn end_missed<I: Io>(&mut self, about: Option<ConnId>, io: &mut I) {
        let missed = [
            self.clients.conns.was_missed(),
            self.subs.topics.was_missed(),
        ];
        if missed.contains(&true) {
            match about.filter(|conn| self.clients.conns.is_current(*conn)) {
                Some(conn) => self.clients.scratch.mark_broken(conn),
                None => self.meter.stats.closed[Closed::Broken as usize] += 1,
            }
        }
        self.end_broken(io);
    }

    /// Ends the connections marked by [`Clients::broken`].
    pub(crate) fn end_broken<I: Io>(&mut self, io: &mut I) {
        while let Some(conn) = self.clients.scratch.next_broken() {
            if self.clients.conns.is_current(conn) {
                self.clients.scratch.reply().clear();
                self.clients.scratch.is_broken();
                self.reset(conn.slot, io);
            }
        }
    }

    /// Ends a connection for this reason, in its protocol's words; false when this call did not end it.
    pub(crate) fn end_for<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) -> bool {
        let closed = reason.row().closed;
        match reason {
            Reason::TooSlow | Reason::Operator => self.clients.scratch.because(closed),
            Reason::InputsFull | Reason::MemoryFull => {
                self.clients.scratch.because(closed);
                if self.clients.conns.get(slot).outbox != NONE {
                    // It does not read what it is sent.
                    self.reset(slot, io);
                    return true;
                }
            }
            _ => {}
        }
        P::end_for(self, slot, reason, io)
    }

    /// Ends a connection that cannot be served further.
    pub(crate) fn reset<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.drop_conn(slot, Close::Reset, io);
    }
}

/// Counts the end of a connection, once: one that is closing was counted when that began.
fn count_end<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    stats: &mut Stats,
    slot: u32,
    otherwise: Closed,
) {
    let row = clients.conns.get(slot);
    let reason = match clients.scratch.take_reason() {
        _ if row.is(TURNED_AWAY) => Closed::Full,
        Some(reason) => reason,
        None => otherwise,
    };
    if !row.is(CLOSING) {
        stats.closed[reason as usize] += 1;
    }
}

impl<P: ProtocolTypes> Clients<P> {
    /// The rows of this connection contradict each other: it ends with this input, and the process goes on. The code that finds
    /// the contradiction calls this and returns without doing more.
    pub(crate) fn broken(&mut self, slot: u32) {
        self.scratch.reply().clear();
        self.scratch.mark_broken(self.conns.id_of(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Link;
    use crate::base::settings::Settings;
    use crate::base::time::Now;
    use crate::budget::world::World;
    use crate::io::{Input, Recorded};
    use crate::shard::Shard;

    const NOW: Now = Now { s: 1, unix_s: 9 };

    /// A shard with two connections.
    fn begun(io: &mut Recorded) -> Shard {
        let mut shard = Shard::new(0, World::for_tests(Settings::default(), 1), NOW);
        for link in [5, 6] {
            let peer = [127, 0, 0, 1].into();
            shard.handle(Input::Accepted(Link(link), peer), NOW, io);
        }
        shard
    }

    #[test]
    fn of_whom_rows_contradict_each_other_ends_alone_and_is_counted() {
        let mut io = Recorded::default();
        let mut shard = begun(&mut io);
        shard.front().clients.broken(0);
        shard.front().clients.broken(0);
        shard.flush(NOW, &mut io);
        assert_eq!(io.closed, [(Link(5), Close::Reset)]);
        assert_eq!(shard.stats().closed[Closed::Broken as usize], 1);
        assert_eq!(shard.connections(), 1);
    }
}
