//! The doctor's findings.

use super::account::Account;
use super::bounds::{self, Bound};
use super::checks::{self, Check, State};
use super::host::Host;
use super::need::Need;

/// The doctor's findings.
pub struct Findings {
    pub host: Host,
    pub need: Need,
    /// The tightest first; never empty.
    pub bounds: Vec<Bound>,
    pub account: Account,
    pub checks: Vec<Check>,
}

impl Findings {
    /// Judges the host by the need.
    pub fn new(host: Host, need: Need) -> Findings {
        Findings {
            bounds: bounds::all(&host, &need),
            account: Account::new(&host, &need),
            checks: checks::all(&host, &need),
            host,
            need,
        }
    }

    /// Whether the host holds the connections as it is.
    pub fn fits(&self) -> bool {
        self.bounds[0].holds >= self.need.connections
            && self.checks.iter().all(|check| check.state != State::Change)
    }
}
