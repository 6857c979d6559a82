//! How connections end, and the count of why.
//!
//! Invariants: each end is counted once, when it begins: a connection with `CLOSING` was counted. After its last bytes a
//! connection is sent nothing, also while they wait for the socket: it is `Draining` from then on, gets no answer and no
//! message, and [`Front::put`] sends nothing to it. So nothing follows a Close frame (RFC 6455 section 5.5.1).
//!
//! Where rows contradict each other, which is a fault of the server, their connection ends and is counted as
//! [`Closed::Broken`]. A contradiction that would endanger other clients' bytes still asserts.

use crate::base::ids::ConnId;
use crate::base::reason::{Closed, Reason};
use crate::client::front::Front;
use crate::client::protocols::Protocols;
use crate::client::row::{CLOSING, EOF, PAUSED, State, TURNED_AWAY};
use crate::io::{Close, Io};
use crate::store::slab::NONE;

impl<P: Protocols> Front<P> {
    /// Our last bytes are written, or wait for the socket: ends the subscription and lets the peer close.
    pub(crate) fn shut<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.unsubscribe(slot);
        self.count_end(slot, Closed::Done);
        let row = self.conns.get_mut(slot);
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
        row.deadline_s = self.now.s + self.world.settings.timeouts.drain_s;
        io.close(row.link, Close::Drain);
        self.conns.update_interest(slot, io);
    }

    /// Discards bytes that come after our last ones. A client that still sends the body of a refused request would get a reset if
    /// they were not read, and might never see the answer. No more are discarded than a body may have.
    pub(crate) fn throw_away<I: Io>(&mut self, slot: u32, bytes: usize, io: &mut I) {
        let limits = &self.world.settings.limits;
        let most = limits.message_bytes.max(limits.batch_bytes) + limits.head_bytes;
        let row = self.conns.get_mut(slot);
        row.place = row
            .place
            .saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if row.place as usize > most {
            self.drop_conn(slot, Close::Now, io);
        }
    }

    /// Notes why the connection at hand is about to end, if no reason was noted before.
    pub(crate) fn because(&mut self, reason: Closed) {
        self.ending.because(reason);
    }

    /// Counts the end of a connection, once: one that is closing was counted when that began.
    fn count_end(&mut self, slot: u32, otherwise: Closed) {
        let row = self.conns.get(slot);
        let reason = match self.ending.take_reason() {
            _ if row.is(TURNED_AWAY) => Closed::Full,
            Some(reason) => reason,
            None => otherwise,
        };
        if !row.is(CLOSING) {
            self.stats.closed[reason as usize] += 1;
        }
    }

    /// Forgets the connection.
    pub(crate) fn drop_conn<I: Io>(&mut self, slot: u32, how: Close, io: &mut I) {
        self.unsubscribe(slot);
        self.count_end(slot, Closed::Peer);
        P::dropped(self, slot);
        let row = self.conns.remove(slot);
        self.left(&row);
        io.close(row.link, how);
    }

    /// The connection at hand does not end after all.
    pub(crate) fn not_ending(&mut self) {
        self.ending.forget_reason();
    }

    /// The rows of this connection contradict each other: it ends with this input, and the process goes on. The code that finds
    /// the contradiction calls this and returns without doing more.
    pub(crate) fn broken(&mut self, slot: u32) {
        self.scratch.reply().clear();
        self.ending.mark_broken(self.conns.id_of(slot));
    }

    /// Ends the connection that an input was about, if its rows were followed to a row that is not there, and all connections
    /// marked by [`Front::broken`]. If the input was about no connection, the fault is only counted.
    pub(crate) fn end_missed<I: Io>(&mut self, about: Option<ConnId>, io: &mut I) {
        let missed = [self.conns.was_missed(), self.topics.was_missed()];
        if missed.contains(&true) {
            match about.filter(|conn| self.conns.is_current(*conn)) {
                Some(conn) => self.ending.mark_broken(conn),
                None => self.stats.closed[Closed::Broken as usize] += 1,
            }
        }
        self.end_broken(io);
    }

    /// Ends the connections marked by [`Front::broken`].
    pub(crate) fn end_broken<I: Io>(&mut self, io: &mut I) {
        while let Some(conn) = self.ending.next_broken() {
            if self.conns.is_current(conn) {
                self.scratch.reply().clear();
                self.ending.is_broken();
                self.reset(conn.slot, io);
            }
        }
    }

    /// Ends a connection for this reason, in its protocol's words; false when this call did not end it.
    pub(crate) fn end_for<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) -> bool {
        let closed = reason.row().closed;
        match reason {
            Reason::TooSlow | Reason::Operator => self.because(closed),
            Reason::InputsFull | Reason::MemoryFull => {
                self.because(closed);
                if self.conns.get(slot).outbox != NONE {
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
        shard.front().broken(0);
        shard.front().broken(0);
        shard.flush(NOW, &mut io);
        assert_eq!(io.closed, [(Link(5), Close::Reset)]);
        assert_eq!(shard.stats().closed[Closed::Broken as usize], 1);
        assert_eq!(shard.connections(), 1);
    }
}
