//! Sessions whose connection has ended while homes owe it answers to its publishes.
//!
//! Invariant: a session that lasts is given back only when each publish of its connection stands in a log or was
//! refused, and when all homes have heard what it needs kept. So whoever has it next, and is sent one of them again, answers
//! truly and keeps the order; and whoever ends it takes back what is there.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::kept::forget_received;
use super::publish::{answered, reason_of};
use crate::mail::{Ask, Farewell, Outcome, ReplyTo, ShardId};
use crate::sessions::ConnOf;
use crate::shard::Shard;
use crate::stats::Reason;

/// Stands for the answer to a fence among those to publishes: no packet id is 0.
const FENCE: u32 = 0;

/// A session on its way home.
pub(crate) struct Leaving {
    home: ShardId,
    farewell: Box<Farewell>,
    /// The publishes that were not answered, as their homes call them, and fences.
    due: Vec<u32>,
}

impl Shard {
    /// Gives a session back, one that lasts as soon as these publishes are answered.
    pub(super) fn give_back(
        &mut self,
        from: ConnOf,
        home: ShardId,
        farewell: Box<Farewell>,
        due: Vec<u32>,
    ) {
        let leaving = Leaving {
            home,
            farewell,
            due,
        };
        if leaving.farewell.kept.is_none() || leaving.due.is_empty() {
            return self.gave_back(leaving);
        }
        // A connection ends once; if it did not, what it gave back first goes home too.
        if let Some(before) = self.leaving.insert(from, leaving) {
            self.gave_back(before);
        }
    }

    fn gave_back(&mut self, leaving: Leaving) {
        let close = Ask::SessionClose(leaving.farewell);
        self.errands.push((leaving.home, close));
    }

    /// Asks homes to say that they have heard what the session needs kept. Who ends it later, at the home of its client
    /// id, tells them that nobody needs it any more, and may not be heard first.
    pub(super) fn fence_needs(&mut self, slot: u32, due: &mut Vec<u32>) {
        let to = self.reply_to(slot, FENCE);
        let me = self.lanes.me;
        for home in (0..self.world.homes).filter(|home| *home != me) {
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
        let from = ConnOf {
            slot: to.slot,
            generation: to.generation,
        };
        let Some(leaving) = self.leaving.get_mut(&from) else {
            return;
        };
        let Some(at) = leaving.due.iter().position(|due| *due == to.part) else {
            // Each ask has one answer, and this is to none: the connection that it was of has ended.
            self.stats.closed[Reason::Broken as usize] += 1;
            return;
        };
        leaving.due.swap_remove(at);
        let (id, exactly_once) = answered(to.part);
        if refused
            && exactly_once
            && let Some(kept) = &mut leaving.farewell.kept
        {
            // Its id is free again [MQTT-4.3.3-9].
            kept.state.bytes = forget_received(&kept.state.bytes, id);
        }
        if leaving.due.is_empty()
            && let Some(leaving) = self.leaving.remove(&from)
        {
            self.gave_back(leaving);
        }
    }
}
