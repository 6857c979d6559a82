//! Limits and counters of the process: admission of connections, memory that clients make the server hold, grants and cached verdicts, statistics.

pub mod accept_queue;
pub mod account;
pub mod admission;
pub mod connection_grants;
pub mod in_flight;
pub mod part;
pub(crate) mod retry;
pub mod shard_account;
pub mod stats;
pub mod totals;
pub mod verdict_cache;
pub mod world;
