//! The reports of a home (the part of a shard that keeps topics) to the operator: counters, and one example topic for each kind of notice.

use crate::base::notices::Notices;
use crate::budget::stats::Stats;

/// The reports of one home.
#[derive(Default)]
pub(crate) struct Reports {
    pub(super) stats: Stats,
    pub(super) notices: Notices,
}
