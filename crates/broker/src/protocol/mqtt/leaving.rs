//! Sessions whose connection has ended while homes owe it answers to its publishes.
//!
//! Invariant: a session that lasts is given back only when each publish of its connection stands in a log or was
//! refused, and when all homes have heard which messages it needs kept. So the connection that has it next, and is sent one of
//! the publishes again, answers truly and keeps the order; and the end of the session releases all that is kept for it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::farewells::{Leaving, NotDue};
use super::kept::forget_received;
use super::publish::{answered, reason_of};
use crate::base::ids::{ConnId, ShardId};
use crate::base::reason::Closed;
use crate::mail::session::SessionId;
use crate::mail::{Ask, Farewell, Outcome, ReplyTo};
use crate::protocol::front::Front;

/// Stands for the answer to a fence among those to publishes: no packet id is 0.
const FENCE: u32 = 0;

impl Front {
    /// Gives a session back; one that lasts only when these publishes are answered.
    pub(super) fn give_back(&mut self, from: ConnId, farewell: Box<Farewell>, due: Vec<u32>) {
        let lasts = farewell.kept.is_some();
        let leaving = Leaving { farewell, due };
        if !lasts || leaving.due.is_empty() {
            return self.gave_back(leaving);
        }
        // A connection ends once; if it ended twice, the session given back first goes home too.
        if let Some(before) = self.own.leaving.wait(from, leaving) {
            self.gave_back(before);
        }
    }

    /// The home of a session.
    pub(super) fn home_of_session(&self, id: SessionId) -> ShardId {
        self.world.placement().home_of(id.partition.into())
    }

    fn gave_back(&mut self, leaving: Leaving) {
        let home = self.home_of_session(leaving.farewell.id);
        let close = Ask::SessionClose(leaving.farewell);
        self.ask(home, |_| close);
    }

    /// Asks homes to confirm that they know which messages the session needs kept. The home of the client id may end the session
    /// later and release them, and its request might arrive before that of this shard.
    pub(super) fn fence_needs(&mut self, slot: u32, due: &mut Vec<u32>) {
        let to = self.conns.reply_to(slot, FENCE);
        for home in 0..self.world.homes {
            self.ask(home, |_| Ask::Fence(to));
            due.push(FENCE);
        }
    }

    /// An answer to a publish of a connection that is gone.
    pub(crate) fn late_outcome(&mut self, to: ReplyTo, outcome: Outcome) {
        self.late_answer(to, reason_of(outcome).is_error());
    }

    /// An answer for a connection that is gone: to a publish, which may be refused, or to a fence.
    pub(crate) fn late_answer(&mut self, to: ReplyTo, refused: bool) {
        let from = ConnId {
            slot: to.slot,
            generation: to.generation,
        };
        let farewell = match self.own.leaving.answered(from, to.part) {
            Some(Ok(farewell)) => farewell,
            Some(Err(NotDue)) => {
                // Each request has one answer, and this one has no request; its connection has ended.
                self.stats.closed[Closed::Broken as usize] += 1;
                return;
            }
            None => return,
        };
        let (id, exactly_once) = answered(to.part);
        if refused
            && exactly_once
            && let Some(kept) = &mut farewell.kept
        {
            // Its id is free again [MQTT-4.3.3-9].
            kept.state.bytes = forget_received(&kept.state.bytes, id);
        }
        if let Some(leaving) = self.own.leaving.take_answered(from) {
            self.gave_back(leaving);
        }
    }
}
