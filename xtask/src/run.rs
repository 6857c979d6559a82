//! Runs other programs: prints each command line, passes its output through, and names it in an error.
//!
//! No shell is involved, so nothing is quoted or expanded.

use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Builds the server and the load tools for measurements. Both programs go into the same directory.
pub fn build_programs() -> Result<()> {
    Program::new("cargo")
        .args(["build", "--release", "--locked"])
        .args(["--package", "crore", "--package", "crore-bench"])
        .run()
}

/// A program with its arguments and environment.
pub struct Program {
    command: Command,
    command_line: String,
}

impl Program {
    /// A program. It is looked up in `PATH` unless its name contains a slash.
    pub fn new(program: impl AsRef<OsStr>) -> Program {
        let program = program.as_ref();
        Program {
            command: Command::new(program),
            command_line: program.to_string_lossy().into_owned(),
        }
    }

    /// A program with the lowest priority: it gets only the processor time that no other program wants.
    pub fn behind(program: impl AsRef<OsStr>) -> Program {
        Program::new("nice").args(["-n", "19"]).args([program])
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Program {
        for arg in args {
            self.command_line.push(' ');
            self.command_line.push_str(&arg.as_ref().to_string_lossy());
            self.command.arg(arg);
        }
        self
    }

    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Program {
        self.command_line = format!("{key}={:?} {}", value.as_ref(), self.command_line);
        self.command.env(key, value);
        self
    }

    pub fn current_dir(mut self, directory: &Path) -> Program {
        self.command.current_dir(directory);
        self
    }

    /// Runs the program until it ends. An exit status other than 0 is an error.
    pub fn run(mut self) -> Result<()> {
        eprintln!("$ {}", self.command_line);
        let status = self
            .command
            .status()
            .with_context(|| format!("cannot start `{}`", self.command_line))?;
        if !status.success() {
            bail!("`{}` failed: {status}", self.command_line);
        }
        Ok(())
    }

    /// Runs Rust's tests. The error names the failed tests and their reasons, so that these are at the end of a long output.
    pub fn run_tests(self) -> Result<()> {
        self.run_tests_to(&mut io::stdout())
    }

    fn run_tests_to(mut self, out: &mut impl Write) -> Result<()> {
        eprintln!("$ {}", self.command_line);
        let context = || format!("cannot start `{}`", self.command_line);
        self.command.stdout(Stdio::piped());
        let mut child = self.command.spawn().with_context(context)?;
        let lines = BufReader::new(child.stdout.take().context("a pipe")?).split(b'\n');
        let mut failures = TestFailures::default();
        for line in lines {
            let line = line.context("reading what the tests say")?;
            let text = String::from_utf8_lossy(&line);
            writeln!(out, "{text}").context("showing what the tests say")?;
            failures.read(&text);
        }
        let status = child.wait().with_context(context)?;
        failures.into_result(&self.command_line, status)
    }

    /// Runs a step while other steps run. Its output is shown in one piece at its end, so that lines of different steps are not mixed.
    pub fn run_beside(mut self) -> Result<()> {
        eprintln!(
            "$ {} (beside the next steps; its output follows later)",
            self.command_line
        );
        let output = self
            .command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start `{}`", self.command_line))?;
        let text = [output.stderr, output.stdout].concat();
        let text = String::from_utf8_lossy(&text);
        let command_line = format!("$ {} (ended)\n{text}", self.command_line);
        let mut out = io::stdout().lock();
        out.write_all(command_line.as_bytes())
            .context("showing what it has printed")?;
        let mut failures = TestFailures::default();
        text.lines().for_each(|line| failures.read(line));
        failures.into_result(&self.command_line, output.status)
    }

    /// Runs the program without output. Returns whether it could be started and exited with 0.
    pub fn succeeds(mut self) -> bool {
        let command = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

/// The failed tests and their panic messages, from the output of tests.
#[derive(Default)]
struct TestFailures {
    tests: Vec<String>,
    panic_messages: PanicMessages,
}

impl TestFailures {
    fn read(&mut self, line: &str) {
        self.tests
            .extend(failed_test_name(line).map(str::to_string));
        self.panic_messages.read(line);
    }

    /// An error for every exit status other than 0.
    fn into_result(self, command_line: &str, status: ExitStatus) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        let description = match &self.tests[..] {
            [] => "no test has said so: a program did not build, is not a test, or ended before its tests did (above)"
                .to_string(),
            failed => format!(
                "failed tests:\n  {}\n{}",
                failed.join("\n  "),
                self.panic_messages.text
            ),
        };
        bail!("`{command_line}` failed: {status}; {description}");
    }
}

/// The failed test that a line of the test harness names, if it does.
fn failed_test_name(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// The maximum number of lines that are kept of a panic message.
const REASON_LINES_MAX: usize = 6;

/// The messages of panics in the output of failed tests, without backtraces.
#[derive(Default)]
struct PanicMessages {
    text: String,
    /// How many more lines of the current message to keep.
    lines_left: usize,
}

impl PanicMessages {
    fn read(&mut self, line: &str) {
        if line.starts_with("thread '") && line.contains(" panicked at ") {
            self.lines_left = REASON_LINES_MAX;
        } else if ["stack backtrace:", "note: "]
            .iter()
            .any(|end| line.starts_with(end))
        {
            self.lines_left = 0;
        }
        if self.lines_left > 0 {
            self.lines_left -= 1;
            self.text += &format!("{line}\n");
        }
    }
}

/// Joins all errors into one.
pub fn together(outcomes: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let errors = outcomes.into_iter().filter_map(Result::err);
    let errors: Vec<String> = errors.map(|error| format!("{error:#}")).collect();
    match errors.is_empty() {
        true => Ok(()),
        false => bail!("{}", errors.join("\n")),
    }
}

/// The directory of the workspace's `Cargo.toml`.
pub fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

/// Cargo's target directory. It is derived from the path of this program, `<target>/debug/xtask`.
pub fn target_directory() -> Result<PathBuf> {
    let program = std::env::current_exe().context("where this program lies")?;
    let target = program
        .ancestors()
        .nth(2)
        .context("this program does not lie in a target directory")?;
    Ok(target.to_path_buf())
}

/// A seed that is derived from the source code: each change gets a new one, and a repeated run gets the same one on any machine.
pub fn source_seed() -> Result<u64> {
    let mut files = Vec::new();
    for directory in ["crates", "fuzz"] {
        source_files(&workspace_root().join(directory), &mut files)?;
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        let text = fs::read(&file).with_context(|| format!("{}", file.display()))?;
        text.hash(&mut hasher);
    }
    Ok(hasher.finish() >> 16)
}

fn source_files(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(directory);
    for entry in entries.with_context(|| format!("{}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            source_files(&path, files)?;
        } else if path.extension().is_some_and(|name| name == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The first file with this name in `PATH`.
pub fn which(program: &str) -> Option<PathBuf> {
    let path: OsString = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_every_failed_test() {
        // The output must not go to our own standard output, because the outer test run parses that in the same way.
        let run = |step: Program| step.run_tests_to(&mut io::sink());
        let run_printf = |text: &str| run(Program::new("printf").args([text]));
        assert!(run_printf("test a::b ... ok\n").is_ok());
        let run_failing = |text: &str| {
            let script = format!("printf '{text}'; exit 101");
            run(Program::new("sh").args(["-c", &script]))
        };
        let one = run_failing("test a::b ... ok\ntest a::c ... FAILED\n");
        let two =
            run_failing("test d ... FAILED\ntest e ... FAILED\ntest result: FAILED. 0 passed\n");
        let all = together([one, Ok(()), two]).expect_err("three have failed");
        let all = all.to_string();
        for name in ["\n  a::c", "\n  d\n  e"] {
            assert!(all.contains(name), "{all}");
        }
        assert!(!all.contains("a::b\n"), "{all}");
        let panic = "thread '\\''d'\\'' (7) panicked at d.rs:1:2:\nleft: 1\nright: 2\nstack backtrace:\n0: main\n";
        let error = run_failing(&format!("test d ... FAILED\n{panic}")).expect_err("it has failed");
        let error = error.to_string();
        assert!(
            error.ends_with("\n  d\nthread 'd' (7) panicked at d.rs:1:2:\nleft: 1\nright: 2\n"),
            "{error}"
        );
        let unnamed = run_failing("").expect_err("it has failed").to_string();
        assert!(unnamed.contains("did not build"), "{unnamed}");
    }
}
