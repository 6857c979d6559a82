//! `soak`: runs a swarm for hours. Its clients receive messages and heartbeats, close and reconnect, while the server reloads its settings.
//! Each minute a sample is written to disk. The memory of the server must not grow, and no message may be lost.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::million::{churn_of, sample, swarm_of};
use crate::measure::stats::line;
use crate::rig::{RunArgs, number_at, pause};
use crate::swarm::{Counts, SwarmArgs, SwarmRun};
use crate::{report, sys};

/// Default duration, in seconds.
const SECONDS: f64 = 6.0 * 3600.0;
/// Seconds between two samples.
const SAMPLE_S: f64 = 60.0;
/// Samples between two reloads.
const RELOAD_SAMPLES: usize = 5;
/// Default heartbeat interval in seconds. Each client gets about one message a minute, so about half of the clients need heartbeats.
const HEARTBEAT_S: u32 = 60;
/// Seconds between two messages to one client at the default rate.
const EVERY_S: f64 = 60.0;
/// Seconds after the opening before memory is read.
const REST_S: f64 = 5.0;
/// The maximum relative growth of memory during the run. The next constant allows some bytes more, because the allocator's reserves vary.
const GROWTH: f64 = 0.02;
const GROWTH_BYTES: f64 = (16 << 20) as f64;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let mut swarm = swarm_of(args)?;
    if swarm.heartbeat_s == 0 {
        swarm.heartbeat_s = HEARTBEAT_S;
    }
    let connections = swarm.connections;
    let path = samples_path(args.json.as_deref());
    let mut file = File::create(&path).with_context(|| format!("{}", path.display()))?;
    let mut run = SwarmRun::start(&swarm)?;
    let opening_s = run.connect()?;
    pause(REST_S);
    let rate = args.rate.unwrap_or(f64::from(connections) / EVERY_S);
    run.set_publish_rate(rate)?;
    run.swarm.set_drop_rate(churn_of(connections).into());
    let seconds = args.duration.or(args.hours.map(|hours| hours * 3600.0));
    let seconds = seconds.unwrap_or(SECONDS);
    let wanted = ((seconds / SAMPLE_S).ceil() as usize).max(1);
    let mut samples = Vec::new();
    while samples.len() < wanted && !sys::interrupted() {
        let sample = minute(&mut run, &swarm, samples.len())?;
        writeln!(file, "{sample}")?;
        file.sync_data()?;
        samples.push(sample);
    }
    let outcome = run.finish()?;
    let mut result = outcome.json.clone();
    let grows = report_growth(&samples);
    report::say(&outcome.verdict());
    // The samples contain the same data in less detail.
    result.as_object_mut().map(|all| all.remove("seconds"));
    let of_this_run = json!({
        "clean": outcome.faults.is_empty() && !grows,
        "clients": "swarm",
        "shards": swarm.shards(),
        "connections": connections,
        "protocol": swarm.protocol.name(),
        "size_bytes": swarm.message_bytes,
        "heartbeat_s": swarm.heartbeat_s,
        "hours": samples.len() as f64 * SAMPLE_S / 3600.0,
        "opening_s": opening_s,
        "rate_per_s": rate,
        "churn_per_s": churn_of(connections),
        "reloads": samples.len() / RELOAD_SAMPLES,
        "memory_grows": grows,
        "samples": samples,
    });
    Ok(report::merge(result, of_this_run))
}

/// The path of the samples' file: the path of the result, with another extension.
fn samples_path(json: Option<&Path>) -> PathBuf {
    let beside = json.filter(|path| *path != Path::new("-"));
    beside
        .unwrap_or(Path::new("soak"))
        .with_extension("samples.ndjson")
}

/// Runs for a minute and returns sample `n`.
fn minute(run: &mut SwarmRun, swarm: &SwarmArgs, n: usize) -> Result<Value> {
    if (n + 1).is_multiple_of(RELOAD_SAMPLES) {
        run.reload(swarm, (n + 1) / RELOAD_SAMPLES)?;
    }
    let before = sample(run)?;
    let counts: Counts = run.run_window(SAMPLE_S)?;
    let after = sample(run)?;
    let latency = counts.tally.latency.summary();
    let of_minute = json!({
        "live": run.swarm.open_count(),
        "messages": counts.tally.messages,
        "lost": counts.tally.lost,
        "doubled": counts.tally.doubled,
        "opened": counts.tally.connections.opened,
        "p50_ms": latency.p50_ms,
        "p99_ms": latency.p99_ms,
        "max_ms": latency.max_ms,
        "server_cores": after.cores_since(&before),
    });
    Ok(report::merge(after.json(), of_minute))
}

/// Prints how the memory of the server and of the kernel changes. Returns whether either grows.
fn report_growth(samples: &[Value]) -> bool {
    // The first third is left out, because tables and the allocator's reserves still grow then.
    let samples = &samples[samples.len() / 3..];
    let grows = ["/server/pss_bytes", "/kernel/slabs/TCP"].map(|name| {
        let points: Vec<(f64, f64)> = samples
            .iter()
            .map(|sample| (number_at(sample, "/at_s") / 3600.0, number_at(sample, name)))
            .collect();
        let slope = line(&points).0;
        let slope = if slope.is_finite() { slope } else { 0.0 };
        let hours = points.len() as f64 * SAMPLE_S / 3600.0;
        let last = points.last().map_or(0.0, |(_, bytes)| *bytes);
        report::say(&format!(
            "{name}: {:.1} MB, {:+.2} MB an hour",
            last / 1e6,
            slope / 1e6
        ));
        slope * hours > last * GROWTH + GROWTH_BYTES
    });
    grows.contains(&true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(grown_mb_an_hour: f64) -> Vec<Value> {
        let sample = |n: u32| {
            let hours = f64::from(n) / 60.0;
            // The allocator's reserves grow and shrink.
            let wave = f64::from(n % 3) * 2e6;
            json!({
                "at_s": hours * 3600.0,
                "server": { "pss_bytes": 200e6 + wave + hours * grown_mb_an_hour * 1e6 },
                "kernel": { "slabs": { "TCP": 2.5e9 } },
            })
        };
        (0..360).map(sample).collect()
    }

    #[test]
    fn memory_that_grows_is_told_from_memory_that_goes_up_and_down() {
        assert!(!report_growth(&samples(0.0)));
        assert!(!report_growth(&samples(-10.0)));
        assert!(report_growth(&samples(10.0)));
        assert!(!report_growth(&[]));
    }
}
