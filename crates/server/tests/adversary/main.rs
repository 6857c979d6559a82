//! Attackers of every door beside honest clients, against a real server with small limits.
//!
//! A seed determines what each attacker does; the machine determines the order in which they do it. The judge checks that
//! the server lives, honest clients get every message once, in order and soon, no answer is malformed, memory keeps to its
//! bound, and nothing is left when all have gone.
//!
//! `cargo test` plays the kept seeds and one that nobody has seen, for some seconds; `cargo xtask adversary` as long as it
//! is told, by these variables: `CRORE_ADVERSARY_SECONDS`, `CRORE_ADVERSARY_SEED` (the first; the server has wide limits where it is odd), `CRORE_ADVERSARY_ONLY` (some
//! kinds), `CRORE_ADVERSARY_LATE_MS`, `CRORE_ADVERSARY_EACH` (each kind alone, in so many rounds: `each.rs`). `CRORE_TEST_PROGRAM` names another build of the server.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the test harness shows it with a failure, and a long run must show that it lives"
)]

mod absent;
mod answers;
mod cgroup;
mod connection;
mod crowds;
mod each;
mod honest;
mod hostile;
mod http;
mod judge;
mod kinds;
mod mqtt;
mod own;
mod ping;
mod places;
mod player;
mod random;
mod round;
mod script;
mod seeds;
#[path = "../support/mod.rs"]
mod support;
mod tally;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../tls/tool.rs"]
mod tool;
mod websocket;
mod work;
mod world;

use round::Round;
use std::time::{Duration, Instant, SystemTime};
use world::Room;

/// How long attackers come in every run of the tests: those of the kept seeds, then those of a fresh one.
const SHORT: Duration = Duration::from_secs(15);
/// A long run is one of rounds, each with a seed and a server of its own, so that a seed is soon played again.
const ROUND: Duration = Duration::from_secs(60);
/// How late something may be by default. Debug builds are slow, and machines of tests are busy.
const LATE_MS: u64 = 10_000;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(format!("CRORE_ADVERSARY_{name}")).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("CRORE_ADVERSARY_{name}: {text:?} is no number")),
    )
}

/// The time, in milliseconds: no run had it before.
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.expect("it is after 1970").as_millis())
        .expect("it is long before the end of time")
}

#[test]
fn honest_clients_are_served_beside_attackers() {
    let only = std::env::var("CRORE_ADVERSARY_ONLY").ok();
    let round = |seed, time, kept: &'static [seeds::Kept]| Round {
        seed,
        // The kept seeds were found with small ones.
        room: match seed % 2 == 1 && kept.is_empty() {
            true => Room::Wide,
            false => Room::Small,
        },
        time,
        kept,
        only: only.as_deref(),
        calm: false,
        apart: false,
        late: Duration::from_millis(variable("LATE_MS").unwrap_or(LATE_MS)),
    };
    let play = |seed, time, kept| drop(round(seed, time, kept).play());
    let first = variable("SEED").unwrap_or_else(fresh_seed);
    if let Some(rounds) = variable("EACH") {
        let one = Round {
            apart: true,
            ..round(first, SHORT, &[])
        };
        let seen = each::play(&one, rounds);
        return match std::env::var_os("CRORE_ADVERSARY_JSON") {
            Some(path) => std::fs::write(path, format!("{seen:#}\n")).expect("the file is written"),
            None => println!("{seen:#}"),
        };
    }
    let Some(seconds) = variable("SECONDS") else {
        return play(first, SHORT, seeds::KEPT);
    };
    let (began, all) = (Instant::now(), Duration::from_secs(seconds));
    for seed in first.. {
        let left = all.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        play(seed, ROUND.min(left), &[]);
    }
}
