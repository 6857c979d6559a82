//! The state that the threads of one subscriber share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::measure::tally::Tally;

/// Pause after a failure, so that a full server is not flooded with requests.
pub const FAILURE_PAUSE_NS: u64 = 20_000_000;

/// Commands to the workers, and counters.
#[derive(Default)]
pub struct Shared {
    /// Each worker's counters. A worker locks them while it handles a batch of events.
    pub tallies: Vec<Mutex<Tally>>,
    /// Whether the workers must end.
    pub must_stop: AtomicBool,
    /// Whether connections may be opened. A scenario first samples the server without connections.
    pub may_connect: AtomicBool,
    /// Incremented to drop all connections at once. The clients then reconnect.
    pub drop_commands: AtomicU32,
    /// Whether all connections must be closed and not opened again.
    pub close_all: AtomicBool,
    /// The number of executed commands, each counted once by each worker.
    pub executed_commands: AtomicU32,
    /// The number of connections to close and open again each second.
    pub churn_per_s: AtomicU32,
    /// When the churn began.
    pub churn_since_ns: AtomicU64,
    /// Microseconds between two publishes of a client. 0 means no requests.
    pub publish_interval_us: AtomicU64,
    /// When `publish_interval_us` was set.
    pub publish_start_ns: AtomicU64,
    /// The number of publishes that have no answer yet.
    pub publishes_in_flight: AtomicU64,
    /// The number of open connections.
    pub live: AtomicU64,
    /// The maximum number of open connections at the same time.
    pub live_max: AtomicU64,
    /// The number of connections that were given up.
    pub given_up: AtomicU64,
}

impl Shared {
    pub fn worker_count(&self) -> u32 {
        self.tallies.len() as u32
    }
}
