//! The console's bundle. It is built from `console/` with the packages that its lock file pins, and committed, so that building the server
//! needs no Node.
//!
//! The bundle depends only on the sources and the pins, so the committed one can be compared with a new build byte by byte.

use crate::run::{Program, build_programs, target_directory, workspace_root};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory from which the server embeds the bundle.
const COMMITTED: &str = "crates/server/src/control/console";

/// `cargo xtask console`: builds into the committed directory.
pub fn build() -> Result<()> {
    let committed = workspace_root().join(COMMITTED);
    bundle(&committed)
}

/// `cargo xtask console --check`: builds into another directory and compares.
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
    let result = ["--json", "docs/benchmarks/console.json"];
    browse("console/measure.mjs", &[&result, args].concat())
}

/// `cargo xtask console --pictures`: the pictures of `docs/console`, of a server with some clients.
pub fn pictures(args: &[&str]) -> Result<()> {
    browse("console/pictures.mjs", args)
}

/// Runs a script that starts the server and looks at its console with Chromium.
fn browse(script: &str, args: &[&str]) -> Result<()> {
    let tools = crate::tools::prepare()?;
    build_programs()?;
    Program::new("node")
        .args([script, "--program"])
        .args([target_directory()?.join("release/crore")])
        .args(args)
        .env("CRORE_CLIENT_TESTS", tools)
        .run()
}

fn bundle(out: &Path) -> Result<()> {
    let console = workspace_root().join("console");
    // No package has an install script today, and none may get one.
    let installed = fs::read(console.join("node_modules/.installed")).ok();
    let pins = fs::read(console.join("package-lock.json")).context("reading the console's pins")?;
    if installed.as_ref() != Some(&pins) {
        Program::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(&console)
            .run()?;
        fs::write(console.join("node_modules/.installed"), &pins)
            .context("noting what is installed")?;
    }
    for step in ["check", "test"] {
        Program::new("npm")
            .args(["run", "--silent", step])
            .current_dir(&console)
            .run()?;
    }
    Program::new("node")
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
