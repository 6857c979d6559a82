//! Publishers that wait for credit: what this shard has under way to a home weighs more than
//! `limits.publish_credit_bytes`, or the carriers of this shard's own home are behind.
//!
//! Meanwhile a connection that has just published is not read. Bytes that were read already (requests pipelined behind the
//! publish, the first request of a new connection, frames) are held as received, as far as the account of memory has room
//! (`hold`), and carried out when there is credit again.
//!
//! Invariant: without credit no publish begins, and no batch goes on that ran out of its turn. So at most the credit plus one
//! publish, or one turn's part of a batch, is under way from one shard to another.

use crate::base::ids::ConnId;
use crate::base::planted::{self, Fault};
use crate::client::front::Front;
use crate::client::protocols::Protocols;
use crate::client::row::{EOF, PAUSED};
use crate::home::Home;
use crate::io::Io;

/// A connection that goes on may use one part in so many of a turn's steps: so that in each turn several do, however much one
/// of them has sent.
const SHARES: u64 = 8;

impl<P: Protocols> Front<P> {
    /// Whether publishers must wait: the credit at a home is used up, or our carriers are behind.
    pub(crate) fn must_stall(&mut self) -> bool {
        if planted::is(Fault::NoCredit) {
            return false;
        }
        let limit = self.world.settings.limits.publish_credit_bytes;
        self.lanes.exceeds(limit) || self.lanes.is_pressed()
    }

    /// Stops reading a publisher until there is credit again.
    pub(crate) fn stall_if_needed<I: Io>(&mut self, slot: u32, io: &mut I) {
        if self.must_stall() && !self.conns.get(slot).is(PAUSED) {
            self.stall(slot, io);
        }
    }

    /// Stops reading a publisher, whose bytes may be held, until there is credit again.
    pub(crate) fn stall<I: Io>(&mut self, slot: u32, io: &mut I) {
        let conn = self.conns.id_of(slot);
        let paused = self.conns.get(slot).is(PAUSED);
        if paused && self.queues.is_stalled(conn) {
            return;
        }
        self.stats.credit_waits += 1;
        self.queues.stall(conn);
        if !paused {
            self.conns.get_mut(slot).flags |= PAUSED;
            self.conns.update_interest(slot, io);
        }
    }

    /// Whether bytes of this connection that were read may still have to be carried out.
    pub(crate) fn is_held(&self, slot: u32) -> bool {
        P::is_held(self, slot)
    }

    /// There is credit again: connections with held bytes queue to go on with them, the others are read again.
    pub(crate) fn release_stalled<I: Io>(&mut self, io: &mut I) {
        for conn in self.queues.take_stalled() {
            self.work.steps.add(1);
            if !self.conns.is_current(conn) {
                continue;
            }
            if self.is_held(conn.slot) {
                self.resume_later(conn);
            } else {
                self.read_again(conn, io);
            }
        }
    }

    /// Reads a connection again, unless it waits for credit or has closed its side.
    pub(crate) fn read_again<I: Io>(&mut self, conn: ConnId, io: &mut I) {
        let row = self.conns.get(conn.slot);
        if row.is(PAUSED) && !row.is(EOF) && !self.queues.is_stalled(conn) {
            self.conns.get_mut(conn.slot).flags &= !PAUSED;
            self.conns.update_interest(conn.slot, io);
        }
    }

    /// Queues a connection to go on with what it has begun: addresses and users share the work.
    pub(crate) fn resume_later(&mut self, conn: ConnId) {
        let party = self.party(conn.slot);
        self.queues.resume(party.number(), conn);
    }

    /// Lets the connection whose turn it is go on, for a share of the turn's steps; says whether there was one.
    pub(crate) fn resume_one<I: Io>(&mut self, home: &mut Option<Home>, io: &mut I) -> bool {
        let Some(conn) = self.queues.next_resumed() else {
            return false;
        };
        let before = self.work.count();
        self.work.steps.add(1);
        if self.conns.is_current(conn) {
            self.work.begin_share(SHARES);
            P::resume(self, conn, home, io);
            self.work.end_share();
        }
        let did = self.work.count() - before;
        self.queues.did(did);
        true
    }

    /// The turn has done its share: the bytes already read of this connection are held, and it is not read again before its
    /// next turn.
    pub(crate) fn pause<I: Io>(&mut self, slot: u32, io: &mut I) {
        let conn = self.conns.id_of(slot);
        self.resume_later(conn);
        self.stop_reading(slot, io);
    }

    /// Reads a connection no more until it goes on: see [`Self::read_again`].
    pub(crate) fn stop_reading<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        if !row.is(PAUSED) {
            row.flags |= PAUSED;
            self.conns.update_interest(slot, io);
        }
    }
}
