//! The timers of a worker's clients, in one queue for each kind. All timers of a kind have the same delay, so they expire in the order in
//! which they were set. Those of TCP are in the table of `crore-tcp`.
//!
//! Timers are not cancelled. When a timer expires, the worker checks by `dialed_us` whether it still applies.

use std::collections::VecDeque;

/// Kinds of timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// A slow reader reads.
    SlowRead,
    /// The timeout for the server to close its end.
    Close,
    /// A client connects again.
    Reconnect,
}

const TIMER_KINDS: [TimerKind; 3] = [TimerKind::SlowRead, TimerKind::Close, TimerKind::Reconnect];
const SECOND_NS: u64 = 1_000_000_000;

/// A timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    due_ns: u64,
    /// The index of the client.
    pub client: u32,
    /// When the client sent the SYN of this connection, which distinguishes its connections.
    pub dialed_us: u32,
}

/// All timers that are set.
pub struct Timers {
    queues: [VecDeque<Timer>; TIMER_KINDS.len()],
    close_timeout_ns: u64,
}

impl Timers {
    /// No timers yet. Timers of [`TimerKind::Close`] expire after `close_timeout_ns`, the others after a second.
    pub fn new(close_timeout_ns: u64) -> Timers {
        Timers {
            queues: Default::default(),
            close_timeout_ns,
        }
    }

    /// Sets a timer.
    pub fn set(&mut self, kind: TimerKind, client: u32, dialed_us: u32, now_ns: u64) {
        let delay_ns = match kind {
            TimerKind::Close => self.close_timeout_ns,
            TimerKind::SlowRead | TimerKind::Reconnect => SECOND_NS,
        };
        self.queues[kind as usize].push_back(Timer {
            due_ns: now_ns + delay_ns,
            client,
            dialed_us,
        });
    }

    /// Removes one expired timer, and returns it with its kind.
    pub fn pop_expired(&mut self, now_ns: u64) -> Option<(TimerKind, Timer)> {
        let is_due =
            |queue: &VecDeque<Timer>| queue.front().is_some_and(|timer| timer.due_ns <= now_ns);
        let kind = self.queues.iter().position(is_due)?;
        let timer = self.queues[kind].pop_front()?;
        Some((TIMER_KINDS[kind], timer))
    }

    /// When the next timer expires.
    pub fn next_ns(&self) -> Option<u64> {
        let next_timers = self.queues.iter().filter_map(VecDeque::front);
        next_timers.map(|timer| timer.due_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_expire_when_they_are_due_and_once() {
        let mut timers = Timers::new(300);
        timers.set(TimerKind::Reconnect, 7, 1, 0);
        timers.set(TimerKind::Close, 8, 2, 5);
        assert_eq!(timers.next_ns(), Some(305));
        assert!(timers.pop_expired(304).is_none());
        assert!(matches!(
            timers.pop_expired(305),
            Some((
                TimerKind::Close,
                Timer {
                    client: 8,
                    dialed_us: 2,
                    ..
                }
            ))
        ));
        assert!(timers.pop_expired(SECOND_NS - 1).is_none());
        assert!(matches!(
            timers.pop_expired(SECOND_NS),
            Some((TimerKind::Reconnect, Timer { client: 7, .. }))
        ));
        assert_eq!(timers.next_ns(), None);
    }
}
