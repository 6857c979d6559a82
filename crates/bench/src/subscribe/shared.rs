//! The state that the threads of one subscriber share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::measure::tally::Tally;

/// Pause after a failure, so that a full server is not flooded with requests.
pub const FAILURE_PAUSE_NS: u64 = 20_000_000;

/// Commands to the threads, and counters.
#[derive(Default)]
pub struct Shared {
    /// Each worker's counters, locked for a batch of events at a time.
    pub tallies: Vec<Mutex<Tally>>,
    /// The workers must end.
    pub stop: AtomicBool,
    /// Connections may be opened. A scenario samples the server before.
    pub may_connect: AtomicBool,
    /// Incremented to drop all connections at once. The clients then reconnect.
    pub drops: AtomicU32,
    /// All connections must end properly and stay closed.
    pub close_all: AtomicBool,
    /// Incremented by a worker after it has executed a command.
    pub applied: AtomicU32,
    /// Connections to close and open again a second.
    pub churn_per_s: AtomicU32,
    /// When the churn began.
    pub churn_since_ns: AtomicU64,
    /// Microseconds between two requests of a grid client. 0 means no requests.
    pub talk_every_us: AtomicU64,
    /// When `talk_every_us` was set.
    pub talk_since_ns: AtomicU64,
    /// Requests of grid clients in flight.
    pub grid_requests: AtomicU64,
    /// Open connections.
    pub live: AtomicU64,
    /// The maximum number of open connections at the same time.
    pub live_max: AtomicU64,
    /// Connections that were given up.
    pub given_up: AtomicU64,
}
