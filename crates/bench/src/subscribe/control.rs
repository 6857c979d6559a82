//! How a scenario steers its subscriber: a word on standard input, a JSON line on standard output.
//!
//! | word | does | answers |
//! |---|---|---|
//! | `open` | begins to connect | the report |
//! | `settle` | waits until all connections are open (or given up) | the report |
//! | `restart` | begins a new window of measurement | the report |
//! | `report` | | the report |
//! | `drop` | resets all connections at once; they return at the connect rate | the report |
//! | `part` | ends all connections in good order; they stay away | the report |
//! | `churn N` | closes and opens N connections a second from now on | the report |
//! | `talk S` | with `--talk`: each client says something every S seconds from now on; 0 waits until what was said is answered | the report |
//!
//! The end of standard input ends the tool.

use std::io::BufRead;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::subscriber::Subscriber;
use crate::{report, sys};

/// How often the main thread looks around.
pub const LOOK: Duration = Duration::from_millis(20);

/// Obeys until standard input ends.
pub fn obey(subscriber: &Subscriber) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        match words.next().unwrap_or("") {
            "report" => {}
            "open" => subscriber.shared.go.store(true, Relaxed),
            "restart" => subscriber.restart(),
            "settle" => {
                while !subscriber.is_settled() && !subscriber.is_over() {
                    std::thread::sleep(LOOK);
                }
            }
            "drop" => order(subscriber, || {
                subscriber.shared.drops.fetch_add(1, Relaxed);
            }),
            "part" => order(subscriber, || subscriber.shared.part.store(true, Relaxed)),
            "churn" => {
                let rate = words.next().and_then(|word| word.parse().ok());
                let rate = rate.context("`churn` wants connections a second")?;
                subscriber
                    .shared
                    .churn_since_ns
                    .store(sys::now_ns(), Relaxed);
                subscriber.shared.churn_per_s.store(rate, Relaxed);
            }
            "talk" => {
                let every_s = words.next().and_then(|word| word.parse::<f64>().ok());
                ensure!(subscriber.talks, "only clients with `--talk` do");
                talk(subscriber, every_s.context("`talk` wants seconds")?);
            }
            other => bail!("`{other}` is no word of a scenario"),
        }
        if subscriber.is_over() {
            bail!("a subscriber thread ended");
        }
        report::say(&subscriber.json().to_string());
    }
    Ok(())
}

/// Has the clients of a grid speak so often; with 0 it returns when no request is under way any more. The workers bound
/// that time: they give up requests without an answer.
fn talk(subscriber: &Subscriber, every_s: f64) {
    let shared = &subscriber.shared;
    order(subscriber, || {
        shared.talk_every_us.store((every_s * 1e6) as u64, Relaxed);
        shared.talk_since_ns.store(sys::now_ns(), Release);
    });
    while every_s == 0.0 && shared.speaking.load(Relaxed) > 0 && !subscriber.is_over() {
        std::thread::sleep(LOOK);
    }
}

/// Gives an order and waits until every worker has obeyed.
fn order(subscriber: &Subscriber, give: impl FnOnce()) {
    let shared = &subscriber.shared;
    let wanted = shared.obeyed.load(Relaxed) + shared.tallies.len() as u32;
    give();
    while shared.obeyed.load(Relaxed) < wanted && !subscriber.is_over() {
        std::thread::sleep(LOOK);
    }
}
