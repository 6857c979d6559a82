//! The fuzzer for the stable toolchain. It runs each target with its kept inputs, then with mutations of these inputs; all targets get the
//! same time. `cargo xtask fuzz` builds and calls it.
//!
//! An input that panics or takes too long is written to `fuzz/artifacts`. The command to repeat it is printed.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)] // a command-line tool: standard error is where it reports

use crore_fuzz::mutate::mutate;
use crore_fuzz::{TARGETS, Target};
use crore_rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

const USAGE: &str = "\
cargo xtask fuzz [--seconds N] [--seed S] [TARGET...]    all targets share N seconds (60)
cargo xtask fuzz --replay TARGET FILE                    one input again
";

/// Longest time for one input: a hundred times as long as any input of these sizes should take.
const TOO_LONG: Duration = Duration::from_secs(20);

/// The input that runs now: its start time, the name of its target, and its bytes.
static TRYING: Mutex<Option<(Instant, &'static str, Vec<u8>)>> = Mutex::new(None);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let passed = match args.as_slice() {
        ["--replay", name, file] => replay(name, file),
        args => Plan::of(args).and_then(|plan| plan.run()),
    };
    match passed {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

struct Plan {
    seconds: f64,
    seed: u64,
    targets: Vec<&'static Target>,
}

impl Plan {
    fn of(args: &[&str]) -> Result<Plan, String> {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut plan = Plan {
            seconds: 60.0,
            seed: clock.map_or(1, |since| since.as_secs()),
            targets: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            let mut value = || args.next().ok_or(USAGE);
            let bad = |_| format!("{arg} takes a number");
            match arg {
                "--seconds" => plan.seconds = value()?.parse::<f64>().map_err(|_| USAGE)?,
                "--seed" => plan.seed = value()?.parse().map_err(bad)?,
                name => plan.targets.push(find(name)?),
            }
        }
        if plan.targets.is_empty() {
            plan.targets = TARGETS.iter().collect();
        }
        Ok(plan)
    }

    fn run(&self) -> Result<(), String> {
        std::thread::spawn(watch);
        let share = Duration::from_secs_f64(self.seconds / self.targets.len() as f64);
        let failed: Vec<String> = self
            .targets
            .iter()
            .filter_map(|target| fuzz(target, share, self.seed).err())
            .collect();
        match failed.len() {
            0 => Ok(()),
            _ => Err(failed.join("\n")),
        }
    }
}

fn find(name: &str) -> Result<&'static Target, String> {
    let found = TARGETS.iter().find(|target| target.name == name);
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    found.ok_or_else(|| format!("{name:?} is none of {}\n{USAGE}", names.join(", ")))
}

fn replay(name: &str, file: &str) -> Result<(), String> {
    let target = find(name)?;
    let data = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    (target.run)(&data);
    eprintln!("{name}: {file} passes");
    Ok(())
}

/// Tries the kept inputs, then mutations of them until the time is over.
fn fuzz(target: &'static Target, share: Duration, seed: u64) -> Result<(), String> {
    let corpus = corpus(target)?;
    let mut rng = Rng::new(seed);
    let started = Instant::now();
    for data in &corpus {
        attempt(target, data)?;
    }
    let mut tried = 0_u64;
    while started.elapsed() < share {
        attempt(target, &mutate(&mut rng, &corpus, target.words))?;
        tried += 1;
    }
    eprintln!(
        "{}: {} kept inputs and {tried} mutations of seed {seed} pass",
        target.name,
        corpus.len()
    );
    Ok(())
}

fn attempt(target: &'static Target, data: &[u8]) -> Result<(), String> {
    *TRYING.lock().expect("never held over a panic") =
        Some((Instant::now(), target.name, data.to_vec()));
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(data)));
    *TRYING.lock().expect("never held over a panic") = None;
    outcome.map_err(|_| kept(target.name, data))
}

/// Ends the process if an input takes too long.
fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let trying = TRYING.lock().expect("never held over a panic");
        if let Some((since, name, data)) = &*trying
            && since.elapsed() > TOO_LONG
        {
            eprintln!("took longer than {TOO_LONG:?}: {}", kept(name, data));
            std::process::exit(1);
        }
    }
}

/// Writes a failed input to a file. Returns a text with the command that repeats it.
fn kept(name: &str, data: &[u8]) -> String {
    // The name is a hash of the content, so that the same input is written only once.
    let hash = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &b| {
        (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    let directory = root().join("artifacts");
    let file = directory.join(format!("{name}-{hash:016x}"));
    let written = std::fs::create_dir_all(&directory).and_then(|()| std::fs::write(&file, data));
    match written {
        Ok(()) => format!(
            "{name} failed; try it again with\n    cargo xtask fuzz --replay {name} {}",
            file.display()
        ),
        Err(error) => format!(
            "{name} failed; {}: {error}; {}",
            file.display(),
            data.escape_ascii()
        ),
    }
}

fn corpus(target: &Target) -> Result<Vec<Vec<u8>>, String> {
    let directory = root().join("corpus").join(target.name);
    let read = || -> std::io::Result<Vec<Vec<u8>>> {
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(&directory)? {
            files.push(entry?.path());
        }
        files.sort();
        files.iter().map(std::fs::read).collect()
    };
    read().map_err(|error| format!("{}: {error}", directory.display()))
}

/// The directory of the corpus and of failed inputs.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
