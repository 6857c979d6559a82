//! `reload`: compares windows in which the server reloads changed settings every second with windows without reloads, by their latencies.
//! No client may be disconnected and no message lost. Choose long windows, so that each p99.9 is based on many messages.

use anyhow::Result;
use serde_json::{Value, json};

use super::storm::Storm;
use crate::report;
use crate::rig::{RunArgs, number_at, pause};

/// The settings of a reload. From one reload to the next, every kind of setting changes that a running server can change.
fn settings(args: &RunArgs, turn: usize) -> String {
    let odd = turn % 2;
    let mut text = format!(
        "[limits]\naccepts_per_s = {}\nconnections_max = {}\n\n[heartbeat]\ninterval_s = {}\n\n",
        args.accepts(),
        1_000_000 + odd,
        args.heartbeat
    );
    if odd == 1 {
        // These rules come before the rule for `#` and so change the number of that rule. Each shard must then update all topics that it
        // keeps.
        text += "[[rule]]\nmatch = \"p/#\"\nlog_messages = 3\n\n[[rule]]\nmatch = \"x/#\"\nkeep = \"latest\"\n\n";
    }
    text + "[[rule]]\nmatch = \"#\"\nlog_messages = 2\npoll_timeout_s = 0\n"
}

/// Runs pairs of windows, without and with reloads.
pub fn run(args: &RunArgs) -> Result<Value> {
    let mut storm = Storm::start(args, Some(&settings(args, 0)))?;
    let mut windows = serde_json::Map::new();
    let mut ratios = Vec::new();
    for round in 1..=args.rounds {
        let calm = storm.measure_window(&format!("calm {round}"))?;
        let opened = calm["connections"]["opened"].clone();
        let reload = storm.measure_reloads(args, round, settings)?;
        let p99_9 = |report: &Value| number_at(report, "/latency_ms/p99_9");
        let ratio = p99_9(&reload) / p99_9(&calm);
        let have_all_stayed = reload["connections"]["opened"] == opened;
        report::say(&format!(
            "round {round}: p99.9 {:.3} ms with readings, {:.3} ms without: {ratio:.2}; all stayed: {have_all_stayed}",
            p99_9(&reload),
            p99_9(&calm)
        ));
        ratios.push(ratio);
        windows.insert(format!("calm_{round}"), calm);
        windows.insert(format!("reload_{round}"), reload);
        pause(0.5);
    }
    ratios.sort_by(f64::total_cmp);
    let figures = json!({ "p99_9_ratios": ratios, "median": ratios[ratios.len() / 2] });
    report::say(&format!("median ratio {:.2}", ratios[ratios.len() / 2]));
    storm.finish(Value::Object(windows), figures)
}
