//! One kind of attacker after the other, each against a server of its own, after a round without any: how long honest clients wait
//! beside it, and how far what the server says that it holds is from what the kernel says.
//!
//! Server and honest clients share the first core; the attackers have the second to themselves.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::kinds::Kinds;
use crate::round::{Round, Seen, percentile};

/// Honest clients may wait so many times as long as without attackers at the 99th percentile, or so long.
const TIMES: u32 = 3;
const WAIT: Duration = Duration::from_millis(20);

/// Plays `round` for each kind, `rounds` times each, and says what was seen.
///
/// # Panics
/// When honest clients waited too long, or memory was not explained, with what was seen of all kinds.
pub fn play(round: &Round<'_>, rounds: u64) -> Value {
    bind(0, "-ap", std::process::id());
    let calm = repeat(
        &Round {
            calm: true,
            ..*round
        },
        rounds,
    );
    tell("nobody", &calm);
    let bound = WAIT.max(calm.percentile(99) * TIMES);
    let mut faults = Vec::new();
    let mut kinds = vec![row("nobody", &calm)];
    for name in Kinds::new(round.only).names() {
        let seen = repeat(
            &Round {
                only: Some(name),
                ..*round
            },
            rounds,
        );
        tell(name, &seen);
        if seen.percentile(99) > bound {
            faults.push(format!(
                "{name}: honest clients wait {:?}",
                seen.percentile(99)
            ));
        }
        if !seen.memory.is_explained() {
            faults.push(format!("{name}: memory is not explained"));
        }
        kinds.push(row(name, &seen));
    }
    let seen = json!({
        "cpu": cpu(),
        "seconds_each": round.time.as_secs(),
        "rounds_each": rounds,
        "bound_ms": ms(bound),
        "kinds": kinds,
    });
    assert!(faults.is_empty(), "{}\n{seen:#}", faults.join("\n"));
    seen
}

fn repeat(round: &Round<'_>, rounds: u64) -> Seen {
    let mut all = Seen::default();
    for number in 0..rounds {
        let seed = round.seed + number;
        all.add(Round { seed, ..*round }.play());
    }
    all
}

/// Has the attackers' thread to itself.
pub fn bind_attackers() {
    let task = std::fs::read_link("/proc/thread-self").expect("a thread has its directory");
    let id = task
        .file_name()
        .and_then(|name| name.to_str()?.parse().ok());
    bind(1, "-p", id.expect("it is named by its number"));
}

/// From now on a process with all its threads (`-ap`), or a thread (`-p`), runs on this core; what it starts, too.
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
