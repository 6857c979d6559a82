//! `cargo xtask rolling COMMIT`: nodes of an earlier build and of this one in one cluster, an upgrade node by node, and the way back
//! (`crates/server/tests/cluster/rolling.rs`).

use anyhow::{Context, Result};

use crate::run::{Step, target_directory};
use crate::tools;

/// Builds the server as of this commit, beside this one, and runs the tests with both.
pub fn run(commit: &str) -> Result<()> {
    let directory = target_directory()?.join("rolling");
    let source = directory.join("source");
    let git = |args: &[&str]| Step::new("git").args(args);
    // A worktree: what differs between two commits is all that is built anew.
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
    Step::new("cargo")
        .args(["build", "--package", "crore", "--locked"])
        .env("CARGO_TARGET_DIR", &before)
        .current_dir(&source)
        .run()?;
    Step::new("cargo")
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
