//! `pair --transport xdp`: the same Crore over the kernel's TCP and over its own TCP, in turn. Both have the same pair of virtual interfaces and the
//! same clients, a swarm.
//!
//! On such a pair the sender also does what the receiver's kernel does, so a part of the server's kernel counts as processor time of the tool.
//! The clients do the same in both. So what the tool needs more beside the kernel's TCP is the server's kernel.

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::measure::stats::median;
use crate::report;
use crate::rig::{RunArgs, Sample, Transport, pause};
use crate::scenario::million::{sample, swarm_of};
use crate::swarm::{SwarmArgs, SwarmRun};
use crate::sys;

/// The measured transports: the kernel's TCP first.
const TRANSPORTS: [Transport; 2] = [Transport::Veth, Transport::Xdp];
const DEFAULT_CONNECTIONS: u32 = 10_000;
/// Messages a second.
const DEFAULT_RATE: f64 = 10_000.0;
const DEFAULT_WINDOW_S: f64 = 10.0;
const WARM_UP_S: f64 = 2.0;
/// Processor time in microseconds, of a message and of the set-up of a connection: by the server, and by the tool.
const DELIVERY: [&str; 2] = ["server_cpu_us_per_delivery", "tool_cpu_us_per_delivery"];
const OPENING: [&str; 2] = ["server_cpu_us_to_open", "tool_cpu_us_to_open"];

/// Runs all rounds.
pub fn run(args: &RunArgs) -> Result<Value> {
    let mut runs: [Vec<Value>; 2] = Default::default();
    for _ in 0..args.rounds {
        for (transport, runs) in TRANSPORTS.into_iter().zip(&mut runs) {
            runs.push(measure(args, transport)?);
        }
    }
    let clean = runs.iter().flatten().all(|run| run["clean"] == true);
    let rows: Map<String, Value> = [("unicast", DELIVERY), ("set-up", OPENING)]
        .into_iter()
        .map(|(row, values)| (row.into(), compare(row, values, &runs)))
        .collect();
    let [kernel, xdp] = runs;
    Ok(json!({
        "clean": clean,
        "rounds": args.rounds,
        "rows": rows,
        "runs": { "veth": kernel, "xdp": xdp },
    }))
}

/// The medians of a row, and the ratios of Crore's TCP to the kernel's.
fn compare(row: &str, [server, tool]: [&str; 2], runs: &[Vec<Value>; 2]) -> Value {
    let median_of = |runs: &Vec<Value>, name: &str| {
        let values: Vec<f64> = runs.iter().filter_map(|run| run[name].as_f64()).collect();
        median(&values)
    };
    let [kernel, xdp] = runs
        .each_ref()
        .map(|runs| [server, tool].map(|name| median_of(runs, name)));
    let ratios = ratios(kernel, xdp);
    report::say(&format!(
        "{row:<8} us of the server over the kernel's TCP {:.2}, over its own {:.2} ({:.2}, with its kernel {:.2}); of the tool {:.2} and {:.2}",
        kernel[0], xdp[0], ratios[0], ratios[1], kernel[1], xdp[1],
    ));
    json!({
        server: { "veth": kernel[0], "xdp": xdp[0] },
        tool: { "veth": kernel[1], "xdp": xdp[1] },
        "ratio_of_server": ratios[0],
        "ratio_of_server_with_kernel": ratios[1],
        "ratio_of_both": ratios[2],
    })
}

/// The ratios of the server alone, of the server with its kernel, and of server and tool together. Both arguments are the times of the server and the
/// tool.
fn ratios(kernel: [f64; 2], xdp: [f64; 2]) -> [f64; 3] {
    let own_kernel = (kernel[1] - xdp[1]).max(0.0);
    [
        xdp[0] / kernel[0],
        xdp[0] / (kernel[0] + own_kernel),
        (xdp[0] + xdp[1]) / (kernel[0] + kernel[1]),
    ]
}

/// Measures Crore over one transport: opens connections, then publishes to them.
fn measure(args: &RunArgs, transport: Transport) -> Result<Value> {
    let swarm = SwarmArgs {
        transport,
        threads: 1,
        shards: Some(args.shards.unwrap_or(1)),
        connections: args.connections.unwrap_or(DEFAULT_CONNECTIONS),
        quiet: true,
        ..swarm_of(args)?
    };
    let rate = args.rate.unwrap_or(DEFAULT_RATE);
    let mut run = SwarmRun::start(&swarm)?;
    let mut now = || -> Result<(Sample, u64)> { Ok((sample(&mut run)?, sys::process_cpu_ns())) };
    let empty = now()?;
    run.connect()?;
    pause(WARM_UP_S);
    let open = (sample(&mut run)?, sys::process_cpu_ns());
    run.set_publish_rate(rate)?;
    run.run_window(WARM_UP_S)?;
    let begin = (sample(&mut run)?, sys::process_cpu_ns());
    let counts = run.run_window(args.duration.unwrap_or(DEFAULT_WINDOW_S))?;
    let end = (sample(&mut run)?, sys::process_cpu_ns());
    let outcome = run.finish()?;
    let messages = counts.tally.messages as f64;
    let [opening, delivery] = [
        (&empty, &open, f64::from(swarm.connections)),
        (&begin, &end, messages),
    ]
    .map(|(before, after, count)| cpu_us(before, after, count));
    Ok(json!({
        "clean": outcome.faults.is_empty(),
        "faults": outcome.faults,
        "connections": swarm.connections,
        "rate_per_s": rate,
        "messages": counts.tally.messages,
        "latency_ms": counts.json()["latency_ms"],
        OPENING[0]: opening[0],
        OPENING[1]: opening[1],
        DELIVERY[0]: delivery[0],
        DELIVERY[1]: delivery[1],
    }))
}

/// Processor time of the server and of the tool between two samples, in microseconds for each of `count`.
fn cpu_us(before: &(Sample, u64), after: &(Sample, u64), count: f64) -> [f64; 2] {
    let server_s = after.0.process.cpu_s - before.0.process.cpu_s;
    [
        server_s * 1e6 / count,
        (after.1 - before.1) as f64 / 1e3 / count,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_the_tool_saves_over_xdp_counts_as_kernel_time_of_the_server() {
        assert_eq!(ratios([4.0, 3.0], [2.0, 2.0]), [0.5, 0.4, 4.0 / 7.0]);
        // Noise makes no kernel of less than nothing.
        assert_eq!(ratios([4.0, 2.0], [2.0, 3.0])[1], 0.5);
    }
}
