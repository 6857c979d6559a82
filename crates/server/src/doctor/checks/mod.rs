//! The checks of the doctor. A check has a setting, its value, the recommended value, the reason, and how to change it.
//!
//! A check only reads the host and the workload. It *demands* a change if the host cannot hold the connections without the change, and
//! *advises* a change if the host would serve the connections worse without it. If a value cannot be read, the check reports it as unknown, which
//! neither demands nor advises a change. There are also checks of settings that only old guides recommend; they say that the setting does not help.

mod buffers;
mod check;
mod descriptors;
mod machine;
mod memory;
mod queues;
mod tracking;
mod xdp;

use super::host::Host;
use super::workload::Workload;
pub use check::{Check, Verdict};

/// All checks: demands first, then advice, then the other verdicts. Checks with the same verdict stand in the order of the documentation.
pub fn all_checks(host: &Host, workload: &Workload) -> Vec<Check> {
    let mut checks = memory::checks(host, workload);
    checks.extend(descriptors::checks(host, workload));
    checks.extend(buffers::checks(host, workload));
    checks.extend(queues::checks(host, workload));
    checks.extend(tracking::checks(host, workload));
    checks.extend(machine::checks(host, workload));
    checks.extend(xdp::checks(workload));
    checks.sort_by_key(|check| check.verdict);
    checks
}
