//! A shard's budget of work, and how it goes on with what waits: see [`work`](crate::work).

use crate::client::asking::home_context;
use crate::io::Io;
use crate::shard::Shard;
use crate::shard::asks::ASKS_TOGETHER;

impl Shard {
    /// The work that it has done since it began, in steps.
    pub fn steps(&self) -> u64 {
        self.front.clients.meter.work.count()
    }

    /// Whether the turn has done its share of work, so that further reading may wait for the next.
    pub fn is_spent(&self) -> bool {
        self.front.clients.meter.work.is_spent()
    }

    /// Whether work waits that turns so far had no time for.
    pub(crate) fn has_more(&self) -> bool {
        let owes = self
            .home
            .as_ref()
            .is_some_and(|home| !home.readings.is_empty());
        owes || self.front.queues.has_resumed()
            || self.front.subs.lanes.has_asks()
            || self.commits.is_stirred()
            || self.commits.may_have_late()
    }

    /// Goes on with work that turns so far had no time for, until half of the budget is spent: some asks of a lane, a
    /// page and a connection, then the next of each. So one of each goes on in every turn, however many of the others
    /// wait. Asks get as many steps as the page before them took: publishers wait for theirs.
    pub(crate) fn go_on<I: Io>(&mut self, io: &mut I) {
        let mut together = ASKS_TOGETHER;
        loop {
            self.take_own_asks();
            let mut more = self.go_on_with_commits();
            more |= self.go_on_with_late();
            more |= self.go_on_with_asks(together);
            let before = self.steps();
            if let Some(home) = &mut self.home {
                let front = &mut self.front;
                more |= home.read_next(&mut home_context(&mut front.subs, &front.clients.ctx));
            }
            together = ASKS_TOGETHER.max((self.steps() - before) as usize);
            more |= self.front.resume_one(&mut self.home, io);
            if !more || self.front.clients.meter.work.is_half_spent() {
                return;
            }
        }
    }
}
