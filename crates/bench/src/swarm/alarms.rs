//! Alarms: a queue for each kind, since all alarms of a kind have the same delay and so ring in the order in which they were set.
//!
//! Nobody takes an alarm back. Its owner looks when it rings whether it still means anything (`stamp`).

use std::collections::VecDeque;

/// Kinds of alarms.
pub mod kind {
    /// Nothing was acknowledged: the first of [`super::RETRIES`] kinds, each with twice the delay of the one before.
    pub const RETRY: usize = 0;
    /// A slow reader reads on.
    pub const SLOW: usize = super::RETRIES;
    /// The server has not closed its end.
    pub const CLOSE: usize = super::RETRIES + 1;
    /// A failed attempt is made again.
    pub const AGAIN: usize = super::RETRIES + 2;
}

/// How often the same bytes are sent again: after 1, 2, 4, 8 and 16 seconds (RFC 6298 §2.1, §5.5). Then the client gives up.
pub const RETRIES: usize = 5;
const KINDS: usize = RETRIES + 3;
const SECOND_NS: u64 = 1_000_000_000;

/// An alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    due_ns: u64,
    /// The row of its client.
    pub row: u32,
    /// The sequence that it was set for.
    pub stamp: u32,
}

/// All alarms that are set.
pub struct Alarms {
    queues: [VecDeque<Alarm>; KINDS],
    delays_ns: [u64; KINDS],
}

impl Alarms {
    /// No alarms; those of [`kind::CLOSE`] ring after `close_ns`.
    pub fn new(close_ns: u64) -> Alarms {
        let mut delays_ns = [SECOND_NS; KINDS];
        for (retry, delay_ns) in delays_ns[..RETRIES].iter_mut().enumerate() {
            *delay_ns <<= retry;
        }
        delays_ns[kind::CLOSE] = close_ns;
        Alarms {
            queues: Default::default(),
            delays_ns,
        }
    }

    /// Sets one.
    pub fn set(&mut self, kind: usize, row: u32, stamp: u32, now_ns: u64) {
        let due_ns = now_ns + self.delays_ns[kind];
        self.queues[kind].push_back(Alarm { due_ns, row, stamp });
    }

    /// Takes one that rings.
    pub fn ring(&mut self, now_ns: u64) -> Option<(usize, Alarm)> {
        let is_due = |queue: &VecDeque<Alarm>| queue.front().is_some_and(|a| a.due_ns <= now_ns);
        let kind = self.queues.iter().position(is_due)?;
        self.queues[kind].pop_front().map(|alarm| (kind, alarm))
    }

    /// When the next one rings.
    pub fn next_ns(&self) -> Option<u64> {
        let fronts = self.queues.iter().filter_map(VecDeque::front);
        fronts.map(|alarm| alarm.due_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_ring_when_they_are_due_and_once() {
        let mut alarms = Alarms::new(300);
        alarms.set(kind::RETRY + 1, 7, 1, 0);
        alarms.set(kind::CLOSE, 8, 2, 5);
        assert_eq!(alarms.next_ns(), Some(305));
        assert!(alarms.ring(304).is_none());
        assert!(matches!(
            alarms.ring(305),
            Some((
                kind::CLOSE,
                Alarm {
                    row: 8,
                    stamp: 2,
                    ..
                }
            ))
        ));
        assert!(alarms.ring(2 * SECOND_NS - 1).is_none());
        assert!(matches!(
            alarms.ring(2 * SECOND_NS),
            Some((1, Alarm { row: 7, .. }))
        ));
        assert_eq!(alarms.next_ns(), None);
    }
}
