//! How connections end, and the count of why.
//!
//! Invariant: each end is counted once, when it begins: who has `CLOSING` was counted.

use crate::conn::{CLOSING, EOF, PAUSED, State, TURNED_AWAY};
use crate::io::{Close, Io};
use crate::shard::Shard;
use crate::slab::NONE;
use crate::stats::Reason;

impl Shard {
    /// Our last bytes are written: ends the subscription and lets the peer close.
    pub(crate) fn shut<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.unsubscribe(slot);
        self.count_end(slot, Reason::Done);
        let row = self.conns.get_mut(slot);
        row.flags |= CLOSING;
        if row.outbox != NONE {
            return;
        }
        if row.is(EOF) {
            self.drop_conn(slot, Close::Now, io);
            return;
        }
        row.state = State::Draining;
        row.flags &= !PAUSED;
        row.place = 0;
        row.deadline_s = self.now.s + self.world.settings.timeouts.drain_s;
        io.close(row.link, Close::Drain);
        self.update_interest(slot, io);
    }

    /// Bytes behind our last ones: a client that still sends the body of a request which was refused before it came would be
    /// told by a reset, and might never read the answer. No more of them than a body may have.
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

    /// Says why the connection at hand is about to end, if nothing said so before.
    pub(crate) fn because(&mut self, reason: Reason) {
        self.why.get_or_insert(reason);
    }

    /// Counts the end of a connection, once: who is closing was counted when that began.
    fn count_end(&mut self, slot: u32, otherwise: Reason) {
        let row = self.conns.get(slot);
        let reason = match self.why.take() {
            _ if row.is(TURNED_AWAY) => Reason::Full,
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
        self.count_end(slot, Reason::Peer);
        self.drop_spill(slot);
        self.drop_partial(slot);
        self.passes.remove(slot);
        let row = self.conns.remove(slot);
        self.left(&row);
        if row.outbox != NONE {
            self.outbox_bytes -= self.outboxes.remove(row.outbox).waiting_bytes();
        }
        if row.extra != NONE {
            self.extras.remove(row.extra);
        }
        io.close(row.link, how);
    }

    /// Ends a connection that cannot be served further.
    pub(crate) fn reset<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.drop_conn(slot, Close::Reset, io);
    }
}
