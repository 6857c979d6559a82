//! The simulator: real shards of the broker with a virtual clock and a virtual network that cuts, stalls and reorders. Clients of
//! every transport resume, and publishers retry. The seed alone determines a run.
//!
//! Checked:
//! * Every acknowledged message reaches every subscriber once and in order, or the subscriber is told a gap. No gap is told while the
//!   log still has the messages.
//! * The limits hold after every turn.
//! * A new request returns no expired or superseded message.
//! * A retry with an idempotency key is stored once.
//! * Followers of interest see exactly the topics that have subscribers.
//! * Without faults, every shard becomes idle and every subscriber reaches the newest message.
//! * After all clients have left, every account is back at zero.
//! * Checkpoints together with the log behind them contain everything that the homes still have.
//!
//! Not checked: sockets and threads of the operating system (`crore-net` has its own tests), and time within a second.

mod checkpoint;
pub mod client;
mod close_frame;
pub mod coverage;
mod engine;
mod net;
mod obligations;
pub mod plan;
pub mod run;
mod shadow;
pub mod shrink;
mod simulation;
mod truth;

pub use coverage::Coverage;
pub use plan::{Plan, Step};
pub use run::Failure;

/// Runs the world of a seed for this number of steps.
///
/// # Errors
///
/// The first failure.
pub fn run_seed(seed: u64, steps: usize) -> Result<Coverage, Failure> {
    let plan = Plan::new(seed);
    run::run(&plan, seed, &plan.steps(seed, steps), false)
}
