//! The one bound on work: what a shard does is counted in steps, and a turn ends at its budget whatever it does.
//!
//! A step is a row that is looked at or an entry of a log that is passed: memory that is probably cold, some hundred
//! nanoseconds. Bytes that are copied count by [`STEP_BYTES`]. Whoever walks counts, where it walks ([`Steps`]); the shard
//! asks between two units of its work whether the budget is spent ([`Shard::is_spent`](crate::Shard::is_spent)).
//!
//! Invariants: a unit (a request, a packet, a page, a visit) is bounded by itself, by [`Pace`](crate::Pace);
//! so no input and no end of a turn does more than the budget and one unit. What is left over waits in a queue of its
//! owner, which goes on in the next turn: a connection's bytes in its spill, the asks of a lane in the lane, the pages
//! that a home owes in the order in which they were asked for.

use core::cell::Cell;

use crate::home::Home;
use crate::io::Io;
use crate::shard::Shard;

/// Bytes that are copied in the time of a step.
pub const STEP_BYTES: usize = 256;

/// Steps since the beginning. The count only rises.
#[derive(Debug, Default)]
pub struct Steps(Cell<u64>);

impl Steps {
    /// So many more.
    #[inline]
    pub fn add(&self, steps: usize) {
        self.0.set(self.0.get() + steps as u64);
    }

    /// What copying so many bytes costs.
    #[inline]
    pub fn add_bytes(&self, bytes: usize) {
        self.add(bytes / STEP_BYTES);
    }

    /// How many there were.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.get()
    }
}

/// What a shard may still do.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The steps that the shard itself has done.
    pub steps: Steps,
    /// The count of steps at which the budget is spent.
    pub until: u64,
    /// The same for the connection at hand, among others that wait.
    pub quantum: u64,
}

impl Shard {
    /// What it has done since it began, in steps.
    #[inline]
    pub fn steps(&self) -> u64 {
        self.work.steps.count() + self.home.as_ref().map_or(0, Home::steps)
    }

    /// From here on the whole budget is there again: a turn's inputs have one, and its end another.
    pub(crate) fn begin_work(&mut self) {
        self.work.until = self.steps() + u64::from(self.pace.steps_per_turn);
        self.work.quantum = self.work.until;
    }

    /// Whether the turn has done its share of work: what else there is to read may wait for the next.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.steps() >= self.work.quantum
    }

    /// Whether half of what the end of a turn may do is done: the rest is for deliveries.
    pub(crate) fn is_half_spent(&self) -> bool {
        self.steps() + u64::from(self.pace.steps_per_turn) / 2 >= self.work.until
    }

    /// Connections that may be visited at the end of this turn: as far as there is work left for it, and one at least.
    pub(crate) fn visits(&self) -> u32 {
        let left = self.work.until.saturating_sub(self.steps());
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        self.pace.visits_per_turn.min(left).max(1)
    }

    /// Whether anybody waits for what there was no time for.
    pub(crate) fn has_more(&self) -> bool {
        let owes = self.home.as_ref().is_some_and(|home| home.readings() > 0);
        owes || !self.resumed.is_empty() || self.lanes.has_asks()
    }

    /// Goes on with what turns so far had no time for, until half of the budget is spent: some asks of a lane, a page and a
    /// connection, then the next of each. So one of each goes on in every turn, however much the others want.
    pub(crate) fn go_on<I: Io>(&mut self, io: &mut I) {
        loop {
            let mut more = self.go_on_with_asks();
            if let Some(home) = &mut self.home {
                more |= home.read_next(&self.world.rules, self.now, &mut self.lanes);
            }
            more |= self.resume_one(io);
            if !more || self.is_half_spent() {
                return;
            }
        }
    }
}
