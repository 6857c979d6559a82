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
    let mut last = subscriber.json();
    last["opening_s"] = json!(opening_s);
    last["reports"] = json!(reports);
    let tally = subscriber.tally();
    let live_max = subscriber.shared.live_max.load(Relaxed);
    subscriber.stop();
    if !args.quiet {
        report::say(&report::comet(&tally.life, live_max));
        if let Some(why) = &tally.life.first_failure {
            report::note(&format!("the first failure: {why}"));
        }
    }
    if let Some(path) = &args.json {
        report::keep(path, &last)?;
    }
    let clean = tally.lost + tally.doubled + tally.misdelivered + tally.life.given_up == 0;
    Ok(ExitCode::from(u8::from(!clean)))
}

/// Waits until all connections are open, and returns how long that took, in seconds.
fn open(subscriber: &Subscriber, quiet: bool) -> f64 {
    let mut progress = Progress::new(quiet);
    while !subscriber.is_over() {
        let elapsed_s = subscriber.started.elapsed().as_secs_f64();
        let live = subscriber.shared.live.load(Relaxed);
        let settled = subscriber.is_settled();
        let failed = subscriber.tally().life.failed;
        progress.show(live, subscriber.connections, failed, elapsed_s);
        if settled {
            break;
        }
        // The pause is long enough that the terminal and the workers' locks do not slow the opening.
        std::thread::sleep(control::POLL_INTERVAL * 10);
    }
    subscriber.started.elapsed().as_secs_f64()
}

/// Reports every five seconds until the time is over. Returns the reports.
fn hold(subscriber: &Subscriber, args: &SubscribeArgs) -> Vec<Value> {
    let begin = Instant::now();
    let mut reports = Vec::new();
    let (mut messages, mut opened) = (0, subscriber.tally().life.opened);
    let mut last_report = begin;
    loop {
        std::thread::sleep(control::POLL_INTERVAL);
        let over = subscriber.is_over()
            || args
                .duration
                .is_some_and(|s| begin.elapsed() >= Duration::from_secs(s));
        if over || last_report.elapsed() >= Duration::from_secs(REPORT_S) {
            let last_s = last_report.elapsed().as_secs_f64();
            last_report = Instant::now();
            let tally = subscriber.tally();
            let opened_per_s = (tally.life.opened - opened) as f64 / last_s;
            let last_messages = tally.messages - messages;
            if !args.quiet {
                let uptime_s = subscriber.started.elapsed().as_secs_f64();
                let summary = tally.latency.summary();
                let text = report::interval(
                    uptime_s,
                    &summary,
                    &tally,
                    last_s,
                    last_messages,
                    opened_per_s,
                );
                report::say(&text);
            }
            let mut value = subscriber.json();
            value["messages_per_s"] = json!(last_messages as f64 / last_s);
            value["connects_per_s"] = json!(opened_per_s);
            reports.push(value);
            (messages, opened) = (tally.messages, tally.life.opened);
        }
        if over {
            return reports;
        }
    }
}
