//! The timers of a worker's clients, in one queue for each kind. All timers of a kind have the same delay, so they expire in the order in
//! which they were set.
//!
//! Timers are not cancelled. When a timer expires, the worker checks by `sequence` whether it still applies.

use std::collections::VecDeque;

/// Kinds of timers.
pub mod kind {
    /// Retransmission. This is the first of [`super::RETRIES`] kinds. Each has twice the delay of the one before.
    pub const RETRY: usize = 0;
    /// A slow reader opens its window again.
    pub const SLOW_READ: usize = super::RETRIES;
    /// The server must have closed its end by now.
    pub const CLOSE: usize = super::RETRIES + 1;
    /// A client connects again.
    pub const RECONNECT: usize = super::RETRIES + 2;
}

/// Retransmissions of the same bytes, after 1, 2, 4, 8 and 16 seconds (RFC 6298 §2.1, §5.5). Then the client gives up.
pub const RETRIES: usize = 5;
const KINDS: usize = RETRIES + 3;
const SECOND_NS: u64 = 1_000_000_000;

/// A timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    due_ns: u64,
    /// The row of the client.
    pub row: u32,
    /// The TCP sequence number for which the timer was set.
    pub sequence: u32,
}

/// All timers that are set.
pub struct Timers {
    queues: [VecDeque<Timer>; KINDS],
    delays_ns: [u64; KINDS],
}

impl Timers {
    /// No timers yet. Timers of [`kind::CLOSE`] expire after `close_ns`.
    pub fn new(close_ns: u64) -> Timers {
        let mut delays_ns = [SECOND_NS; KINDS];
        for (retry, delay_ns) in delays_ns[..RETRIES].iter_mut().enumerate() {
            *delay_ns <<= retry;
        }
        delays_ns[kind::CLOSE] = close_ns;
        Timers {
            queues: Default::default(),
            delays_ns,
        }
    }

    /// Sets a timer.
    pub fn set(&mut self, kind: usize, row: u32, sequence: u32, now_ns: u64) {
        let due_ns = now_ns + self.delays_ns[kind];
        self.queues[kind].push_back(Timer {
            due_ns,
            row,
            sequence,
        });
    }

    /// Takes one expired timer, with its kind.
    pub fn expired(&mut self, now_ns: u64) -> Option<(usize, Timer)> {
        let is_due = |queue: &VecDeque<Timer>| queue.front().is_some_and(|a| a.due_ns <= now_ns);
        let kind = self.queues.iter().position(is_due)?;
        self.queues[kind].pop_front().map(|timer| (kind, timer))
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
        timers.set(kind::RETRY + 1, 7, 1, 0);
        timers.set(kind::CLOSE, 8, 2, 5);
        assert_eq!(timers.next_ns(), Some(305));
        assert!(timers.expired(304).is_none());
        assert!(matches!(
            timers.expired(305),
            Some((
                kind::CLOSE,
                Timer {
                    row: 8,
                    sequence: 2,
                    ..
                }
            ))
        ));
        assert!(timers.expired(2 * SECOND_NS - 1).is_none());
        assert!(matches!(
            timers.expired(2 * SECOND_NS),
            Some((1, Timer { row: 7, .. }))
        ));
        assert_eq!(timers.next_ns(), None);
    }
}
