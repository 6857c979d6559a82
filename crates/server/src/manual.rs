//! Man pages and shell completions, made from the flags themselves, for packages (packaging/).

use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::stdout::print;

/// Prints the completions for a shell.
///
/// # Errors
/// When they cannot be printed.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "crore", &mut text);
    print(&text)
}

/// Writes a page for the program and each of its commands.
///
/// # Errors
/// When they cannot be written.
pub fn pages(directory: &Path) -> anyhow::Result<()> {
    let what = || format!("cannot write man pages into {}", directory.display());
    std::fs::create_dir_all(directory).with_context(what)?;
    clap_mangen::generate_to(Cli::command(), directory).with_context(what)
}
