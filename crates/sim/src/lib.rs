//! The seeded world: real shards of the broker under a virtual clock, on a virtual network that
//! tears, stalls, reorders and dies, with clients of every transport that resume and publishers that
//! retry. A run is a function of its seed.
//!
//! Checked: every acknowledged message reaches every subscriber once and in order, or its loss is told; no loss is told
//! while the log still reaches back; limits hold after every turn; a client that asks anew gets nothing that expired or was
//! superseded; a retry with an idempotency key appears once; followers of interest see which topics have subscribers;
//! without faults everything comes to rest and every subscriber reaches the newest message; and when all clients have left,
//! every account is back at zero. Documents that shadows write beside the homes, and the log behind them, have all that the homes still have.
//!
//! Not checked: sockets and threads of the operating system (`crore-net` has its own tests), and time within a second.

mod checkpoint;
pub mod client;
mod closed;
mod engine;
pub mod met;
mod net;
pub mod plan;
mod rng;
pub mod run;
mod shadow;
pub mod shrink;
mod truth;
mod world;
mod worth;

pub use met::Met;
pub use plan::{Plan, Step};
pub use run::Failure;

/// Runs the world of a seed for so many steps.
///
/// # Errors
///
/// The first failure.
pub fn run_seed(seed: u64, steps: usize) -> Result<Met, Failure> {
    let plan = Plan::new(seed);
    run::run(&plan, seed, &plan.steps(seed, steps), false)
}
