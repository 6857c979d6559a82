//! `cargo xtask sim`: builds the simulator, fast and with every assertion, and runs it.

use anyhow::Result;

use crate::run::{Step, fresh_seed, target_directory};

/// How long every test run tries new seeds, in seconds: tens of thousands of worlds.
const FRESH_SECONDS: &str = "120";

/// Runs it with these arguments; `--planted` needs a broker that can be broken.
pub fn run(args: &[&str]) -> Result<()> {
    let planted = args.contains(&"--planted");
    let mut build =
        Step::new("cargo").args(["build", "--profile", "sim", "-p", "crore-sim", "--locked"]);
    if planted {
        build = build.args(["--features", "planted"]);
    }
    build.run()?;
    Step::new(target_directory()?.join("sim/crore-sim"))
        .args(args)
        .run()
}

/// Seeds that no run had before: they begin with the time, which is printed with the command.
pub fn fresh() -> Result<()> {
    let from = fresh_seed()?.to_string();
    run(&["--seconds", FRESH_SECONDS, "--from", &from])
}
