//! `crore-bench subscribe`: holds connections and checks every message.
//!
//! The connections are divided among threads, because one descriptor table is limited to `RLIMIT_NOFILE`. Each thread runs a
//! `worker::Worker`. The main thread opens no socket. It prints, and executes the commands of the scenario that started the tool
//! (`--control`).

mod args;
mod connection;
mod connections;
mod control;
pub(crate) mod grid;
mod plan;
mod shared;
mod subscriber;
mod worker;

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use crate::report::{self, Progress};
use crate::sys;
pub use args::{Protocol, SubscribeArgs};
pub use subscriber::Subscriber;

/// Seconds between two reports, as in 2013.
const REPORT_S: u64 = 5;

/// Runs the tool.
pub fn run(args: &SubscribeArgs) -> Result<ExitCode> {
    let subscriber = Subscriber::start(args)?;
    if args.control {
        control::run(&subscriber)?;
        subscriber.stop();
        return Ok(ExitCode::SUCCESS);
    }
    sys::catch_interrupt();
    let opening_s = open(&subscriber, args.quiet);
    let reports = hold(&subscriber, args);
    let mut result = subscriber.json();
    result["opening_s"] = json!(opening_s);
    result["reports"] = json!(reports);
    let tally = subscriber.tally();
    let live_max = subscriber.shared.live_max.load(Relaxed);
    subscriber.stop();
    if !args.quiet {
        report::say(&report::comet(&tally.connections, live_max));
        if let Some(why) = &tally.connections.first_failure {
            report::note(&format!("the first failure: {why}"));
        }
    }
    if let Some(path) = &args.json {
        report::write_result(path, &result)?;
    }
    let is_clean =
        tally.lost + tally.doubled + tally.misdelivered + tally.connections.given_up == 0;
    Ok(ExitCode::from(u8::from(!is_clean)))
}

/// Waits until all connections are open, and returns how long that took, in seconds.
fn open(subscriber: &Subscriber, quiet: bool) -> f64 {
    let mut progress = Progress::new(quiet);
    while !subscriber.has_ended() {
        let elapsed_s = subscriber.started_at.elapsed().as_secs_f64();
        let live = subscriber.shared.live.load(Relaxed);
        let is_settled = subscriber.is_settled();
        let failed = subscriber.tally().connections.failed;
        progress.show(live, subscriber.connections, failed, elapsed_s);
        if is_settled {
            break;
        }
        // The pause is long enough that the terminal and the workers' locks do not slow the opening.
        std::thread::sleep(control::POLL_INTERVAL * 10);
    }
    subscriber.started_at.elapsed().as_secs_f64()
}

/// Reports every five seconds until the time is over. Returns the reports.
fn hold(subscriber: &Subscriber, args: &SubscribeArgs) -> Vec<Value> {
    let start = Instant::now();
    let mut reports = Vec::new();
    let (mut messages_before, mut opened_before) = (0, subscriber.tally().connections.opened);
    let mut report_start = start;
    loop {
        std::thread::sleep(control::POLL_INTERVAL);
        let is_over = subscriber.has_ended()
            || args
                .duration
                .is_some_and(|s| start.elapsed() >= Duration::from_secs(s));
        if is_over || report_start.elapsed() >= Duration::from_secs(REPORT_S) {
            let interval_s = report_start.elapsed().as_secs_f64();
            report_start = Instant::now();
            let tally = subscriber.tally();
            let opened_per_s = (tally.connections.opened - opened_before) as f64 / interval_s;
            let interval_messages = tally.messages - messages_before;
            if !args.quiet {
                let uptime_s = subscriber.started_at.elapsed().as_secs_f64();
                let summary = tally.latency.summary();
                let text = report::interval(
                    uptime_s,
                    &summary,
                    &tally,
                    interval_s,
                    interval_messages,
                    opened_per_s,
                );
                report::say(&text);
            }
            let mut report = subscriber.json();
            report["messages_per_s"] = json!(interval_messages as f64 / interval_s);
            report["connects_per_s"] = json!(opened_per_s);
            reports.push(report);
            (messages_before, opened_before) = (tally.messages, tally.connections.opened);
        }
        if is_over {
            return reports;
        }
    }
}
