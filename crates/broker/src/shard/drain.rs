//! Drains a shard before it stops: in each second it asks some clients to reconnect, by the means of their protocol. At the deadline it
//! closes all remaining connections.
//!
//! A cursor goes round the table of connections until no connection is left. Connections with a request in progress are skipped: their
//! answers contain `Connection: close` from now on, so these connections end by themselves.
//!
//! Invariants: the work of a tick is bounded. No acknowledged message is lost: a client that reconnects continues from its position or its session, or has
//! got the answer to its request.
//!
//! Deliberately not here: the refusal of new connections, which the owner of the listeners does.

use crate::base::reason::Closed;
use crate::base::time::Now;
use crate::client::protocols::protocol_of;
use crate::client::row::CLOSING;
use crate::io::{CloseMode, Io};
use crate::mail::orders::Settled;
use crate::protocol::front::{AllProtocols, Front};
use crate::shard::Shard;
use crate::shard::drain_progress::{DrainProgress, TICKS_PER_S};

impl Shard {
    /// Begins the drain, at the rate and until the deadline of `settings.drain`. The rate is the total of all shards. A second call changes
    /// nothing.
    pub fn drain(&mut self, now: Now) {
        self.front.clients.ctx.is_draining = true;
        let drain = &self.front.clients.ctx.world.settings.drain;
        let until_s = now.s.saturating_add(drain.deadline_s);
        let own_shard = self.front.clients.ctx.own_shard;
        self.drain_progress
            .get_or_insert(DrainProgress::new(drain.rate_per_s, own_shard, until_s));
    }

    /// Whether the drain has begun.
    pub fn is_draining(&self) -> bool {
        self.front.clients.ctx.is_draining
    }

    /// Stops the clock, so that the shard begins no more work by itself, and reports the work in progress.
    pub fn settle(&mut self) -> Settled {
        self.is_stopped = true;
        let lanes = self.front.subs.lanes.to.iter();
        let mut queued = lanes.map(|lane| lane.asks.len() + lane.tells.len());
        let waits = self.front.queues.len();
        Settled {
            connections: self.front.clients.conns.len(),
            posted: self.mail_count.posted,
            received: self.mail_count.received,
            busy: queued.any(|count| count > 0)
                || !self.commits.is_empty()
                || !(self.front.clients.protocol_state.published_wills).is_empty()
                || waits + self.front.feed.deliveries.len() > 0
                || self.has_waiting_work(),
        }
    }

    /// Milliseconds to the next tick of the drain; `None` without a drain, or without connections.
    pub(crate) fn ms_until_drain_tick(&self) -> Option<u32> {
        let is_moving = self.drain_progress.is_some() && self.front.clients.conns.len() > 0;
        is_moving.then_some(1000 / TICKS_PER_S)
    }
}

/// Asks the clients that are due in this tick to reconnect.
pub(super) fn move_due_clients<I: Io>(
    drain_progress: &mut Option<DrainProgress>,
    front: &mut Front,
    io: &mut I,
) {
    let Some(draining) = drain_progress else {
        return;
    };
    let end = front.clients.conns.end();
    let is_over = draining.is_over(front.clients.ctx.now.s);
    let mut due = draining.tick(front.clients.ctx.world.shards);
    let rows = draining.rows(end);
    let mut slot = rows.start;
    while slot < rows.end && (is_over || due > 0) {
        if !front.clients.conns.get(slot).is_open() {
            // Nothing to do: the row is free.
        } else if is_over {
            front.clients.scratch.set_close_reason(Closed::Operator);
            front.clients.drop_connection(slot, CloseMode::Now);
        } else if !front.clients.conns.get(slot).link.has(CLOSING) {
            let state = front.clients.conns.get(slot).consumer.state;
            let is_moved = protocol_of!(AllProtocols, state, move_off(front, slot, io));
            due -= u64::from(is_moved);
        }
        slot += 1;
    }
    front
        .clients
        .meter
        .work
        .steps
        .add((slot - rows.start) as usize);
    front.carry_out_ends(io);
    draining.set_next_row(slot, end);
}
