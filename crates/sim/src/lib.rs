//! The simulator runs real shards of the broker in one thread, with a virtual clock, network, disk and log, and with faults. The seed
//! alone determines a run. `docs/internals/SIMULATOR.md` lists the checks and defines the words.
//!
//! A seed stands for a [`Plan`] (the settings of its *world*: servers, network, clients and log) and a list of [`Step`]s. [`run`] executes
//! the steps in a `Simulation`. The clients record in `Truth` what they send and what the answers say, and the checks compare the received
//! messages with `Truth`. `obligations` decides which messages must, may or must not come. [`Coverage`] counts the events. If a feature was
//! never exercised, the search fails.
//!
//! Not simulated: sockets and threads of the operating system (`crore-net` has its own tests), and time within a second, except in connections
//! over the product's own TCP.

mod checkpoint;
pub mod client;
mod close_frame;
pub mod coverage;
mod engine;
mod log_replay;
mod net;
mod obligations;
pub mod plan;
pub mod run;
pub mod shrink;
mod simulation;
mod tcp_connection;
mod truth;

pub use coverage::Coverage;
pub use plan::{Plan, Step};
pub use run::Failure;

/// Runs the world of `seed` for `steps` steps.
///
/// # Errors
///
/// The first failure.
pub fn run_seed(seed: u64, steps: usize) -> Result<Coverage, Failure> {
    let plan = Plan::new(seed);
    run::run(&plan, seed, &plan.steps(seed, steps), false)
}
