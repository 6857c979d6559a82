//! `cargo xtask sim`: builds the simulator, optimized and with every assertion, and runs it.

use anyhow::Result;

use std::path::PathBuf;

use crate::run::{Program, source_seed, target_directory, together};

/// Number of new seeds in every test run: two minutes on two cores.
const FRESH_SEEDS: &str = "13000";

/// Seeds with this bit may have several nodes (`CLUSTERS_FROM` of the simulator).
const CLUSTERS: u64 = 1 << 61;

/// Builds the simulator and runs it with these arguments. `--planted` and `--fault` need a build with the planted faults.
pub fn run(args: &[&str]) -> Result<()> {
    let planted = args.contains(&"--planted") || args.contains(&"--fault");
    // Not `--package`: with the features of the whole workspace, the fuzzer can use the same libraries.
    let mut build = Program::new("cargo")
        .args(["build", "--profile", "sim", "--locked"])
        .args(["--workspace", "--bin", "crore-sim"]);
    if planted {
        build = build.args(["--features", "crore-sim/planted"]);
    }
    build.run()?;
    Program::new(program()?).args(args).run()
}

/// What only computes, for the time in which other tests wait for their servers and clients: it gives way to them, and needs no server,
/// no socket and no clock. First the tests of the broker's allocations, those too that take minutes without optimisation. Then seeds
/// that depend on the source code, so that every change gets new ones.
pub fn beside() -> Result<()> {
    // One command for all programs of this profile, the fuzzer's too, so that their libraries are compiled once.
    Program::behind("cargo")
        .args(["build", "--profile", "sim", "--locked", "--workspace"])
        .args(["--bin", "crore-sim", "--bin", "crore-fuzz"])
        .args(["--test", "allocations"])
        .run_beside()?;
    let allocations = Program::behind("cargo")
        .args(["test", "--profile", "sim", "--locked", "--workspace"])
        .args(["--test", "allocations", "--", "--include-ignored"])
        .run_beside();
    let from = (source_seed()? | CLUSTERS).to_string();
    let seeds = Program::behind(program()?)
        .args(["--seeds", FRESH_SEEDS, "--from", &from])
        .run_beside();
    together([allocations, seeds])
}

fn program() -> Result<PathBuf> {
    Ok(target_directory()?.join("sim/crore-sim"))
}
