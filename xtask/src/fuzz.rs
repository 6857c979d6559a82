//! `cargo xtask fuzz`: builds the runner of the fuzz targets, optimized and with assertions, and runs it.

use anyhow::Result;

use crate::run::{Program, source_seed, target_directory};

/// Seconds for all targets together in a test run. This suffices for the kept inputs and a few mutations of them.
const SHORT_SECONDS: &str = "5";

/// Builds the runner and runs it with these arguments.
pub fn run(args: &[&str]) -> Result<()> {
    Program::new("cargo")
        .args(["build", "--profile", "sim", "--locked"])
        .args(["--workspace", "--bin", "crore-fuzz"])
        .run()?;
    start(args)
}

fn start(args: &[&str]) -> Result<()> {
    Program::new(target_directory()?.join("sim/crore-fuzz"))
        .args(args)
        .run()
}

/// Runs every target for a short time. The seed of the mutations is a hash of the source code, so every change tests new mutations. [`crate::sim::beside`]
/// has already built the runner.
pub fn short() -> Result<()> {
    let seed = source_seed()?.to_string();
    start(&["--seconds", SHORT_SECONDS, "--seed", &seed])
}
