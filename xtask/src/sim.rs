//! `cargo xtask sim`: builds the simulator, fast and with every assertion, and runs it.

use anyhow::Result;

use crate::run::{Step, source_seed, target_directory};

/// How many seeds every test run tries: two minutes of two cores.
const FRESH_SEEDS: &str = "13000";

/// Seeds with this bit have worlds of several nodes, too.
const CLUSTERS: u64 = 1 << 61;

/// Runs it with these arguments; `--planted` needs a broker that can be broken.
pub fn run(args: &[&str]) -> Result<()> {
    let planted = args.contains(&"--planted");
    // Not `--package`: the fuzzer has the same libraries, with the features that the whole workspace asks for.
    let mut build = Step::new("cargo")
        .args(["build", "--profile", "sim", "--locked"])
        .args(["--workspace", "--bin", "crore-sim"]);
    if planted {
        build = build.args(["--features", "crore-sim/planted"]);
    }
    build.run()?;
    Step::new(target_directory()?.join("sim/crore-sim"))
        .args(args)
        .run()
}

/// Seeds that no run of other source code had: they begin with a number made of the code.
pub fn fresh() -> Result<()> {
    let from = (source_seed()? | CLUSTERS).to_string();
    run(&["--seeds", FRESH_SEEDS, "--from", &from])
}
