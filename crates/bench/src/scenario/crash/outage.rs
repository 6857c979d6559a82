//! A time in which a server may lose what clients did, or may not know it yet.

use std::time::{Duration, Instant};

/// A time in which the server, or a node of a cluster, could fail.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// When it began.
    pub begin: Instant,
    /// When all was well again, or the server was gone.
    pub end: Instant,
}

impl Outage {
    /// The time from `at` to the outage, zero during the outage; `None` after it.
    pub fn time_after(&self, at: Instant) -> Option<Duration> {
        (self.end >= at).then(|| self.begin.saturating_duration_since(at))
    }
}
