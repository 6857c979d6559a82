//! Continues work that had to wait for a later turn (a pass of the shard's loop), within the budget of the turn ([`work`](crate::work)).

use crate::client::asking::{home_context, is_past_budget};
use crate::io::Io;
use crate::shard::Shard;

/// Waiting asks (requests to this shard's home, the part that keeps topics) get at most the steps of a turn divided by this number.
/// Then a page (a run of past messages) and a connection continue.
const ASKS_OF_TURN: u32 = 4;

impl Shard {
    /// Steps of work done since the start.
    pub fn steps(&self) -> u64 {
        self.front.clients.meter.work.count()
    }

    /// Whether the turn's budget is spent, so that further reading may wait for the next turn.
    pub fn is_spent(&self) -> bool {
        self.front.clients.meter.work.is_spent()
    }

    /// Whether earlier turns have left work.
    pub(crate) fn has_waiting_work(&mut self) -> bool {
        let lanes = &mut self.front.subs.lanes;
        let home = self.home.as_ref();
        home.is_some_and(|home| home.page_queue.can_read_page(lanes))
            || self.front.queues.has_resumed()
            || self.front.subs.lanes.has_asks()
            || self.commits.may_have_due()
            || self.commits.is_overdue_search_unfinished()
            || self.has_unneeded_messages()
    }

    /// Continues the work of earlier turns, until half of the budget is spent. Asks, a page and a connection continue in rotation, so that
    /// each kind of work makes progress in every turn, however much of the others waits. Asks get half of these steps: for each message of a page to a
    /// group, a member sends an ask that gives back credit, and publishes wait behind these asks.
    pub(crate) fn continue_waiting_work<I: Io>(&mut self, io: &mut I) {
        if !self.has_waiting_work() && !is_past_budget(&self.home) {
            return;
        }
        let steps =
            u64::from(self.front.clients.meter.work.turn_limits.steps_per_turn / ASKS_OF_TURN);
        loop {
            self.carry_out_own_asks();
            let mut has_more = self.continue_commits();
            has_more |= self.answer_overdue_requests();
            has_more |= self.continue_asks(steps);
            has_more |= self.drop_some_unneeded_messages();
            if let Some(home) = &mut self.home {
                let front = &mut self.front;
                has_more |=
                    home.read_queued_page(&mut home_context(&mut front.subs, &front.clients.ctx));
            }
            has_more |= self.front.resume_next_connection(&mut self.home, io);
            if !has_more || self.front.clients.meter.work.is_half_spent() {
                return;
            }
        }
    }
}
