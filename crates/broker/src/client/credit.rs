//! Connections that wait before they publish or subscribe: what this shard has under way to a home weighs more than
//! `limits.publish_credit_bytes`, or the log of the cluster has no room until a checkpoint makes some, or the carriers of some home are behind, and much of what is under way to them is of the connection's user or
//! address ([`Valve`](crate::budget::admission::valve::Valve)): a client that fills the carriers waits itself, and others pass it.
//!
//! Meanwhile a connection that has just published is not read. Bytes that were read already (requests pipelined behind the
//! publish, the first request of a new connection, frames) are held as received, as far as the account of memory has room
//! (`hold`), and carried out when there is credit again.
//!
//! Invariant: without credit no publish begins, and no batch goes on that ran out of its turn. So at most the credit plus one
//! publish, or one turn's part of a batch, is under way from one shard to another.

use crate::base::ids::ConnId;
use crate::base::planted::{self, Fault};
use crate::budget::admission::Party;
use crate::client::front::Front;
use crate::client::parts::{Clients, Connections, Context, Lanes, Queues, Stats};
use crate::client::protocols::Protocols;
use crate::client::row::{EOF, PAUSED};
use crate::client::types::ProtocolTypes;
use crate::home::Home;
use crate::io::Io;

/// A connection that goes on may use one part in so many of a turn's steps: so that in each turn several do, however much one
/// of them has sent.
const SHARES: u64 = 8;

impl<P: Protocols> Front<P> {
    /// Lets the connection whose turn it is go on, for a share of the turn's steps; says whether there was one.
    pub(crate) fn resume_one<I: Io>(&mut self, home: &mut Option<Home>, io: &mut I) -> bool {
        let Some(conn) = self.queues.next_resumed() else {
            return false;
        };
        let before = self.clients.meter.work.count();
        self.clients.meter.work.steps.add(1);
        if self.clients.conns.is_current(conn) {
            self.clients.meter.work.begin_share(SHARES);
            P::resume(self, conn, home, io);
            self.carry_out_ends(io);
            self.clients.meter.work.end_share();
        }
        let did = self.clients.meter.work.count() - before;
        self.queues.did(did);
        true
    }
}

/// Whether a connection must wait before it publishes: the credit at a home is used up, or it waits for carriers.
#[inline]
pub(crate) fn must_stall<P: ProtocolTypes>(clients: &Clients<P>, lanes: &Lanes, slot: u32) -> bool {
    lacks_credit(lanes, &clients.ctx) || waits_for_carriers(clients, slot)
}

#[inline]
fn lacks_credit(lanes: &Lanes, ctx: &Context) -> bool {
    let exceeds = lanes.exceeds(ctx.world.settings.limits.publish_credit_bytes)
        || ctx.world.admission.waits_for_log(ctx.now.unix_s);
    exceeds && !planted::is(Fault::NoCredit)
}

/// Whether carriers are behind, and much of what they have to deliver was published from the address of this connection, or asked for by its
/// user.
#[inline]
pub(crate) fn waits_for_carriers<P: ProtocolTypes>(clients: &Clients<P>, slot: u32) -> bool {
    let valve = &clients.ctx.world.admission.valve;
    !valve.is_open() && {
        let address = Party::of_address(clients.conns.get(slot).client);
        valve.stops(address) || valve.stops(clients.party(slot))
    }
}

/// Stops reading a publisher until there is credit again.
pub(crate) fn stall_if_needed<P: ProtocolTypes, I: Io>(
    clients: &mut Clients<P>,
    lanes: &Lanes,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    if must_stall(clients, lanes, slot) && !clients.conns.get(slot).is(PAUSED) {
        queues.stall(&mut clients.conns, &mut clients.meter.stats, slot, io);
    }
}

/// Lets connections go on when there is credit and they need not wait for carriers any more: those with held bytes queue to go on with them,
/// the others are read again.
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
        if P::is_held(&clients.conns, conn.slot) {
            queues.resume_later(clients, conn);
        } else {
            queues.read_again(&mut clients.conns, conn, io);
        }
    }
}

/// Reads a connection no more until it goes on: see [`Queues::read_again`].
pub(crate) fn stop_reading<P: ProtocolTypes, I: Io>(
    conns: &mut Connections<P>,
    slot: u32,
    io: &mut I,
) {
    let row = conns.get_mut(slot);
    if !row.is(PAUSED) {
        row.flags |= PAUSED;
        conns.update_interest(slot, io);
    }
}

impl Queues {
    /// Stops reading a publisher, whose bytes may be held, until there is credit again.
    pub(crate) fn stall<P: ProtocolTypes, I: Io>(
        &mut self,
        conns: &mut Connections<P>,
        stats: &mut Stats,
        slot: u32,
        io: &mut I,
    ) {
        let conn = conns.id_of(slot);
        let paused = conns.get(slot).is(PAUSED);
        if paused && self.is_stalled(conn) {
            return;
        }
        stats.credit_waits += 1;
        self.add_stalled(conn);
        if !paused {
            conns.get_mut(slot).flags |= PAUSED;
            conns.update_interest(slot, io);
        }
    }

    /// Reads a connection again, unless it waits for credit or has closed its side.
    pub(crate) fn read_again<P: ProtocolTypes, I: Io>(
        &self,
        conns: &mut Connections<P>,
        conn: ConnId,
        io: &mut I,
    ) {
        let row = conns.get(conn.slot);
        if row.is(PAUSED) && !row.is(EOF) && !self.is_stalled(conn) {
            conns.get_mut(conn.slot).flags &= !PAUSED;
            conns.update_interest(conn.slot, io);
        }
    }

    /// Queues a connection to go on with what it has begun: addresses and users share the work.
    pub(crate) fn resume_later<P: ProtocolTypes>(&mut self, clients: &Clients<P>, conn: ConnId) {
        let party = clients.party(conn.slot);
        self.resume(party.number(), conn);
    }

    /// The turn has done its share: the bytes already read of this connection are held, and it is not read again before its
    /// next turn.
    pub(crate) fn pause<P: ProtocolTypes, I: Io>(
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
