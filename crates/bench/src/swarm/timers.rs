//! The timers of a worker's clients, in one queue for each kind. All timers of a kind have the same delay, so they expire in the order in
//! which they were set. Those of TCP are in the table of `crore-tcp`.
//!
//! Timers are not cancelled. When a timer expires, the worker checks by `dialed_us` whether it still applies.

use std::collections::VecDeque;

/// Kinds of timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A slow reader reads.
    SlowRead,
    /// The server must have closed its end by now.
    Close,
    /// A client connects again.
    Reconnect,
}

const KINDS: [Kind; 3] = [Kind::SlowRead, Kind::Close, Kind::Reconnect];
const SECOND_NS: u64 = 1_000_000_000;

/// A timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    due_ns: u64,
    /// The row of the client.
    pub row: u32,
    /// When the client had sent its SYN, which tells its connections apart.
    pub dialed_us: u32,
}

/// All timers that are set.
pub struct Timers {
    queues: [VecDeque<Timer>; KINDS.len()],
    close_ns: u64,
}

impl Timers {
    /// No timers yet. Timers of [`Kind::Close`] expire after `close_ns`, the others after a second.
    pub fn new(close_ns: u64) -> Timers {
        Timers {
            queues: Default::default(),
            close_ns,
        }
    }

    /// Sets a timer.
    pub fn set(&mut self, kind: Kind, row: u32, dialed_us: u32, now_ns: u64) {
        let delay_ns = match kind {
            Kind::Close => self.close_ns,
            Kind::SlowRead | Kind::Reconnect => SECOND_NS,
        };
        self.queues[kind as usize].push_back(Timer {
            due_ns: now_ns + delay_ns,
            row,
            dialed_us,
        });
    }

    /// Takes one expired timer, with its kind.
    pub fn expired(&mut self, now_ns: u64) -> Option<(Kind, Timer)> {
        let is_due = |queue: &VecDeque<Timer>| queue.front().is_some_and(|a| a.due_ns <= now_ns);
        let kind = self.queues.iter().position(is_due)?;
        let timer = self.queues[kind].pop_front()?;
        Some((KINDS[kind], timer))
    }

    /// When the next timer expires.
    pub fn next_ns(&self) -> Option<u64> {
        let fronts = self.queues.iter().filter_map(VecDeque::front);
        fronts.map(|timer| timer.due_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_expire_when_they_are_due_and_once() {
        let mut timers = Timers::new(300);
        timers.set(Kind::Reconnect, 7, 1, 0);
        timers.set(Kind::Close, 8, 2, 5);
        assert_eq!(timers.next_ns(), Some(305));
        assert!(timers.expired(304).is_none());
        assert!(matches!(
            timers.expired(305),
            Some((
                Kind::Close,
                Timer {
                    row: 8,
                    dialed_us: 2,
                    ..
                }
            ))
        ));
        assert!(timers.expired(SECOND_NS - 1).is_none());
        assert!(matches!(
            timers.expired(SECOND_NS),
            Some((Kind::Reconnect, Timer { row: 7, .. }))
        ));
        assert_eq!(timers.next_ns(), None);
    }
}
