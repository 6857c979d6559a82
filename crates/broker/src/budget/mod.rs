//! Permissions and limits: grants, limits by address and of the process, the account of bytes, and the counts of events.

pub mod accept_queue;
pub mod account;
pub mod admission;
pub mod identities;
pub mod part;
pub mod passage;
pub(crate) mod retry;
pub mod shard_account;
pub mod stats;
pub mod totals;
pub mod verdicts;
pub mod world;
