//! The console's bundle: built from `console/` with the packages that its lock file pins, and committed, so that building
//! the server needs no Node.
//!
//! The bundler's output is a function of the sources and of those pins alone, so that the committed bundle can be compared
//! with a new build, byte for byte.

use crate::run::{Step, build_programs, target_directory, workspace_root};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory that the server embeds it from.
const COMMITTED: &str = "crates/server/src/control/console";

/// `cargo xtask console`: builds into the committed directory.
pub fn build() -> Result<()> {
    let committed = workspace_root().join(COMMITTED);
    bundle(&committed)
}

/// `cargo xtask console --check`: builds beside it and compares.
pub fn check() -> Result<()> {
    let fresh = target_directory()?.join("console");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).with_context(|| format!("removing {}", fresh.display()))?;
    }
    bundle(&fresh)?;
    let (fresh, committed) = (files(&fresh)?, files(&workspace_root().join(COMMITTED))?);
    let differs: Vec<_> = fresh
        .keys()
        .chain(committed.keys())
        .filter(|name| fresh.get(*name) != committed.get(*name))
        .collect();
    if !differs.is_empty() {
        bail!(
            "{COMMITTED} is not what console/ gives ({differs:?}): run `cargo xtask console` and commit the result"
        );
    }
    Ok(())
}

/// `cargo xtask console --measure`: first paint with many connections, and the server's CPU without and with a console.
pub fn measure(args: &[&str]) -> Result<()> {
    let tools = crate::tools::prepare()?;
    build_programs()?;
    Step::new("node")
        .args(["console/measure.mjs", "--program"])
        .args([target_directory()?.join("release/crore")])
        .args(["--json", "docs/benchmarks/console.json"])
        .args(args)
        .env("CRORE_CLIENT_TESTS", tools)
        .run()
}

fn bundle(out: &Path) -> Result<()> {
    let console = workspace_root().join("console");
    // None of these packages runs an install script, and none may begin to.
    let installed = fs::read(console.join("node_modules/.installed")).ok();
    let pins = fs::read(console.join("package-lock.json")).context("reading the console's pins")?;
    if installed.as_ref() != Some(&pins) {
        Step::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(&console)
            .run()?;
        fs::write(console.join("node_modules/.installed"), &pins)
            .context("noting what is installed")?;
    }
    for step in ["check", "test"] {
        Step::new("npm")
            .args(["run", "--silent", step])
            .current_dir(&console)
            .run()?;
    }
    Step::new("node")
        .args(["build.mjs"])
        .args([out])
        .current_dir(&console)
        .run()
}

fn files(directory: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?
    {
        let entry = entry?;
        found.insert(entry.file_name().into(), fs::read(entry.path())?);
    }
    Ok(found)
}
