//! `cargo xtask sim`: builds the simulator, fast and with every assertion, and runs it.

use anyhow::Result;

use crate::run::{Step, target_directory};

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
