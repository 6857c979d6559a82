//! `crore-sim`: runs many seeds on all cores, then prints the counts of events, or explains the first failure.
#![allow(clippy::print_stderr, clippy::print_stdout)] // a command-line tool reports there

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crore_sim::{Coverage, Plan, run, shrink};

/// Without `--trace`, only this many last lines of a failure's trace are printed.
const TRACE_LINES: usize = 60;
/// Default number of seeds. They take some minutes.
const SEEDS: u64 = 20_000;

#[derive(Clone)]
struct Args {
    first: u64,
    seeds: u64,
    steps: usize,
    /// The number of seconds after which no further seed starts.
    seconds: u64,
    planted: bool,
    /// The only fault to plant; all if it is empty.
    fault: String,
    whole_trace: bool,
}

fn args() -> Result<Args, String> {
    let mut seeds = None;
    let mut args = Args {
        first: 0,
        seeds: 0,
        steps: 1200,
        seconds: u64::MAX,
        planted: false,
        fault: String::new(),
        whole_trace: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        if name == "--fault" {
            (args.planted, args.fault) = (true, given.next().unwrap_or_default());
            continue;
        }
        let mut number = || {
            let value = given.next().unwrap_or_default();
            value
                .parse::<u64>()
                .map_err(|_| format!("{name} takes a number"))
        };
        match name.as_str() {
            "--seeds" => seeds = Some(number()?),
            "--steps" => args.steps = number()? as usize,
            "--seconds" => args.seconds = number()?,
            "--from" => args.first = number()?,
            "--planted" => args.planted = true,
            "--trace" => args.whole_trace = true,
            _ => return Err(format!("unknown argument {name}")),
        }
    }
    // If only a time limit is given, the number of seeds is unlimited.
    let timed = args.seconds != u64::MAX;
    args.seeds = seeds.unwrap_or(if timed { u64::MAX } else { SEEDS });
    Ok(args)
}

fn main() -> ExitCode {
    let args = match args() {
        Ok(args) => args,
        Err(error) => {
            eprintln!(
                "{error}\n--seeds N --steps M [--from SEED] [--seconds S] [--planted] [--fault NAME] [--trace]"
            );
            return ExitCode::from(2);
        }
    };
    run::catch_panics();
    let passed = if args.planted {
        check_planted_faults(&args)
    } else {
        search(&args)
    };
    ExitCode::from(u8::from(!passed))
}

/// The results of all threads.
#[derive(Default)]
struct Results {
    /// Number of seeds that passed.
    passed: u64,
    coverage: Coverage,
    /// The lowest seed that failed.
    failed: Option<u64>,
}

/// Runs seeds on all cores until one fails. Returns the number of passed seeds and the sum of their counts, or the lowest failed seed.
fn run_seeds(args: &Args) -> Result<(u64, Coverage), u64> {
    let started = Instant::now();
    let (next, stop) = (AtomicU64::new(args.first), AtomicBool::new(false));
    let end = args.first.saturating_add(args.seeds);
    let results = Mutex::new(Results::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let time_is_up = started.elapsed().as_secs() >= args.seconds;
                    if seed >= end || time_is_up || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let outcome = crore_sim::run_seed(seed, args.steps);
                    let mut results = results.lock().expect("no thread panics while it counts");
                    match outcome {
                        Ok(coverage) => {
                            results.passed += 1;
                            results.coverage += coverage;
                        }
                        Err(_) => {
                            stop.store(true, Ordering::Relaxed);
                            let lowest = results.failed.map_or(seed, |other| other.min(seed));
                            results.failed = Some(lowest);
                        }
                    }
                }
            });
        }
    });
    let results = results
        .into_inner()
        .expect("no thread panics while it counts");
    match results.failed {
        Some(seed) => Err(seed),
        None => Ok((results.passed, results.coverage)),
    }
}

fn search(args: &Args) -> bool {
    match run_seeds(args) {
        Ok((seeds, coverage)) => {
            let (first, steps) = (args.first, args.steps);
            println!("{seeds} seeds from {first} on, of {steps} steps each, passed");
            for (kind, count) in coverage.kinds() {
                println!("  {kind:<24} {count}");
            }
            let missing = match first {
                _ if crore_sim::plan::has_cluster_sessions(first) => {
                    coverage.missing_of_cluster_sessions()
                }
                _ if crore_sim::plan::has_centrifugo_clients(first) => {
                    coverage.missing_of_centrifugo()
                }
                _ if crore_sim::plan::is_over_tcp(first) => coverage.missing_of_tcp(),
                _ => coverage.missing(),
            };
            if !missing.is_empty() {
                println!("failed: these events never happened: {missing:?}");
            }
            missing.is_empty()
        }
        Err(seed) => {
            explain(seed, args);
            false
        }
    }
}

/// Runs a failed seed again, shortens its list of steps, and prints the events of the shorter run.
fn explain(seed: u64, args: &Args) {
    let plan = Plan::new(seed);
    let steps = plan.steps(seed, args.steps);
    let Err(failure) = run::run(&plan, seed, &steps, false) else {
        println!("seed {seed} failed once and passed then: the world is not deterministic");
        return;
    };
    println!("seed {seed}, {} steps: {}", args.steps, failure.what);
    let short = shrink::shrink(&plan, seed, &steps, failure.step);
    let Err(failure) = run::run(&plan, seed, &short, true) else {
        println!("the shrunk trace passes: the world is not deterministic");
        return;
    };
    println!("{plan:#?}");
    println!("{} steps are left:", short.len());
    for step in &short {
        println!("  {:?} dice {:#x}", step.op, step.dice);
    }
    let skip = if args.whole_trace {
        0
    } else {
        failure.trace.len().saturating_sub(TRACE_LINES)
    };
    for line in &failure.trace[skip..] {
        println!("  {line}");
    }
    println!("seed {seed}: {}", failure.what);
}

#[cfg(not(feature = "planted"))]
fn check_planted_faults(_: &Args) -> bool {
    eprintln!("built without the feature `planted`");
    false
}

/// Plants each fault in turn, and runs seeds. Returns whether a seed failed for every fault.
#[cfg(feature = "planted")]
fn check_planted_faults(args: &Args) -> bool {
    use crore_broker::planted::{Fault, plant};
    use crore_disk::planted::{self as disk, Fault as DiskFault};
    use crore_tcp::planted::{self as tcp, Fault as TcpFault};
    use strum::VariantArray as _;
    let mut passed = true;
    let chosen = |fault: &str| args.fault.is_empty() || args.fault == fault;
    for &fault in Fault::VARIANTS {
        if !chosen(&format!("{fault:?}")) {
            continue;
        }
        plant(Some(fault));
        // Only from these seeds on, plans have the feature that the fault breaks.
        let from = match fault {
            Fault::DeadAccepted
            | Fault::EarlyPurge
            | Fault::FoldedTwice
            | Fault::LateAccepted
            | Fault::OwnOffset
            | Fault::SilentDamage
            | Fault::ForgottenWriters => crore_sim::plan::CLUSTERS_FROM,
            Fault::EarlySuback | Fault::KeylessWill | Fault::UnrecordedPublish => {
                crore_sim::plan::DURABLE_SESSIONS_FROM
            }
            Fault::FencedAccepted => crore_sim::plan::CLUSTER_SESSIONS_FROM,
            Fault::HighPosition => crore_sim::plan::STEADY_SUBSCRIPTIONS_FROM,
            Fault::SkippedPublication | Fault::HighReplyOffset => crore_sim::plan::CENTRIFUGO_FROM,
            Fault::OneLife => crore_sim::plan::COPIES_FROM,
            _ => 0,
        };
        let args = Args {
            first: args.first + from,
            ..args.clone()
        };
        passed &= is_caught(&format!("{fault:?}"), &args);
    }
    plant(None);
    for &fault in DiskFault::VARIANTS {
        if !chosen(&format!("{fault:?}")) {
            continue;
        }
        disk::plant(Some(fault));
        let from = match fault {
            DiskFault::LostEnd => crore_sim::plan::CLUSTERS_FROM,
            _ => 0,
        };
        let args = Args {
            first: args.first + from,
            ..args.clone()
        };
        passed &= is_caught(&format!("{fault:?}"), &args);
    }
    disk::plant(None);
    for fault in TcpFault::OF_STREAMS {
        // The receiver drops bytes beyond its window, so only the tests of the endpoints see these.
        if fault == TcpFault::WindowTooWide || !chosen(&format!("{fault:?}")) {
            continue;
        }
        tcp::plant(Some(fault));
        let args = Args {
            first: args.first + crore_sim::plan::TCP_FROM,
            ..args.clone()
        };
        passed &= is_caught(&format!("{fault:?}"), &args);
    }
    tcp::plant(None);
    passed
}

/// Whether some seed fails with the planted fault.
#[cfg(feature = "planted")]
fn is_caught(fault: &str, args: &Args) -> bool {
    let Err(seed) = run_seeds(args) else {
        println!("{fault}: NOT caught by {} seeds", args.seeds);
        return false;
    };
    let failure = crore_sim::run_seed(seed, args.steps);
    let what = failure.err().map(|failure| failure.what);
    println!(
        "{fault}: caught after {} seeds: {}",
        seed - args.first + 1,
        what.unwrap_or_default()
    );
    true
}
