//! The clients of a worker that are to connect or to drop, and how many may at once.
//!
//! Invariant: the answers to the clients that are under way have room in the device's queue.

use std::collections::VecDeque;

use crate::measure::payload::Random;

/// Clients of a turn that connect or drop, and of a turn that leaves packets at the device: so the queue there empties, also where a step costs much.
const STEPS: u32 = 256;
const FEW_STEPS: u32 = 8;
/// Connections of a worker that may be under way at once: well below the 4,096 that a listener lets wait.
const UNDER_WAY_MAX: u32 = 1_024;

/// How fast clients connect and drop.
#[derive(Clone, Copy)]
pub struct Pace {
    steps: u32,
    under_way: u32,
}

impl Pace {
    /// The pace for a queue of so many packets; half of it is for messages.
    pub fn of(queue_packets: u32) -> Pace {
        let room = (queue_packets / 2).max(1);
        Pace {
            steps: room.min(STEPS),
            under_way: room.min(UNDER_WAY_MAX),
        }
    }

    /// Steps of a turn, which may have left packets at the device.
    pub fn steps(self, are_packets_left: bool) -> u32 {
        if are_packets_left {
            self.steps.min(FEW_STEPS)
        } else {
            self.steps
        }
    }
}

/// The clients that are to connect.
pub struct Opening {
    pub pace: Pace,
    /// Clients that may connect again.
    pub ready: VecDeque<u32>,
    pub under_way: u32,
    clients: u32,
    /// The next client that has not connected yet.
    cursor: u32,
    /// When the clients were allowed to connect, and how many have been since.
    begun: Option<(u64, u64)>,
}

impl Opening {
    /// All of so many clients are to connect.
    pub fn new(pace: Pace, clients: u32) -> Opening {
        Opening {
            pace,
            ready: VecDeque::new(),
            under_way: 0,
            clients,
            cursor: 0,
            begun: None,
        }
    }

    /// The number of clients that may connect now, at this rate.
    pub fn due(&mut self, per_s: Option<f64>, now_ns: u64) -> u64 {
        let (begun_ns, connected) = *self.begun.get_or_insert((now_ns, 0));
        let due = per_s.map_or(u64::MAX, |per_s| {
            ((now_ns - begun_ns) as f64 * per_s / 1e9) as u64 + 1
        });
        due.saturating_sub(connected)
    }

    /// The next client that connects, if one more may be under way. It counts as under way from now on.
    pub fn next(&mut self) -> Option<u32> {
        if self.under_way >= self.pace.under_way {
            return None;
        }
        let index = self.ready.pop_front().or_else(|| {
            let is_new = self.cursor < self.clients;
            self.cursor += u32::from(is_new);
            is_new.then(|| self.cursor - 1)
        })?;
        self.under_way += 1;
        if let Some((_, connected)) = &mut self.begun {
            *connected += 1;
        }
        Some(index)
    }

    /// Whether no client is left that is to connect or is under way.
    pub fn is_done(&self) -> bool {
        self.cursor == self.clients && self.ready.is_empty() && self.under_way == 0
    }
}

/// The clients that are to drop their connections.
pub struct Leaving {
    random: Random,
    /// Those of the tsunami.
    to_reset: u32,
    /// Those of the drop rate, with the time to which they are counted.
    to_drop: f64,
    counted_ns: u64,
}

impl Leaving {
    /// No client is to drop yet.
    pub fn new(seed: u64) -> Leaving {
        Leaving {
            random: Random::new(seed),
            to_reset: 0,
            to_drop: 0.0,
            counted_ns: 0,
        }
    }

    /// The number of clients, of a turn of so many steps, that drop at this rate.
    pub fn drops(&mut self, steps: u32, per_s: f64, now_ns: u64) -> u32 {
        if self.counted_ns > 0 {
            self.to_drop += per_s * (now_ns - self.counted_ns) as f64 / 1e9;
        }
        self.counted_ns = now_ns;
        let drops = (self.to_drop as u32).min(steps);
        self.to_drop -= f64::from(drops);
        drops
    }

    /// Any of so many clients.
    pub fn any(&mut self, clients: u32) -> u32 {
        self.random.below(clients)
    }

    /// So many more clients, from the first one on, are to reset their connections; those of this turn.
    pub fn resets(&mut self, more: u32, steps: u32) -> std::ops::Range<u32> {
        let last = self.to_reset + more;
        self.to_reset = last - last.min(steps);
        self.to_reset..last
    }

    /// Whether a client is still to reset its connection.
    pub fn has_resets(&self) -> bool {
        self.to_reset > 0
    }
}
