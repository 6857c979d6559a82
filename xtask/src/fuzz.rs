//! `cargo xtask fuzz`: builds the fuzzer's runner for the stable toolchain, fast and with every assertion,
//! and runs it.

use anyhow::Result;

use crate::run::{Step, source_seed, target_directory};

/// Time of a test run for all targets together, in seconds: the kept inputs, and a few mutations of them.
const SHORT_SECONDS: &str = "5";

/// Runs it with these arguments.
pub fn run(args: &[&str]) -> Result<()> {
    Step::new("cargo")
        .args(["build", "--profile", "sim", "--locked"])
        .args(["--workspace", "--bin", "crore-fuzz"])
        .run()?;
    Step::new(target_directory()?.join("sim/crore-fuzz"))
        .args(args)
        .run()
}

/// A short run of every target, with mutations that no run of other source code had: their seed is made of the code.
pub fn short() -> Result<()> {
    let seed = source_seed()?.to_string();
    run(&["--seconds", SHORT_SECONDS, "--seed", &seed])
}
