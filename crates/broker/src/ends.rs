//! How connections end, and the count of why.
//!
//! Invariants: each end is counted once, when it begins: who has `CLOSING` was counted. Behind its last bytes a connection is sent
//! nothing, also while they wait for the socket: it is `Draining` from then on, hears no answer and no message, and
//! [`Shard::put`] takes nothing for it. So nothing follows a Close frame (RFC 6455 section 5.5.1).
//!
//! Where rows contradict each other, which is a fault of ours, the connection that they are of ends and is counted as
//! [`Reason::Broken`]. What would endanger other clients' bytes still asserts.

use crate::account::Part;
use crate::conn::{CLOSING, ConnId, EOF, PAUSED, State, TURNED_AWAY};
use crate::io::{Close, Io};
use crate::shard::Shard;
use crate::slab::NONE;
use crate::stats::Reason;

impl Shard {
    /// Our last bytes are written, or wait for the socket: ends the subscription and lets the peer close.
    pub(crate) fn shut<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.unsubscribe(slot);
        self.count_end(slot, Reason::Done);
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
        self.drop_outbox(slot);
        self.drop_extra(slot);
        self.relayed.remove(&slot);
        let row = self.conns.remove(slot);
        self.left(&row);
        io.close(row.link, how);
    }

    /// Drops the side row of a connection that needs none any more.
    pub(crate) fn drop_extra(&mut self, slot: u32) {
        let row = self.conns.get_mut(slot);
        let extra = core::mem::replace(&mut row.extra, NONE);
        if extra != NONE {
            let (charged_bytes, _) = self.extras.remove(extra).weigh();
            self.purse.release(Part::Connections, charged_bytes);
        }
    }

    /// Charges what a connection's side row holds.
    pub(crate) fn weigh_extra(&mut self, slot: u32) {
        let row = self.conns.get(slot);
        let extra = row.extra;
        if row.is_open() && extra != NONE {
            let (before, now) = self.extras.get_mut(extra).weigh();
            self.purse.change(Part::Connections, before, now);
        }
    }

    /// What we hold of this connection contradicts itself: it ends with this input, and the process goes on. Whoever finds
    /// that says so here and returns without doing more.
    pub(crate) fn broken(&mut self, slot: u32) {
        self.reply.clear();
        self.broken.push(self.id_of(slot));
    }

    /// Ends the connection that an input was about which followed a link to no row, and those of which something else was
    /// found. Where it was about none, all that is known is that somebody's rows are broken: that is counted.
    pub(crate) fn end_missed<I: Io>(&mut self, about: Option<ConnId>, io: &mut I) {
        let missed = [
            self.conns.was_missed(),
            self.mqtts.was_missed(),
            self.spills.was_missed(),
            self.outboxes.was_missed(),
            self.extras.was_missed(),
            self.topics.was_missed(),
        ];
        if missed.contains(&true) {
            match about.filter(|conn| self.is_current(*conn)) {
                Some(conn) => self.broken.push(conn),
                None => self.stats.closed[Reason::Broken as usize] += 1,
            }
        }
        self.end_broken(io);
    }

    /// Ends the connections of which that was found.
    pub(crate) fn end_broken<I: Io>(&mut self, io: &mut I) {
        while let Some(conn) = self.broken.pop() {
            if self.is_current(conn) {
                self.reply.clear();
                self.why = Some(Reason::Broken);
                self.reset(conn.slot, io);
            }
        }
    }

    /// Ends a connection that cannot be served further.
    pub(crate) fn reset<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.drop_conn(slot, Close::Reset, io);
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::*;
    use crate::conn::{ConnId, Link};
    use crate::mail::{Mail, ShardId};
    use crate::{Input, Now, World, admission, rules, settings};

    #[derive(Default)]
    struct Closed(alloc::vec::Vec<(Link, Close)>);

    impl Io for Closed {
        fn open(&mut self, _: Link, _: ConnId) {}
        fn send(&mut self, _: Link, parts: &[&[u8]]) -> usize {
            parts.iter().map(|part| part.len()).sum()
        }
        fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
        fn close(&mut self, link: Link, how: Close) {
            self.0.push((link, how));
        }
        fn post(&mut self, _: ShardId, _: Mail) {}
    }

    #[test]
    fn of_whom_rows_contradict_each_other_ends_alone_and_is_counted() {
        let settings = settings::Settings::default();
        let world = World {
            rules: rules::Rules::new(&settings.rules),
            admission: admission::Admission::new(&settings, 9),
            settings,
            shards: 1,
            homes: 1,
            epoch: 7,
            seed: 42,
        };
        let now = Now { s: 1, unix_s: 9 };
        let (mut shard, mut io) = (Shard::new(0, Arc::new(world), now), Closed::default());
        for link in [5, 6] {
            shard.handle(
                Input::Accepted(Link(link), [127, 0, 0, 1].into()),
                now,
                &mut io,
            );
        }
        shard.broken(0);
        shard.broken(0);
        shard.flush(now, &mut io);
        assert_eq!(io.0, [(Link(5), Close::Reset)]);
        assert_eq!(shard.stats().closed[Reason::Broken as usize], 1);
        assert_eq!(shard.connections(), 1);
    }
}
