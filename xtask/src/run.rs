//! Running other programs: each is printed, its output goes where ours goes, and a failure names it.
//!
//! No shell is involved, so nothing is ever quoted or expanded.

use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// One program with its arguments.
pub struct Step {
    command: Command,
    shown: String,
}

impl Step {
    /// `program` is looked up in `PATH` unless it has a slash.
    pub fn new(program: impl AsRef<OsStr>) -> Step {
        let program = program.as_ref();
        Step {
            command: Command::new(program),
            shown: program.to_string_lossy().into_owned(),
        }
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Step {
        for arg in args {
            self.shown.push(' ');
            self.shown.push_str(&arg.as_ref().to_string_lossy());
            self.command.arg(arg);
        }
        self
    }

    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Step {
        self.shown = format!("{key}={:?} {}", value.as_ref(), self.shown);
        self.command.env(key, value);
        self
    }

    pub fn current_dir(mut self, directory: &Path) -> Step {
        self.command.current_dir(directory);
        self
    }

    /// Runs it to its end; an exit status other than 0 is an error.
    pub fn run(mut self) -> Result<()> {
        eprintln!("$ {}", self.shown);
        let status = self
            .command
            .status()
            .with_context(|| format!("cannot start `{}`", self.shown))?;
        if !status.success() {
            bail!("`{}` failed: {status}", self.shown);
        }
        Ok(())
    }

    /// Runs it in silence and says whether it could be started and exited with 0.
    pub fn succeeds(mut self) -> bool {
        let quiet = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    }
}

/// The directory of the workspace's `Cargo.toml`.
pub fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

/// Cargo's target directory, wherever the user has it: `<target>/debug/xtask` is this program.
pub fn target_directory() -> Result<PathBuf> {
    let program = std::env::current_exe().context("where this program lies")?;
    let target = program
        .ancestors()
        .nth(2)
        .context("this program does not lie in a target directory")?;
    Ok(target.to_path_buf())
}

/// A seed that no run had before: the time, in milliseconds.
pub fn fresh_seed() -> Result<u128> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(since.context("the clock stands before 1970")?.as_millis())
}

/// The first file of that name in `PATH`.
pub fn which(program: &str) -> Option<PathBuf> {
    let path: OsString = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}
