//! Builds the bundle of the web console from `console/`, with the packages that its lock file pins. The bundle is committed, so that building
//! the server needs no Node.
//!
//! The bundle depends only on the sources and the pinned packages, so the committed one can be compared with a new build byte by byte.

use crate::run::{Program, build_programs, target_directory, workspace_root};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory from which the server embeds the bundle.
const COMMITTED_BUNDLE_DIR: &str = "crates/server/src/control/console";

/// `cargo xtask console`: tests the console, and builds its bundle into the committed directory.
pub fn build() -> Result<()> {
    test_and_build(&workspace_root().join(COMMITTED_BUNDLE_DIR))
}

/// `cargo xtask console --check`: tests the console, builds its bundle into another directory, and compares it with the committed one.
pub fn check() -> Result<()> {
    let directory = target_directory()?.join("console");
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("removing {}", directory.display()))?;
    }
    test_and_build(&directory)?;
    let new_files = read_files(&directory)?;
    let committed_files = read_files(&workspace_root().join(COMMITTED_BUNDLE_DIR))?;
    let different_files: Vec<_> = new_files
        .keys()
        .chain(committed_files.keys())
        .filter(|name| new_files.get(*name) != committed_files.get(*name))
        .collect();
    if !different_files.is_empty() {
        bail!(
            "{COMMITTED_BUNDLE_DIR} is not what console/ gives ({different_files:?}): run `cargo xtask console` and commit the result"
        );
    }
    Ok(())
}

/// `cargo xtask console --measure`: measures the first paint with many connections, and the server's CPU without and with a console. Writes
/// `docs/benchmarks/console.json`.
pub fn measure(args: &[&str]) -> Result<()> {
    let result = ["--json", "docs/benchmarks/console.json"];
    run_browser_script("console/measure.mjs", &[&result, args].concat())
}

/// `cargo xtask console --pictures`: makes the pictures in `docs/console`. They show the console of a server with some clients.
pub fn pictures(args: &[&str]) -> Result<()> {
    run_browser_script("console/pictures.mjs", args)
}

/// Runs a script that starts the server and opens its console in Chromium.
fn run_browser_script(script: &str, args: &[&str]) -> Result<()> {
    let tools = crate::tools::prepare()?;
    build_programs()?;
    Program::new("node")
        .args([script, "--program"])
        .args([target_directory()?.join("release/crore")])
        .args(args)
        .env("CRORE_CLIENT_TESTS", tools)
        .run()
}

/// Installs the pinned packages if they have changed, tests the console, and builds the bundle into `out`.
fn test_and_build(out: &Path) -> Result<()> {
    let console = workspace_root().join("console");
    let installed_lock = fs::read(console.join("node_modules/.installed")).ok();
    let lock = fs::read(console.join("package-lock.json")).context("reading the console's pins")?;
    if installed_lock.as_ref() != Some(&lock) {
        // No package needs an install script, and the script of a later version must not run.
        Program::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(&console)
            .run()?;
        fs::write(console.join("node_modules/.installed"), &lock)
            .context("recording the installed packages")?;
    }
    for script in ["check", "test"] {
        Program::new("npm")
            .args(["run", "--silent", script])
            .current_dir(&console)
            .run()?;
    }
    Program::new("node")
        .args(["build.mjs"])
        .args([out])
        .current_dir(&console)
        .run()
}

fn read_files(directory: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut contents = BTreeMap::new();
    for entry in
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?
    {
        let entry = entry?;
        contents.insert(entry.file_name().into(), fs::read(entry.path())?);
    }
    Ok(contents)
}
