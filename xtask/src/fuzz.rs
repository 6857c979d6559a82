//! `cargo xtask fuzz`: builds the fuzzer's runner for the stable toolchain, fast and with every assertion,
//! and runs it.

use anyhow::Result;

use crate::run::{Step, target_directory};

/// Runs it with these arguments.
pub fn run(args: &[&str]) -> Result<()> {
    Step::new("cargo")
        .args(["build", "--profile", "sim", "-p", "crore-fuzz", "--locked"])
        .run()?;
    Step::new(target_directory()?.join("sim/crore-fuzz"))
        .args(args)
        .run()
}
