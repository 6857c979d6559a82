//! `cargo xtask sim`: builds the simulator, optimized and with every assertion, and runs it.

use anyhow::Result;

use crate::run::{Program, source_seed, target_directory};

/// Number of new seeds in every test run: two minutes on two cores.
const FRESH_SEEDS: &str = "13000";

/// Seeds with this bit may have several nodes (`CLUSTERS_FROM` of the simulator).
const CLUSTERS: u64 = 1 << 61;

/// Builds the simulator and runs it with these arguments. `--planted` needs a build with the planted faults.
pub fn run(args: &[&str]) -> Result<()> {
    let planted = args.contains(&"--planted");
    // Not `--package`: with the features of the whole workspace, the fuzzer can use the same libraries.
    let mut build = Program::new("cargo")
        .args(["build", "--profile", "sim", "--locked"])
        .args(["--workspace", "--bin", "crore-sim"]);
    if planted {
        build = build.args(["--features", "crore-sim/planted"]);
    }
    build.run()?;
    Program::new(target_directory()?.join("sim/crore-sim"))
        .args(args)
        .run()
}

/// Runs seeds that depend on the source code, so that every change gets new ones.
pub fn fresh() -> Result<()> {
    let from = (source_seed()? | CLUSTERS).to_string();
    run(&["--seeds", FRESH_SEEDS, "--from", &from])
}
