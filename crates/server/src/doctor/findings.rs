//! All that the doctor found about a host.

use super::account::Account;
use super::bounds::{self, Bound};
use super::checks::{self, Check, State};
use super::host::Host;
use super::workload::Workload;

pub struct Findings {
    pub host: Host,
    pub workload: Workload,
    /// The tightest first; never empty.
    pub bounds: Vec<Bound>,
    pub account: Account,
    pub checks: Vec<Check>,
}

impl Findings {
    /// Judges the host by the workload.
    pub fn new(host: Host, workload: Workload) -> Findings {
        Findings {
            bounds: bounds::all(&host, &workload),
            account: Account::new(&host, &workload),
            checks: checks::all(&host, &workload),
            host,
            workload,
        }
    }

    /// Whether the host holds the connections without a change.
    pub fn fits(&self) -> bool {
        self.bounds[0].holds >= self.workload.connections
            && self.checks.iter().all(|check| check.state != State::Change)
    }
}
