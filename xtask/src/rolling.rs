//! `cargo xtask rolling COMMIT`: runs nodes of an earlier build and of this one in one cluster, upgrades it node by node, and goes back
//! (`crates/server/tests/cluster/rolling.rs`).

use anyhow::{Context, Result};

use crate::run::{Program, target_directory};
use crate::tools;

/// Builds the server of this commit in its own directory, and runs the tests with both builds.
pub fn run(commit: &str) -> Result<()> {
    let directory = target_directory()?.join("rolling");
    let source = directory.join("source");
    let git = |args: &[&str]| Program::new("git").args(args);
    // The worktree is kept, so that the next run rebuilds only the difference between the two commits.
    if source.is_dir() {
        git(&["checkout", "--quiet", "--detach", commit])
            .current_dir(&source)
            .run()?;
    } else {
        let path = source.to_str().context("a path in UTF-8")?;
        git(&["worktree", "prune"]).run()?;
        git(&["worktree", "add", "--detach", path, commit]).run()?;
    }
    let before = directory.join("target");
    Program::new("cargo")
        .args(["build", "--package", "crore", "--locked"])
        .env("CARGO_TARGET_DIR", &before)
        .current_dir(&source)
        .run()?;
    Program::new("cargo")
        .args([
            "test",
            "--package",
            "crore",
            "--test",
            "cluster",
            "--locked",
        ])
        .args(["--", "--ignored", "rolling"])
        .env("CRORE_PROGRAM_BEFORE", before.join("debug/crore"))
        .env("CRORE_NATS_SERVER", tools::nats_server()?)
        .env("CRORE_TOOLS", "required")
        .run_tests()
}
