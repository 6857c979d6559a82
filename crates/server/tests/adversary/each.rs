//! Plays each kind of attacker alone against a new server. Reports how long honest clients waited, and how much the memory that the server
//! reports differs from the kernel's figure. The first round has no attackers, for comparison.
//!
//! The server and the honest clients share the first core. The attackers have the second core to themselves.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::kinds::Kinds;
use crate::round::{Round, Seen, percentile};
use crate::server_under_attack::LimitSize;

/// At the 99th percentile, honest clients may wait `TIMES` times as long as without attackers, or `WAIT` if that is longer.
const TIMES: u32 = 3;
const WAIT: Duration = Duration::from_millis(20);
/// The longest wait may be `TIMES` times the longest one without attackers, or `STALL` if that is longer.
const STALL: Duration = Duration::from_millis(100);

/// Plays `round` for each kind of attacker, `rounds` times with small limits and `rounds` times with wide ones. Returns the report.
///
/// # Panics
/// If honest clients waited too long, or if the difference of the memory figures was too large. The message has the report of all kinds.
pub fn play(round: &Round<'_>, rounds: u64) -> Value {
    bind(0, "-ap", std::process::id());
    let mut faults = Vec::new();
    let seen = json!({
        "cpu": cpu(),
        "seconds_each": round.time.as_secs(),
        "rounds_each": rounds,
        "small": all(&Round { room: LimitSize::Small, ..*round }, rounds, &mut faults),
        "wide": all(&Round { room: LimitSize::Wide, ..*round }, rounds, &mut faults),
    });
    assert!(faults.is_empty(), "{}\n{seen:#}", faults.join("\n"));
    seen
}

/// Plays all kinds of attackers with the same limits.
fn all(round: &Round<'_>, rounds: u64, faults: &mut Vec<String>) -> Value {
    let nobody = Round {
        calm: true,
        ..*round
    };
    let calm = repeat(&nobody, rounds);
    tell("nobody", &calm);
    let bound = WAIT.max(calm.percentile(99) * TIMES);
    let longest = STALL.max(calm.percentile(100) * TIMES);
    let mut kinds = vec![row("nobody", &calm)];
    for name in Kinds::new(round.only).names() {
        let only = Some(name);
        let seen = repeat(&Round { only, ..*round }, rounds);
        tell(name, &seen);
        for (percent, bound) in [(99, bound), (100, longest)] {
            let wait = seen.percentile(percent);
            if wait > bound {
                let room = round.room;
                faults.push(format!(
                    "{name}, {room:?} limits: {percent} % of the waits of honest clients take up to {wait:?}, not {bound:?}"
                ));
            }
        }
        if !seen.memory.is_explained() {
            faults.push(format!("{name}: memory is not explained"));
        }
        kinds.push(row(name, &seen));
    }
    json!({ "bound_ms": ms(bound), "longest_ms": ms(longest), "kinds": kinds })
}

fn repeat(round: &Round<'_>, rounds: u64) -> Seen {
    let mut all = Seen::default();
    for number in 0..rounds {
        let seed = round.seed + number;
        all.add(Round { seed, ..*round }.play());
    }
    all
}

/// Binds the calling thread (the attackers) to the second core.
pub fn bind_attackers() {
    let task = std::fs::read_link("/proc/thread-self").expect("a thread has its directory");
    let id = task
        .file_name()
        .and_then(|name| name.to_str()?.parse().ok());
    bind(1, "-p", id.expect("it is named by its number"));
}

/// Binds a process with all its threads (`-ap`) or a thread (`-p`) to this core, with everything that it starts later.
fn bind(core: usize, whom: &str, id: u32) {
    let bound = Command::new("taskset")
        .args([whom, "-c", &core.to_string(), &id.to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(bound.expect("taskset").success(), "two cores are needed");
}

fn tell(name: &str, seen: &Seen) {
    eprintln!("adversary: {name}: {}", row(name, seen));
}

fn row(name: &str, seen: &Seen) -> Value {
    json!({
        "kind": name,
        "connections": seen.connections,
        "waits": seen.waits.len(),
        "p50_ms": ms(seen.percentile(50)),
        "p99_ms": ms(seen.percentile(99)),
        "most_ms": ms(seen.percentile(100)),
        "longest": seen.longest.iter().map(|(wait, what)| (ms(*wait), what)).collect::<Vec<_>>(),
        "p99_ms_in_all": ms(percentile(&seen.waits_in_all, 99)),
        "grown_mib_most": seen.memory.grown_bytes >> 20,
        "named_mib_then": seen.memory.named_bytes >> 20,
        "unnamed_mib_most": seen.memory.unnamed_bytes >> 20,
        "named_beyond_mib_most": seen.memory.beyond_bytes >> 20,
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
