//! Reports of a home to the operator: its counters, and one name of each kind of trouble.

use crate::base::notices::Notices;
use crate::budget::stats::Stats;

/// The reports.
#[derive(Default)]
pub(crate) struct Reports {
    pub(super) stats: Stats,
    pub(super) notices: Notices,
}
