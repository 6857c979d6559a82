//! Decides which clients of a worker connect next, which drop their connections, and how many may do so at once.
//!
//! Invariant: the packet queue of the worker's network interface has room for the answers to all connects in progress.

use std::collections::VecDeque;

use crate::measure::payload::Random;

/// The maximum number of connects, and of drops, in one turn of a worker. While packets are left in the device's queue, the second, smaller
/// number applies, so that the queue drains even if a connect or drop is slow.
const STEPS_MAX: u32 = 256;
const BUSY_STEPS_MAX: u32 = 8;
/// The maximum number of connects of a worker in progress. It is well below a listener's backlog of 4,096.
const IN_PROGRESS_MAX: u32 = 1_024;

/// How fast clients connect and drop.
#[derive(Clone, Copy)]
pub struct Pace {
    steps_max: u32,
    in_progress_max: u32,
}

impl Pace {
    /// The pace for a device queue of this length. Half of the queue is left for messages.
    pub fn for_queue(queue_packets: u32) -> Pace {
        let half_queue = (queue_packets / 2).max(1);
        Pace {
            steps_max: half_queue.min(STEPS_MAX),
            in_progress_max: half_queue.min(IN_PROGRESS_MAX),
        }
    }

    /// The maximum number of connects, and of drops, in one turn of the worker. It is smaller if packets are left in the device's queue.
    pub fn steps(self, has_more_packets: bool) -> u32 {
        if has_more_packets {
            self.steps_max.min(BUSY_STEPS_MAX)
        } else {
            self.steps_max
        }
    }
}

/// The time from which the connect rate counts, and the number of connects since.
struct RateWindow {
    start_ns: u64,
    connect_count: u64,
}

/// The clients that still have to connect.
pub struct ConnectQueue {
    pub pace: Pace,
    /// Clients that may reconnect.
    pub ready: VecDeque<u32>,
    pub in_progress: u32,
    client_count: u32,
    /// The first client that has not been taken from the queue yet.
    next_new_client: u32,
    /// From the first connect on.
    rate_window: Option<RateWindow>,
}

impl ConnectQueue {
    /// A queue of `client_count` clients, none of which has connected.
    pub fn new(pace: Pace, client_count: u32) -> ConnectQueue {
        ConnectQueue {
            pace,
            ready: VecDeque::new(),
            in_progress: 0,
            client_count,
            next_new_client: 0,
            rate_window: None,
        }
    }

    /// How many clients may connect now, at a rate of `per_s`. The first call starts the time from which the rate counts.
    pub fn due_count(&mut self, per_s: Option<f64>, now_ns: u64) -> u64 {
        let window = self.rate_window.get_or_insert(RateWindow {
            start_ns: now_ns,
            connect_count: 0,
        });
        let due = per_s.map_or(u64::MAX, |per_s| {
            ((now_ns - window.start_ns) as f64 * per_s / 1e9) as u64 + 1
        });
        due.saturating_sub(window.connect_count)
    }

    /// Takes the next client to connect, if one more connect may be in progress.
    pub fn take_next(&mut self) -> Option<u32> {
        if self.in_progress >= self.pace.in_progress_max {
            return None;
        }
        let index = self.ready.pop_front().or_else(|| {
            let is_left = self.next_new_client < self.client_count;
            self.next_new_client += u32::from(is_left);
            is_left.then(|| self.next_new_client - 1)
        })?;
        self.in_progress += 1;
        if let Some(window) = &mut self.rate_window {
            window.connect_count += 1;
        }
        Some(index)
    }
}

/// The drops and resets of connections that are due.
pub struct DropQueue {
    random: Random,
    /// Resets that are still due.
    resets_due: u32,
    /// The number of drops that are due by the drop rate, computed up to the time `drops_counted_at_ns`.
    drops_due: f64,
    drops_counted_at_ns: u64,
}

impl DropQueue {
    /// Nothing is due yet.
    pub fn new(seed: u64) -> DropQueue {
        DropQueue {
            random: Random::new(seed),
            resets_due: 0,
            drops_due: 0.0,
            drops_counted_at_ns: 0,
        }
    }

    /// Takes the drops that are due at a rate of `per_s`, at most `steps`.
    pub fn take_due_drops(&mut self, steps: u32, per_s: f64, now_ns: u64) -> u32 {
        if self.drops_counted_at_ns > 0 {
            self.drops_due += per_s * (now_ns - self.drops_counted_at_ns) as f64 / 1e9;
        }
        self.drops_counted_at_ns = now_ns;
        let drops = (self.drops_due as u32).min(steps);
        self.drops_due -= f64::from(drops);
        drops
    }

    /// A random client number below `client_count`.
    pub fn random_client(&mut self, client_count: u32) -> u32 {
        self.random.below(client_count)
    }

    /// Adds `new_resets` resets, and takes the clients that reset in this turn, at most `steps`. All clients below the number of
    /// resets reset; each turn takes the highest numbers that are left.
    pub fn take_due_resets(&mut self, new_resets: u32, steps: u32) -> std::ops::Range<u32> {
        let end = self.resets_due + new_resets;
        self.resets_due = end - end.min(steps);
        self.resets_due..end
    }

    /// Whether resets are still due.
    pub fn has_resets(&self) -> bool {
        self.resets_due > 0
    }
}
