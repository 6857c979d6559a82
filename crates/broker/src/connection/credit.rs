//! Publishers that wait for credit: a home has more of our publishes than it has dealt with, or the carriers of
//! this shard's home are behind.
//!
//! Who has just published is not read any more. What was read already (requests pipelined behind that one, the
//! first request of somebody who comes anew, frames) is held as it came, up to the limit of all that is partly
//! received, and carried out when there is credit again.
//!
//! Invariant: no publish begins while there is no credit. So what is under way from one shard to another is at
//! most the credit and one publish; a batch is one, and is carried out whole.

use crate::conn::{ConnId, EOF, PAUSED, Spill, State};
use crate::io::Io;
use crate::planted::{self, Fault};
use crate::shard::Shard;
use crate::slab::NONE;

impl Shard {
    /// Whether publishers must wait: a home owes us credit, or our carriers are behind.
    pub(crate) fn must_stall(&mut self) -> bool {
        if planted::is(Fault::NoCredit) {
            return false;
        }
        let limit = self.world.settings.limits.publish_credit_bytes;
        self.lanes
            .to
            .iter()
            .any(|lane| lane.under_way_bytes + lane.bytes.len() > limit)
            || self.lanes.is_pressed()
    }

    /// Stops reading a publisher until there is credit again.
    pub(crate) fn stall_if_needed<I: Io>(&mut self, slot: u32, io: &mut I) {
        if self.must_stall() && !self.conns.get(slot).is(PAUSED) {
            self.stall(slot, io);
        }
    }

    /// Stops reading a publisher, whose bytes may be held, until there is credit again.
    pub(super) fn stall<I: Io>(&mut self, slot: u32, io: &mut I) {
        let conn = self.id_of(slot);
        let paused = self.conns.get(slot).is(PAUSED);
        if paused && self.stalled.contains(&conn) {
            return;
        }
        self.stats.credit_waits += 1;
        self.stalled.push(conn);
        if !paused {
            self.conns.get_mut(slot).flags |= PAUSED;
            self.update_interest(slot, io);
        }
    }

    /// Whether something of this connection waits for credit.
    pub(super) fn is_held(&self, slot: u32) -> bool {
        let row = self.conns.get(slot);
        let spill = row.spill;
        row.state == State::Mqtt
            || spill != NONE
                && match self.spills.get(spill) {
                    Spill::Http(spill) => spill.held,
                    Spill::Frames(..) | Spill::Mqtt(..) => true,
                    Spill::WebSocket(..) => false,
                }
    }

    /// There is credit again: first goes what is held.
    pub(crate) fn release_stalled<I: Io>(&mut self, io: &mut I) {
        for conn in core::mem::take(&mut self.stalled) {
            if !self.is_current(conn) {
                continue;
            }
            if self.is_held(conn.slot) {
                self.resumed.push(conn);
            } else {
                self.read_again(conn, io);
            }
        }
    }

    /// Reads a connection again that was not, unless it waits for credit or has nothing more to say.
    pub(super) fn read_again<I: Io>(&mut self, conn: ConnId, io: &mut I) {
        let row = self.conns.get(conn.slot);
        if row.is(PAUSED) && !row.is(EOF) && !self.stalled.contains(&conn) {
            self.conns.get_mut(conn.slot).flags &= !PAUSED;
            self.update_interest(conn.slot, io);
        }
    }

    /// Lets connections go on that may, until the turn has published its share.
    pub(crate) fn resume_all<I: Io>(&mut self, io: &mut I) {
        let resumed = core::mem::take(&mut self.resumed);
        for (n, conn) in resumed.iter().enumerate() {
            if self.is_spent() {
                self.resumed.extend_from_slice(&resumed[n..]);
                return;
            }
            if self.is_current(*conn) {
                self.resume(*conn, io);
            }
        }
    }
}
