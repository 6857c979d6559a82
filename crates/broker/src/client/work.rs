//! The budget of a shard's work: the inputs of a turn have one, and its end another. See [`base::work`](crate::base::work).

use crate::base::turn_limits::TurnLimits;
use crate::base::work::Steps;

/// The work that a shard has done, and what it may still do in this turn.
#[derive(Debug)]
pub(crate) struct Work {
    /// How much a turn does.
    pub turn_limits: TurnLimits,
    /// The steps that the shard itself has done.
    pub steps: Steps,
    /// Those of its home.
    pub home: Steps,
    /// The count of steps at which the budget is spent.
    until: u64,
    /// The same limit for the connection at hand, among others that wait.
    quantum: u64,
}

impl Work {
    /// No work is done yet. The home of the shard counts its steps in `home`.
    pub fn new(home: Steps) -> Work {
        let mut work = Work {
            turn_limits: TurnLimits::default(),
            steps: Steps::default(),
            home,
            until: 0,
            quantum: 0,
        };
        work.begin();
        work
    }

    /// Steps done since the shard began.
    #[inline]
    pub fn count(&self) -> u64 {
        self.steps.count() + self.home.count()
    }

    /// Begins a budget.
    #[inline]
    pub fn begin(&mut self) {
        self.until = self.count() + u64::from(self.turn_limits.steps_per_turn);
        self.quantum = self.until;
    }

    /// Whether the budget is spent: further input may wait for the next turn.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.count() >= self.quantum
    }

    /// Whether half of the budget is spent: at the end of a turn the rest is for deliveries.
    pub fn is_half_spent(&self) -> bool {
        self.count() + u64::from(self.turn_limits.steps_per_turn) / 2 >= self.until
    }

    /// Connections that may be visited at the end of this turn: as the budget allows, and one at least.
    #[inline]
    pub fn visits(&self) -> u32 {
        let left = self.until.saturating_sub(self.count());
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        self.turn_limits.visits_per_turn.min(left).max(1)
    }

    /// From now on one connection may use this part of a turn's steps, of what is left; at least one step, even where the budget is spent.
    pub fn begin_share(&mut self, shares: u64) {
        let share = u64::from(self.turn_limits.steps_per_turn) / shares;
        let count = self.count();
        self.quantum = self.until.min(count + share).max(count + 1);
    }

    /// The budget is that of all again.
    pub fn end_share(&mut self) {
        self.quantum = self.until;
    }
}
