//! Everything that the doctor found out about a host.

use super::bounds::{self, Bound};
use super::checks::{self, Check, Verdict};
use super::host::Host;
use super::memory_estimate::MemoryEstimate;
use super::workload::Workload;

pub struct Findings {
    pub host: Host,
    pub workload: Workload,
    /// The tightest first; never empty.
    pub bounds: Vec<Bound>,
    pub memory_estimate: MemoryEstimate,
    pub checks: Vec<Check>,
}

impl Findings {
    /// Finds out whether the host holds the workload.
    pub fn new(host: Host, workload: Workload) -> Findings {
        Findings {
            bounds: bounds::all_bounds(&host, &workload),
            memory_estimate: MemoryEstimate::new(&host, &workload),
            checks: checks::all_checks(&host, &workload),
            host,
            workload,
        }
    }

    /// Whether the host holds the connections without a change.
    pub fn fits(&self) -> bool {
        self.bounds[0].connections >= self.workload.connections
            && self
                .checks
                .iter()
                .all(|check| check.verdict != Verdict::Change)
    }
}
