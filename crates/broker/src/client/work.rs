//! The budget of a shard's work in a turn, counted in steps. The inputs of a turn have one budget, and its end has another. See
//! [`base::work`](crate::base::work).

use crate::base::turn_limits::TurnLimits;
use crate::base::work::Steps;

/// The work that a shard has done, and what it may still do in this turn.
#[derive(Debug)]
pub(crate) struct Work {
    /// The limits of a turn.
    pub turn_limits: TurnLimits,
    /// The steps of the shard itself.
    pub steps: Steps,
    /// The steps of its home (the part that keeps topics).
    pub home_steps: Steps,
    /// The count of steps at which the budget is spent.
    budget_end: u64,
    /// The same for the connection that is being continued, which may use only a share.
    share_end: u64,
}

impl Work {
    /// A new count. `home_steps` counts the steps of the shard's home.
    pub fn new(home_steps: Steps) -> Work {
        let mut work = Work {
            turn_limits: TurnLimits::default(),
            steps: Steps::default(),
            home_steps,
            budget_end: 0,
            share_end: 0,
        };
        work.begin_budget();
        work
    }

    /// The steps since the shard began.
    #[inline]
    pub fn count(&self) -> u64 {
        self.steps.count() + self.home_steps.count()
    }

    /// Begins a new budget.
    #[inline]
    pub fn begin_budget(&mut self) {
        self.budget_end = self.count() + u64::from(self.turn_limits.steps_per_turn);
        self.share_end = self.budget_end;
    }

    /// Whether the budget or share is spent, so that further input waits for the next turn.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.count() >= self.share_end
    }

    /// Whether half of the budget is spent. At the end of a turn the other half is for deliveries.
    pub fn is_half_spent(&self) -> bool {
        self.count() + u64::from(self.turn_limits.steps_per_turn) / 2 >= self.budget_end
    }

    /// The maximum number of connections that the end of this turn may visit: as the budget allows, and at least one.
    #[inline]
    pub fn visits_max(&self) -> u32 {
        let steps_left = self.budget_end.saturating_sub(self.count());
        let visits_left = u32::try_from(steps_left).unwrap_or(u32::MAX);
        self.turn_limits.visits_per_turn.min(visits_left).max(1)
    }

    /// Limits one connection to a turn's steps divided by `shares`, or what is left of the budget. At least one step, even if the
    /// budget is spent.
    pub fn begin_share(&mut self, shares: u64) {
        let share = u64::from(self.turn_limits.steps_per_turn) / shares;
        let count = self.count();
        self.share_end = self.budget_end.min(count + share).max(count + 1);
    }

    /// Ends the share: the whole budget is available again.
    pub fn end_share(&mut self) {
        self.share_end = self.budget_end;
    }
}
