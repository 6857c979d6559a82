//! Data types that all other modules use: settings and rules, time, positions, reasons, the format of a snapshot. They do not depend on shards.

pub mod access;
pub(crate) mod call_kind;
pub mod fair_queue;
pub(crate) mod go_away;
pub mod ids;
pub(crate) mod journal;
pub(crate) mod labels;
pub mod lives;
pub mod loss_detector;
pub mod node;
pub(crate) mod notices;
pub mod placement;
pub mod planted;
pub mod position;
pub mod pusher;
pub mod reason;
pub(crate) mod record_kind;
pub mod rules;
pub mod settings;
pub mod snapshot;
pub mod tally;
pub mod time;
pub mod turn_limits;
pub mod verdict;
pub mod work;
pub(crate) mod writer_set;
