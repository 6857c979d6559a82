//! Backpressure: stops reading a connection that publishes or subscribes while the server cannot take more, and continues it later.
//!
//! A connection waits for one of three reasons:
//! * The mail in flight from this shard to a home (a part of a shard that keeps topics) exceeds `limits.publish_credit_bytes`. The
//!   credit is what remains of this limit.
//! * The log of the cluster has no room until a checkpoint frees some.
//! * The carriers (shards with subscribers) of a home are behind, and the connection's user or address has much in flight to them
//!   ([`Valve`](crate::budget::admission::valve::Valve)). Other users and addresses continue.
//!
//! While a connection waits, its socket is not read. Bytes that were already read (pipelined requests, the first request of a new
//! connection, frames) are held as received, if the account of memory has room (`hold.rs`). They are processed when the wait ends.
//!
//! Invariant: without credit no publish begins, and no paused batch continues. So the mail in flight from one shard to another
//! exceeds the credit by one publish at most, or by the part of a batch that one turn processes.

use crate::base::ids::ConnId;
use crate::base::planted::{self, Fault};
use crate::budget::admission::Party;
use crate::client::front::Front;
use crate::client::parts::{Clients, Connections, Context, Lanes, Queues, Stats};
use crate::client::protocols::{Protocols, protocol_of};
use crate::client::row::{EOF, PAUSED};
use crate::client::types::ProtocolTypes;
use crate::home::Home;
use crate::io::Io;

/// A continued connection gets at most one part in this many of a turn's steps, however many bytes it has sent. So several
/// connections continue in each turn.
const SHARES_OF_TURN: u64 = 8;

impl<P: Protocols> Front<P> {
    /// Continues the next queued connection, for a share of the turn's steps. False if no connection is queued.
    pub(crate) fn resume_next_connection<I: Io>(
        &mut self,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        let Some(conn) = self.queues.pop_resumed() else {
            return false;
        };
        let before = self.clients.meter.work.count();
        self.clients.meter.work.steps.add(1);
        if self.clients.conns.is_current(conn) {
            self.clients.meter.work.begin_share(SHARES_OF_TURN);
            let state = self.clients.conns.get(conn.slot).consumer.state;
            protocol_of!(P, state, resume(self, conn, home, io));
            self.carry_out_ends(io);
            self.clients.meter.work.end_share();
        }
        let steps_used = self.clients.meter.work.count() - before;
        self.queues.charge(steps_used);
        true
    }
}

/// Whether a connection must wait before it publishes: for credit, for room in the cluster's log, or for carriers.
#[inline]
pub(crate) fn must_stall<P: ProtocolTypes>(clients: &Clients<P>, lanes: &Lanes, slot: u32) -> bool {
    lacks_credit(lanes, &clients.ctx) || waits_for_carriers(clients, slot)
}

#[inline]
fn lacks_credit(lanes: &Lanes, ctx: &Context) -> bool {
    let exceeds = lanes.exceeds_credit(ctx.world.settings.limits.publish_credit_bytes)
        || ctx.world.admission.waits_for_log(ctx.now.unix_s);
    exceeds && !planted::is(Fault::NoCredit)
}

/// Whether a connection must wait for carriers: its address or its user has much in flight to carriers that are behind.
#[inline]
pub(crate) fn waits_for_carriers<P: ProtocolTypes>(clients: &Clients<P>, slot: u32) -> bool {
    let valve = &clients.ctx.world.admission.valve;
    !valve.is_open() && {
        let address = Party::of_address(clients.conns.get(slot).consumer.client);
        valve.must_wait(address) || valve.must_wait(clients.party(slot))
    }
}

/// Stops reading a publisher if it must wait.
pub(crate) fn stall_if_needed<P: ProtocolTypes, I: Io>(
    clients: &mut Clients<P>,
    lanes: &Lanes,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    if must_stall(clients, lanes, slot) && !clients.conns.get(slot).link.has(PAUSED) {
        queues.stall(&mut clients.conns, &mut clients.meter.stats, slot, io);
    }
}

/// Continues the connections that waited, if they need not wait any more. A connection with held bytes is queued; any other
/// connection is read again.
pub(crate) fn release_stalled<P: Protocols, I: Io>(
    clients: &mut Clients<P>,
    lanes: &Lanes,
    queues: &mut Queues,
    io: &mut I,
) {
    if lacks_credit(lanes, &clients.ctx) {
        return;
    }
    let is_open = clients.ctx.world.admission.valve.is_open();
    for conn in queues.take_stalled(is_open) {
        clients.meter.work.steps.add(1);
        if !clients.conns.is_current(conn) {
            continue;
        }
        if waits_for_carriers(clients, conn.slot) {
            queues.add_stalled(conn);
            continue;
        }
        let (conns, slot) = (&clients.conns, conn.slot);
        if protocol_of!(
            P,
            conns.get(slot).consumer.state,
            has_waiting_input(conns, slot)
        ) {
            queues.resume_later(clients, conn);
        } else {
            queues.resume_reading(&mut clients.conns, conn, io);
        }
    }
}

/// Stops reading a connection, until [`Queues::resume_reading`].
pub(crate) fn stop_reading<P: ProtocolTypes, I: Io>(
    conns: &mut Connections<P>,
    slot: u32,
    io: &mut I,
) {
    let row = conns.get_mut(slot);
    if !row.link.has(PAUSED) {
        row.link.flags |= PAUSED;
        conns.update_interest(slot, io);
    }
}

impl Queues {
    /// Stops reading a publisher that must wait, and adds it to the waiting connections. Some of its bytes may be held.
    pub(crate) fn stall<P: ProtocolTypes, I: Io>(
        &mut self,
        conns: &mut Connections<P>,
        stats: &mut Stats,
        slot: u32,
        io: &mut I,
    ) {
        let conn = conns.id_of(slot);
        let paused = conns.get(slot).link.has(PAUSED);
        if paused && self.is_stalled(conn) {
            return;
        }
        stats.credit_waits += 1;
        self.add_stalled(conn);
        if !paused {
            conns.get_mut(slot).link.flags |= PAUSED;
            conns.update_interest(slot, io);
        }
    }

    /// Reads a connection again, unless it waits for credit or its client has closed the sending side.
    pub(crate) fn resume_reading<P: ProtocolTypes, I: Io>(
        &self,
        conns: &mut Connections<P>,
        conn: ConnId,
        io: &mut I,
    ) {
        let row = conns.get(conn.slot);
        if row.link.has(PAUSED) && !row.link.has(EOF) && !self.is_stalled(conn) {
            conns.get_mut(conn.slot).link.flags &= !PAUSED;
            conns.update_interest(conn.slot, io);
        }
    }

    /// Queues a connection to continue its begun work. The queue is fair to addresses and users.
    pub(crate) fn resume_later<P: ProtocolTypes>(&mut self, clients: &Clients<P>, conn: ConnId) {
        let party = clients.party(conn.slot);
        self.push_resumed(party.number(), conn);
    }

    /// Ends a connection's work in this turn: queues the connection, and stops reading it until it continues. The caller holds the
    /// bytes that were already read.
    pub(crate) fn pause_until_next_turn<P: ProtocolTypes, I: Io>(
        &mut self,
        clients: &mut Clients<P>,
        slot: u32,
        io: &mut I,
    ) {
        let conn = clients.conns.id_of(slot);
        self.resume_later(clients, conn);
        stop_reading(&mut clients.conns, slot, io);
    }
}
