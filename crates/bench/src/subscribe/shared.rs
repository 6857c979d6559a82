//! The state that the threads of one subscriber share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::measure::tally::Tally;

/// Pause after a failure, so that a full server is not asked all the time.
pub const FAILURE_PAUSE_NS: u64 = 20_000_000;

/// Orders to the threads, and counts of the work done.
#[derive(Default)]
pub struct Shared {
    /// Each worker's counters, locked for a batch of events at a time.
    pub tallies: Vec<Mutex<Tally>>,
    /// The workers end.
    pub stop: AtomicBool,
    /// Connections may be opened; a scenario first looks at the server while no client is connected.
    pub go: AtomicBool,
    /// Raised by one to drop all connections at once; they come back.
    pub drops: AtomicU32,
    /// All connections part from the server and stay away.
    pub part: AtomicBool,
    /// Grows by one whenever a worker has obeyed an order.
    pub obeyed: AtomicU32,
    /// Connections to close and open again a second.
    pub churn_per_s: AtomicU32,
    /// When the churn began.
    pub churn_since_ns: AtomicU64,
    /// Microseconds from one request of a client in a grid to its next; with 0 clients make none.
    pub talk_every_us: AtomicU64,
    /// When `talk_every_us` was ordered.
    pub talk_since_ns: AtomicU64,
    /// Requests of clients that are under way.
    pub speaking: AtomicU64,
    /// Connections that may receive messages now.
    pub live: AtomicU64,
    /// The most that there were at once.
    pub live_max: AtomicU64,
    /// Connections that are not tried any more.
    pub given_up: AtomicU64,
}
