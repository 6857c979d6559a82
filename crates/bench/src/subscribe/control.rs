//! Executes the commands that a scenario sends to its subscriber. Each command is a line on standard input. The answer is a JSON line on
//! standard output.
//!
//! | command | effect | answer |
//! |---|---|---|
//! | `open` | begins to connect | the report |
//! | `settle` | waits until every connection is open or given up | the report |
//! | `restart` | begins a new window of measurement | the report |
//! | `report` | | the report |
//! | `drop` | resets all connections at once; they reconnect at the connect rate | the report |
//! | `close` | ends all connections properly, without reconnects | the report |
//! | `churn N` | from now on closes and reopens N connections a second | the report |
//! | `talk S` | with `--talk`: from now on each client publishes every S seconds; 0 stops that and waits for the answers | the report |
//!
//! The end of standard input ends the tool.

use std::io::BufRead;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::subscriber::Subscriber;
use crate::{report, sys};

/// Polling interval of the main thread.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Executes commands until standard input ends.
pub fn run(subscriber: &Subscriber) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        match words.next().unwrap_or("") {
            "report" => {}
            "open" => subscriber.shared.may_connect.store(true, Relaxed),
            "restart" => subscriber.start_window(),
            "settle" => {
                while !subscriber.is_settled() && !subscriber.has_ended() {
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
            "drop" => send_command(subscriber, || {
                subscriber.shared.drop_commands.fetch_add(1, Relaxed);
            }),
            "close" => send_command(subscriber, || {
                subscriber.shared.close_all.store(true, Relaxed)
            }),
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
                let interval_s = words.next().and_then(|word| word.parse::<f64>().ok());
                ensure!(
                    subscriber.can_publish,
                    "the command `talk` needs the option `--talk`"
                );
                set_publish_interval(subscriber, interval_s.context("`talk` wants seconds")?);
            }
            other => bail!("`{other}` is no command"),
        }
        if subscriber.has_ended() {
            bail!("a subscriber thread ended");
        }
        report::say(&subscriber.json().to_string());
    }
    Ok(())
}

/// Sets the interval at which each client publishes. With 0 the clients stop, and this function waits until no request is in
/// flight. The wait ends, because the workers give up requests without an answer.
fn set_publish_interval(subscriber: &Subscriber, interval_s: f64) {
    let shared = &subscriber.shared;
    send_command(subscriber, || {
        shared
            .publish_interval_us
            .store((interval_s * 1e6) as u64, Relaxed);
        shared.publish_start_ns.store(sys::now_ns(), Release);
    });
    while interval_s == 0.0
        && shared.publishes_in_flight.load(Relaxed) > 0
        && !subscriber.has_ended()
    {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Issues a command, and waits until every worker has executed it or a worker has ended.
fn send_command(subscriber: &Subscriber, issue: impl FnOnce()) {
    let shared = &subscriber.shared;
    let executed_target = shared.executed_commands.load(Relaxed) + shared.worker_count();
    issue();
    while shared.executed_commands.load(Relaxed) < executed_target && !subscriber.has_ended() {
        std::thread::sleep(POLL_INTERVAL);
    }
}
