//! `cargo xtask sim`: builds the simulator, optimized and with assertions, and runs it.

use anyhow::Result;

use std::path::PathBuf;

use crate::run::{Program, source_seed, target_directory, together};

/// The new seeds of a test run: the first seed of each range, and the number of seeds. They take two minutes on two cores.
const FRESH_SEEDS: [(u64, &str); 4] = [
    (CLUSTERS, "11500"),
    (CLUSTER_SESSIONS, "1000"),
    (CENTRIFUGO, "1000"),
    (TCP, "300"),
];

/// A seed with this bit may have several nodes (`CLUSTERS_FROM` of the simulator).
const CLUSTERS: u64 = 1 << 61;
/// The first seed whose world is a cluster with MQTT sessions (`CLUSTER_SESSIONS_FROM` of the simulator).
const CLUSTER_SESSIONS: u64 = 1 << 59;
/// The first seed whose world has clients of Centrifugo's protocol (`CENTRIFUGO_FROM` of the simulator).
const CENTRIFUGO: u64 = 1 << 58;
/// The first seed whose world has connections over Crore's own TCP (`TCP_FROM` of the simulator).
const TCP: u64 = 1 << 57;

/// Builds the simulator and runs it with these arguments. `--planted` and `--fault` need a build that contains the planted faults.
pub fn run(args: &[&str]) -> Result<()> {
    let planted = args.contains(&"--planted") || args.contains(&"--fault");
    // Not `--package`: with the features of the whole workspace, simulator and fuzzer share the compiled libraries.
    let mut build = Program::new("cargo")
        .args(["build", "--profile", "sim", "--locked"])
        .args(["--workspace", "--bin", "crore-sim"]);
    if planted {
        build = build.args(["--features", "crore-sim/planted"]);
    }
    build.run()?;
    Program::new(program()?).args(args).run()
}

/// Runs checks that only compute, with low priority, while other tests wait for their servers and clients. They need no server, socket or clock. First come
/// all tests of the broker's allocations, including those that take minutes without optimization. Then come seeds that are derived from the source code, so
/// that every change tests new ones.
pub fn beside() -> Result<()> {
    // One command builds all programs of this profile, including the fuzzer's, so that their libraries are compiled once.
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
