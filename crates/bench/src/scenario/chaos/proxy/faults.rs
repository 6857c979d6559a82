//! Draws the faults of a connection and their random times: cuts, stalls, small pieces ("tears") and delays.

use std::sync::atomic::Ordering::Relaxed;

use super::{Proxy, Timer};
use crate::sys::{self, Interest};

/// Mean time to the cut of a connection, in nanoseconds.
const CUT_EVERY_NS: u64 = 20_000_000_000;
/// Mean time to the next stall or tear of a connection, in nanoseconds.
const STALL_OR_TEAR_EVERY_NS: u64 = 15_000_000_000;
/// The minimum and maximum duration of a stall, in nanoseconds. Some stalls are longer than the server's timeout for a request's head (10
/// s).
const STALL_NS: (u64, u64) = (100_000_000, 12_000_000_000);
/// Duration of a tear, in which bytes pass in small pieces, in nanoseconds.
const TORN_NS: u64 = 2_000_000_000;
/// The maximum delay of a connection, in nanoseconds. The delay of a connection is the same in both directions.
const DELAY_NS: u64 = 30_000_000;
/// The maximum life of a "ghost": a connection whose client's side is closed, while the server does not know this and continues to write.
/// In nanoseconds.
const GHOST_NS: u64 = 8_000_000_000;

impl Proxy<'_> {
    /// Begins or ends the faults when the scenario has changed `SharedState::faults`.
    pub(super) fn follow_schedule(&mut self) {
        let is_calm = !self.shared.has_faults.load(Relaxed);
        if is_calm == self.is_calm {
            return;
        }
        self.is_calm = is_calm;
        for pair in 0..self.pairs.len() {
            if !self.pairs[pair].is_open {
                continue;
            }
            if !is_calm {
                self.draw_faults(pair);
            } else if self.pairs[pair].is_ghost {
                self.close_pair(pair, sys::close);
            } else {
                let row = &mut self.pairs[pair];
                (row.torn_until_ns, row.delay_ns, row.direction_to_cut) = (0, 0, None);
                for direction in 0..2 {
                    let flow = &mut self.pairs[pair].flows[direction];
                    (flow.not_before_ns, flow.stalled_until_ns) = (0, 0);
                    self.pass_bytes(pair, direction);
                }
            }
        }
    }

    /// Draws the delay of a connection and the times of its cut and its first stall or tear.
    pub(super) fn draw_faults(&mut self, pair: usize) {
        let (cut_ns, stall_or_tear_ns) = (
            self.exponential(CUT_EVERY_NS),
            self.exponential(STALL_OR_TEAR_EVERY_NS),
        );
        self.pairs[pair].delay_ns = self.between(0, DELAY_NS);
        self.set_timer(pair, cut_ns, Timer::Cut);
        self.set_timer(pair, stall_or_tear_ns, Timer::StallOrTear);
    }

    fn exponential(&mut self, mean_ns: u64) -> u64 {
        let uniform = f64::from(self.random.below(1 << 30) + 1) / f64::from(1u32 << 30);
        (-uniform.ln() * mean_ns as f64) as u64
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.random.draw() % (high - low + 1)
    }

    pub(super) fn stall_or_tear(&mut self, pair: usize) {
        let now = sys::now_ns();
        if self.random.below(3) == 0 {
            self.counts.tears += 1;
            self.pairs[pair].torn_until_ns = now + TORN_NS;
        } else {
            self.counts.stalls += 1;
            // The square of the random share makes most stalls short.
            let share = f64::from(self.random.below(1 << 20)) / f64::from(1u32 << 20);
            let length = STALL_NS.0 + (share * share * (STALL_NS.1 - STALL_NS.0) as f64) as u64;
            let direction = self.random.below(3).min(1) as usize;
            self.pairs[pair].flows[direction].stalled_until_ns = now + length;
        }
        let next_fault_ns = self.exponential(STALL_OR_TEAR_EVERY_NS);
        self.set_timer(pair, next_fault_ns, Timer::StallOrTear);
    }

    pub(super) fn cut(&mut self, pair: usize) {
        match self.random.below(20) {
            0..9 => {
                self.counts.resets += 1;
                self.close_pair(pair, sys::reset);
            }
            9..16 => {
                self.counts.ends += 1;
                self.close_pair(pair, sys::close);
            }
            _ => {
                self.counts.ghosts += 1;
                let row = &mut self.pairs[pair];
                sys::reset(row.fds[0]);
                row.is_ghost = true;
                self.set_interest(pair, 1, Interest::empty());
                let length = self.between(0, GHOST_NS);
                self.set_timer(pair, length, Timer::Ghost);
            }
        }
    }
}
