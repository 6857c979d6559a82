//! Tests a real server with small limits against attackers over every protocol, with honest clients beside them.
//!
//! A seed determines what each attacker does; the machine determines how the attackers' actions interleave. The judge checks that the
//! server lives, that honest clients get every message once, in order and soon, that no answer is malformed, that memory stays within its
//! bound, and that nothing is left when all clients have gone.
//!
//! `cargo test` plays the kept seeds (which once found a fault) and one new seed, for some seconds. `cargo xtask adversary` plays longer.
//! These variables set how: `CRORE_ADVERSARY_SECONDS`; `CRORE_ADVERSARY_SEED` (the first seed; the server has wide limits if it is odd);
//! `CRORE_ADVERSARY_ONLY` (some kinds of attackers); `CRORE_ADVERSARY_LATE_MS`; `CRORE_ADVERSARY_EACH` (each kind alone, in this many
//! rounds: `each.rs`). `CRORE_TEST_PROGRAM` names another build of the server.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the test harness shows it with a failure, and a long run must show that it lives"
)]

mod absent;
mod answers;
mod centrifugo;
mod cgroup;
mod connection;
mod crowds;
mod each;
mod honest;
mod hostile;
mod http;
mod http2;
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
mod server_under_attack;
#[path = "../support/mod.rs"]
mod support;
mod tally;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../tls/tool.rs"]
mod tool;
mod websocket;
mod work;

use round::Round;
use server_under_attack::LimitSize;
use std::time::{Duration, Instant, SystemTime};

/// Time for the attackers in each run of `cargo test`: first those of the kept seeds, then those of a new seed.
const SHORT_ROUND: Duration = Duration::from_secs(15);
/// Time of a round. A long run consists of rounds, each with its own seed and server, so that a failing seed is quick to repeat.
const LONG_ROUND: Duration = Duration::from_secs(60);
/// The maximum delay of a message or an answer by default. It is long, since debug builds are slow and machines that run tests are busy.
const LATE_MAX_MS: u64 = 10_000;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(format!("CRORE_ADVERSARY_{name}")).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("CRORE_ADVERSARY_{name}: {text:?} is no number")),
    )
}

/// The time in milliseconds, so that no run had this seed before.
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
        // The kept seeds found their faults with small limits.
        limits: match seed % 2 == 1 && kept.is_empty() {
            true => LimitSize::Wide,
            false => LimitSize::Small,
        },
        time,
        kept,
        only: only.as_deref(),
        without_attackers: false,
        on_second_core: false,
        late_max: Duration::from_millis(variable("LATE_MS").unwrap_or(LATE_MAX_MS)),
    };
    let play = |seed, time, kept| drop(round(seed, time, kept).play());
    let first = variable("SEED").unwrap_or_else(fresh_seed);
    if let Some(rounds) = variable("EACH") {
        let round_of_each = Round {
            on_second_core: true,
            ..round(first, SHORT_ROUND, &[])
        };
        let measurements = each::play(&round_of_each, rounds);
        return match std::env::var_os("CRORE_ADVERSARY_JSON") {
            Some(path) => {
                std::fs::write(path, format!("{measurements:#}\n")).expect("the file is written")
            }
            None => println!("{measurements:#}"),
        };
    }
    let Some(seconds) = variable("SECONDS") else {
        return play(first, SHORT_ROUND, seeds::KEPT);
    };
    let (began, total) = (Instant::now(), Duration::from_secs(seconds));
    for seed in first.. {
        let remaining = total.saturating_sub(began.elapsed());
        if remaining.is_zero() {
            break;
        }
        play(seed, LONG_ROUND.min(remaining), &[]);
    }
}
