//! A period in which the server may lose or overlook what clients did.

use std::time::{Duration, Instant};

/// A period in which the server, or a node of a cluster, could fail.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// The start of the outage.
    pub begin: Instant,
    /// The time when everything worked again, or when the server had ended.
    pub end: Instant,
}

impl Outage {
    /// The time from `at` to the start of the outage: zero during the outage, `None` after it.
    pub fn time_after(&self, at: Instant) -> Option<Duration> {
        (self.end >= at).then(|| self.begin.saturating_duration_since(at))
    }
}
