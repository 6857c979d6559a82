//! Writes the output of the tools. No other module of the crate writes to the terminal.
//!
//! Results are written to standard output, progress to standard error. The subscriber's report begins with the
//! lines of the 2013 tool in the same order.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the tools' one way to the terminal"
)]

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::measure::sample;
use crate::measure::stats::Summary;
use crate::measure::tally::{ConnectionCounts, Tally};

/// Width of the progress bar.
const BAR_WIDTH: usize = 40;

/// Writes a line, or several, to standard output and flushes it.
pub fn say(text: &str) {
    println!("{text}");
    let _ = std::io::stdout().flush();
}

/// Writes one line to standard error.
pub fn note(text: &str) {
    eprintln!("{text}");
}

/// Writes a line to standard error. On a terminal the line replaces the last one.
pub fn live(text: &str) {
    if std::io::stderr().is_terminal() {
        // Erases the end of a longer old line.
        eprint!("\r{text}\x1b[K");
    } else {
        eprintln!("{text}");
    }
}

/// Ends a line written by [`live`].
pub fn end_live() {
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
}

/// Adds the fields of `additional` to `base`. If both have a field, the value of `additional` is used.
pub fn merge(mut base: Value, additional: Value) -> Value {
    if let (Value::Object(base), Value::Object(additional)) = (&mut base, additional) {
        base.extend(additional);
    }
    base
}

/// The result of a command, with the machine and the date.
pub fn record(scenario: &str, additional: Value) -> Value {
    let args = std::env::args_os();
    let command: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let base_fields = json!({
        "scenario": scenario,
        "command": command.join(" "),
        "date": sample::date(),
        "machine": sample::machine(),
    });
    merge(base_fields, additional)
}

/// Writes a result to a file. With `-` writes it to standard output, in one line.
pub fn write_result(path: &Path, value: &Value) -> Result<()> {
    if path == Path::new("-") {
        say(&value.to_string());
        return Ok(());
    }
    let text = serde_json::to_string_pretty(value)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Shows the progress of opening connections: a bar on a terminal, otherwise a line every few calls.
pub struct Progress {
    is_terminal: bool,
    is_quiet: bool,
    shown_tenths: u64,
}

impl Progress {
    /// A progress display. It shows nothing if `is_quiet`.
    pub fn new(is_quiet: bool) -> Progress {
        Progress {
            is_terminal: std::io::stderr().is_terminal(),
            is_quiet,
            shown_tenths: 0,
        }
    }

    /// Shows that `open_count` of `wanted_count` connections are open after `elapsed_s`, and that `failed` attempts failed.
    pub fn show(&mut self, open_count: u64, wanted_count: u64, failed: u64, elapsed_s: f64) {
        if self.is_quiet {
            return;
        }
        let rate = open_count as f64 / elapsed_s.max(0.001);
        let share = open_count as f64 / wanted_count.max(1) as f64;
        if self.is_terminal {
            let full = (share * BAR_WIDTH as f64) as usize;
            let bar = "#".repeat(full) + &".".repeat(BAR_WIDTH - full.min(BAR_WIDTH));
            eprint!("\r[{bar}] {open_count}/{wanted_count} open, {failed} failed, {rate:.0}/s ");
            if open_count == wanted_count {
                eprintln!();
            }
        } else if open_count == wanted_count || share * 10.0 >= self.shown_tenths as f64 + 1.0 {
            self.shown_tenths = (share * 10.0) as u64;
            eprintln!("{open_count} of {wanted_count} open, {failed} failed, {rate:.0} a second");
        }
    }
}

/// The report of the 2013 tool, line by line, then further figures.
pub fn interval(
    uptime_s: f64,
    summary: &Summary,
    tally: &Tally,
    interval_s: f64,
    interval_messages: u64,
    opened_per_s: f64,
) -> String {
    let (low_90, high_90) = interval_bounds(summary.mean_ms, summary.interval_90_ms);
    let (low_95, high_95) = interval_bounds(summary.mean_ms, summary.interval_95_ms);
    format!(
        "Uptime: {uptime_s:.0} s\n\
         Latency min: {:.3} ms, max: {:.3} ms\n\
         Latency mean: {:.3} ms, standard deviation: {:.3} ms\n\
         90 % confidence interval of the mean: [{low_90:.3}, {high_90:.3}] ms\n\
         95 % confidence interval of the mean: [{low_95:.3}, {high_95:.3}] ms\n\
         Total messages: {}\n\
         Messages/s in the last {interval_s:.0} s: {:.0}\n\
         Latency p50: {:.3} ms, p99: {:.3} ms, p99.9: {:.3} ms\n\
         Lost: {}, doubled: {}, misdelivered: {}, missed while away: {}, unmeasured: {}\n\
         Connects/s in the last {interval_s:.0} s: {opened_per_s:.0}\n",
        summary.min_ms,
        summary.max_ms,
        summary.mean_ms,
        summary.deviation_ms,
        tally.messages,
        interval_messages as f64 / interval_s.max(0.001),
        summary.p50_ms,
        summary.p99_ms,
        summary.p999_ms,
        tally.lost,
        tally.doubled,
        tally.misdelivered,
        tally.missed_away,
        tally.unmeasured,
    )
}

fn interval_bounds(mean: f64, half_width: f64) -> (f64, f64) {
    (mean - half_width, mean + half_width)
}

/// The last line of the output, in the format of the comet client of 2009.
pub fn comet(connections: &ConnectionCounts, live_max: u64) -> String {
    format!(
        "connections: {}, bytes: {}, chunks: {}, closed: {}, completed: {}, failed: {}, max concurrency: {live_max}",
        connections.opened,
        connections.bytes,
        connections.chunks,
        connections.closed,
        connections.completed,
        connections.failed
    )
}
