//! `cargo xtask sim`: builds the simulator, optimized and with every assertion, and runs it.

use anyhow::Result;

use std::path::PathBuf;

use crate::run::{Program, source_seed, target_directory, together};

/// The new seeds of every test run: for each range of the simulator's seeds its first one, and their number. They take two minutes on two cores.
const FRESH_SEEDS: [(u64, &str); 4] = [
    (CLUSTERS, "11500"),
    (CLUSTER_SESSIONS, "1000"),
    (CENTRIFUGO, "1000"),
    (TCP, "300"),
];

/// Seeds with this bit may have several nodes (`CLUSTERS_FROM` of the simulator).
const CLUSTERS: u64 = 1 << 61;
/// The first of the seeds whose worlds are clusters with MQTT sessions (`CLUSTER_SESSIONS_FROM` of the simulator).
const CLUSTER_SESSIONS: u64 = 1 << 59;
/// The first of the seeds whose worlds have clients of Centrifugo's protocol (`CENTRIFUGO_FROM` of the simulator).
const CENTRIFUGO: u64 = 1 << 58;
/// The first of the seeds whose worlds have connections over the product's own TCP (`TCP_FROM` of the simulator).
const TCP: u64 = 1 << 57;

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
    let mut all = vec![allocations];
    for (first, count) in FRESH_SEEDS {
        let from = (source_seed()? | first).to_string();
        let seeds = Program::behind(program()?)
            .args(["--seeds", count, "--from", &from])
            .run_beside();
        all.push(seeds);
    }
    together(all)
}

fn program() -> Result<PathBuf> {
    Ok(target_directory()?.join("sim/crore-sim"))
}
