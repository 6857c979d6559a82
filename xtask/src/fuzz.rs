//! `cargo xtask fuzz`: builds the runner of the fuzz targets, optimized and with every assertion, and runs it.

use anyhow::Result;

use crate::run::{Program, source_seed, target_directory};

/// Seconds for all targets together in a test run: the kept inputs, and a few mutations of them.
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

/// A short run of every target. The seed of the mutations depends on the source code, so that every change gets new ones. The runner is
/// built already, by [`crate::sim::beside`].
pub fn short() -> Result<()> {
    let seed = source_seed()?.to_string();
    start(&["--seconds", SHORT_SECONDS, "--seed", &seed])
}
