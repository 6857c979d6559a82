//! Moving clients off before a stop: so many in a second, each in its protocol's words for "come back", and all that
//! are left at the deadline at once.
//!
//! A cursor walks the table again and again until nobody is left. Connections in the middle of a request are passed
//! over: their answers say `Connection: close` from now on, and so end by themselves. Invariants: the work of one tick
//! is bounded; no acknowledged message is lost by it, since a client that is moved off has a position, a session, or an
//! answer.
//!
//! It does not stop new connections: that is up to the owner of the listeners.

use crate::base::reason::Closed;
use crate::base::time::Now;
use crate::client::row::CLOSING;
use crate::io::{Close, Io};
use crate::mail::orders::Settled;
use crate::protocol::contract::move_off;
use crate::shard::Shard;
use crate::shard::draining::{Draining, TICKS_PER_S};

impl Shard {
    /// Begins to move clients off, as `settings.drain` says; its rate is that of all shards together. A second call
    /// changes nothing.
    pub fn drain(&mut self, now: Now) {
        self.front.clients.ctx.drains = true;
        let drain = &self.front.clients.ctx.world.settings.drain;
        let until_s = now.s.saturating_add(drain.deadline_s);
        let me = self.front.clients.ctx.me;
        self.draining
            .get_or_insert(Draining::new(drain.rate_per_s, me, until_s));
    }

    /// Whether clients are moved off.
    pub fn drains(&self) -> bool {
        self.front.clients.ctx.drains
    }

    /// Stops the clock, so that nothing begins any more by itself, and says what is under way.
    pub fn settle(&mut self) -> Settled {
        self.stopped = true;
        let says = self.front.subs.lanes.to.iter();
        let mut says = says.map(|lane| lane.asks.len() + lane.tells.len());
        let waits = self.front.queues.len();
        Settled {
            connections: self.front.clients.conns.len(),
            posted: self.posted,
            received: self.received,
            busy: says.any(|count| count > 0)
                || !self.commits.is_empty()
                || waits + self.front.feed.deliveries.len() > 0
                || self.has_more(),
        }
    }

    /// Milliseconds to the next tick that moves clients off.
    pub(crate) fn drain_in_ms(&self) -> Option<u32> {
        let waits = self.draining.is_some() && self.front.clients.conns.len() > 0;
        waits.then_some(1000 / TICKS_PER_S)
    }

    /// Moves off the clients that are due with this tick.
    pub(crate) fn move_off<I: Io>(&mut self, io: &mut I) {
        let Some(draining) = &mut self.draining else {
            return;
        };
        let end = self.front.clients.conns.end();
        let over = draining.is_over(self.front.clients.ctx.now.s);
        let mut due = draining.tick(self.front.clients.ctx.world.shards);
        let rows = draining.rows(end);
        let mut slot = rows.start;
        while slot < rows.end && (over || due > 0) {
            if !self.front.clients.conns.get(slot).is_open() {
                // A free row.
            } else if over {
                self.front.clients.scratch.because(Closed::Operator);
                self.front.clients.drop_conn(slot, Close::Now);
            } else if self.is_moved(slot, io) {
                due -= 1;
            }
            slot += 1;
        }
        let front = &mut self.front;
        front
            .clients
            .meter
            .work
            .steps
            .add((slot - rows.start) as usize);
        front.carry_out_ends(io);
        if let Some(draining) = &mut self.draining {
            draining.go_on(slot, end);
        }
    }

    /// Ends a connection in its protocol's words; false when it ends by itself, or soon.
    fn is_moved<I: Io>(&mut self, slot: u32, io: &mut I) -> bool {
        let closes = self.front.clients.conns.get(slot).is(CLOSING);
        let front = &mut self.front;
        !closes
            && move_off(
                &mut front.clients,
                &mut front.subs,
                &front.feed.deliveries,
                &mut front.queues,
                slot,
                io,
            )
    }
}
