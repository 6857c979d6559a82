//! Plays each kind of attacker alone against a new server. Reports how long honest clients waited, and how much the memory that the server
//! reports differs from the kernel's figure. The first round has no attackers, for comparison.
//!
//! The server and the honest clients share the first core. The attackers have the second core to themselves.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::kinds::Kinds;
use crate::round::{Measurements, Round, percentile};
use crate::server_under_attack::LimitSize;

/// At the 99th percentile, honest clients may wait `WAIT_FACTOR` times as long as without attackers, or `WAIT_MIN` if that is longer.
const WAIT_FACTOR: u32 = 3;
const WAIT_MIN: Duration = Duration::from_millis(20);
/// The longest wait may be `WAIT_FACTOR` times the longest one without attackers, or `LONGEST_WAIT_MIN` if that is longer.
const LONGEST_WAIT_MIN: Duration = Duration::from_millis(100);

/// Plays `round` for each kind of attacker, `rounds` times with small limits and `rounds` times with wide ones. Returns the report.
///
/// # Panics
/// If honest clients waited too long, or if the difference of the memory figures was too large. The message has the report of all kinds.
pub fn play(round: &Round<'_>, rounds: u64) -> Value {
    bind_to_core(0, "-ap", std::process::id());
    let mut faults = Vec::new();
    let measurements = json!({
        "cpu": cpu(),
        "seconds_each": round.time.as_secs(),
        "rounds_each": rounds,
        "small": play_kinds(&Round { limits: LimitSize::Small, ..*round }, rounds, &mut faults),
        "wide": play_kinds(&Round { limits: LimitSize::Wide, ..*round }, rounds, &mut faults),
    });
    assert!(faults.is_empty(), "{}\n{measurements:#}", faults.join("\n"));
    measurements
}

/// Plays all kinds of attackers with the same limits.
fn play_kinds(round: &Round<'_>, rounds: u64, faults: &mut Vec<String>) -> Value {
    let without_attackers = Round {
        without_attackers: true,
        ..*round
    };
    let baseline = repeat(&without_attackers, rounds);
    print_row("nobody", &baseline);
    let bound = WAIT_MIN.max(baseline.percentile(99) * WAIT_FACTOR);
    let longest = LONGEST_WAIT_MIN.max(baseline.percentile(100) * WAIT_FACTOR);
    let mut kinds = vec![row("nobody", &baseline)];
    for name in Kinds::new(round.only).names() {
        let only = Some(name);
        let measurements = repeat(&Round { only, ..*round }, rounds);
        print_row(name, &measurements);
        for (percent, bound) in [(99, bound), (100, longest)] {
            let wait = measurements.percentile(percent);
            if wait > bound {
                let limits = round.limits;
                faults.push(format!(
                    "{name}, {limits:?} limits: {percent} % of the waits of honest clients take up to {wait:?}, not {bound:?}"
                ));
            }
        }
        if !measurements.memory.is_explained() {
            faults.push(format!("{name}: memory is not explained"));
        }
        kinds.push(row(name, &measurements));
    }
    json!({ "bound_ms": ms(bound), "longest_ms": ms(longest), "kinds": kinds })
}

fn repeat(round: &Round<'_>, rounds: u64) -> Measurements {
    let mut total = Measurements::default();
    for number in 0..rounds {
        let seed = round.seed + number;
        total.add(Round { seed, ..*round }.play());
    }
    total
}

/// Binds the calling thread (the attackers) to the second core.
pub fn bind_attackers() {
    let task = std::fs::read_link("/proc/thread-self").expect("a thread has its directory");
    let id = task
        .file_name()
        .and_then(|name| name.to_str()?.parse().ok());
    bind_to_core(1, "-p", id.expect("it is named by its number"));
}

/// Binds a process with all its threads (`-ap`) or a thread (`-p`) to this core, with everything that it starts later.
fn bind_to_core(core: usize, taskset_option: &str, id: u32) {
    let bound = Command::new("taskset")
        .args([taskset_option, "-c", &core.to_string(), &id.to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(bound.expect("taskset").success(), "two cores are needed");
}

fn print_row(name: &str, measurements: &Measurements) {
    eprintln!("adversary: {name}: {}", row(name, measurements));
}

fn row(name: &str, measurements: &Measurements) -> Value {
    json!({
        "kind": name,
        "connections": measurements.connections,
        "waits": measurements.waits.len(),
        "p50_ms": ms(measurements.percentile(50)),
        "p99_ms": ms(measurements.percentile(99)),
        "most_ms": ms(measurements.percentile(100)),
        "longest": measurements.longest.iter().map(|(wait, what)| (ms(*wait), what)).collect::<Vec<_>>(),
        "p99_ms_in_all": ms(percentile(&measurements.waits_with_delays, 99)),
        "grown_mib_most": measurements.memory.grown_bytes >> 20,
        "named_mib_then": measurements.memory.reported_bytes >> 20,
        "unnamed_mib_most": measurements.memory.unreported_bytes >> 20,
        "named_beyond_mib_most": measurements.memory.overreported_bytes >> 20,
    })
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}

fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(": "));
    name.map_or("unknown", |(_, name)| name).to_string()
}
