//! Decides which clients of a worker connect next or drop their connections, and how many may do so at once.
//!
//! Invariant: the device's queue has room for the answers to all connects in progress.

use std::collections::VecDeque;

use crate::measure::payload::Random;

/// The maximum number of connects, and of drops, in one pass of a worker's loop. While packets are left in the device's queue, the second,
/// smaller number applies, so that the queue drains even if a connect or drop is slow.
const STEPS: u32 = 256;
const FEW_STEPS: u32 = 8;
/// The maximum number of connects of a worker in progress. It is well below a listener's backlog of 4,096.
const IN_PROGRESS_MAX: u32 = 1_024;

/// How fast clients connect and drop.
#[derive(Clone, Copy)]
pub struct Pace {
    steps: u32,
    in_progress: u32,
}

impl Pace {
    /// The pace for a device queue of this length. Half of the queue is left for messages.
    pub fn of(queue_packets: u32) -> Pace {
        let room = (queue_packets / 2).max(1);
        Pace {
            steps: room.min(STEPS),
            in_progress: room.min(IN_PROGRESS_MAX),
        }
    }

    /// The maximum number of connects, and of drops, in one pass of the worker's loop. It is smaller if packets are left in the device's
    /// queue.
    pub fn steps(self, are_packets_left: bool) -> u32 {
        if are_packets_left {
            self.steps.min(FEW_STEPS)
        } else {
            self.steps
        }
    }
}

/// The clients that still have to connect.
pub struct ConnectQueue {
    pub pace: Pace,
    /// Clients that may reconnect.
    pub ready: VecDeque<u32>,
    pub in_progress: u32,
    clients: u32,
    /// The first client that has never connected.
    cursor: u32,
    /// When connecting began, and how many connects were started since.
    begun: Option<(u64, u64)>,
}

impl ConnectQueue {
    /// A queue of `clients` clients, none of which has connected.
    pub fn new(pace: Pace, clients: u32) -> ConnectQueue {
        ConnectQueue {
            pace,
            ready: VecDeque::new(),
            in_progress: 0,
            clients,
            cursor: 0,
            begun: None,
        }
    }

    /// How many clients may connect now at this rate.
    pub fn due(&mut self, per_s: Option<f64>, now_ns: u64) -> u64 {
        let (begun_ns, connected) = *self.begun.get_or_insert((now_ns, 0));
        let due = per_s.map_or(u64::MAX, |per_s| {
            ((now_ns - begun_ns) as f64 * per_s / 1e9) as u64 + 1
        });
        due.saturating_sub(connected)
    }

    /// Takes the next client to connect, if one more connect may be in progress.
    pub fn next(&mut self) -> Option<u32> {
        if self.in_progress >= self.pace.in_progress {
            return None;
        }
        let index = self.ready.pop_front().or_else(|| {
            let is_new = self.cursor < self.clients;
            self.cursor += u32::from(is_new);
            is_new.then(|| self.cursor - 1)
        })?;
        self.in_progress += 1;
        if let Some((_, connected)) = &mut self.begun {
            *connected += 1;
        }
        Some(index)
    }

    /// Whether no client has to connect and no connect is in progress.
    pub fn is_done(&self) -> bool {
        self.cursor == self.clients && self.ready.is_empty() && self.in_progress == 0
    }
}

/// The drops and resets of connections that are due.
pub struct DropQueue {
    random: Random,
    /// Resets that are still due.
    to_reset: u32,
    /// The number of drops that are due by the drop rate, and the time up to which this number is computed.
    to_drop: f64,
    counted_ns: u64,
}

impl DropQueue {
    /// Nothing is due yet.
    pub fn new(seed: u64) -> DropQueue {
        DropQueue {
            random: Random::new(seed),
            to_reset: 0,
            to_drop: 0.0,
            counted_ns: 0,
        }
    }

    /// How many clients drop in this turn, at most `steps`, at a rate of `per_s`.
    pub fn due(&mut self, steps: u32, per_s: f64, now_ns: u64) -> u32 {
        if self.counted_ns > 0 {
            self.to_drop += per_s * (now_ns - self.counted_ns) as f64 / 1e9;
        }
        self.counted_ns = now_ns;
        let drops = (self.to_drop as u32).min(steps);
        self.to_drop -= f64::from(drops);
        drops
    }

    /// A random one of `clients` clients.
    pub fn random_client(&mut self, clients: u32) -> u32 {
        self.random.below(clients)
    }

    /// Adds `more` resets and returns the clients that reset in this turn. The clients with the lowest numbers reset, in descending order.
    pub fn due_resets(&mut self, more: u32, steps: u32) -> std::ops::Range<u32> {
        let last = self.to_reset + more;
        self.to_reset = last - last.min(steps);
        self.to_reset..last
    }

    /// Whether resets are still due.
    pub fn has_resets(&self) -> bool {
        self.to_reset > 0
    }
}
