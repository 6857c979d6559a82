//! `pair --transport xdp`: compares Crore over the kernel's TCP, Crore over its own TCP, and the peers over the kernel's TCP. They take turns on the same
//! pair of virtual interfaces, with the same clients (a swarm).
//!
//! On such a pair the sender also runs the receiver's part of the kernel. So a part of the server's kernel work counts as the tool's processor time. The
//! clients do the same for all servers. So the additional time of the tool beside the kernel's TCP is the server's kernel work. This holds only between the
//! two sides of Crore: each peer gets its messages in another way, which changes the tool's own time.

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use crate::measure::stats::median;
use crate::report;
use crate::rig::{RunArgs, Sample, ServerKind, Transport, pause};
use crate::scenario::million::{sample, swarm_of};
use crate::swarm::{SwarmArgs, SwarmRun};
use crate::sys;

/// Crore over the kernel's TCP. The next side is Crore over its own TCP.
const KERNEL: Side = Side::new("veth", ServerKind::Crore, Transport::Veth);
const OWN: Side = Side::new("xdp", ServerKind::Crore, Transport::Xdp);
const DEFAULT_CONNECTIONS: u32 = 10_000;
/// Messages a second.
const DEFAULT_RATE: f64 = 10_000.0;
const DEFAULT_WINDOW_S: f64 = 10.0;
const WARM_UP_S: f64 = 2.0;
/// The fields of processor time, in microseconds for each message or each new connection: the server's and the tool's.
const DELIVERY: [&str; 2] = ["server_cpu_us_per_delivery", "tool_cpu_us_per_delivery"];
const OPENING: [&str; 2] = ["server_cpu_us_to_open", "tool_cpu_us_to_open"];

/// A measured server.
#[derive(Clone, Copy)]
struct Side {
    /// The name in the result.
    name: &'static str,
    kind: ServerKind,
    transport: Transport,
}

impl Side {
    const fn new(name: &'static str, kind: ServerKind, transport: Transport) -> Side {
        Side {
            name,
            kind,
            transport,
        }
    }
}

/// Runs all rounds.
pub fn run(args: &RunArgs) -> Result<Value> {
    let is_measured = |kind: &ServerKind| matches!(kind, ServerKind::Floor | ServerKind::Nchan);
    ensure!(
        args.peer.iter().all(is_measured),
        "the peers of pair --transport xdp are floor and nchan"
    );
    let peer = |kind: &ServerKind| Side::new(kind.name(), *kind, Transport::Veth);
    let sides = [KERNEL, OWN].into_iter().chain(args.peer.iter().map(peer));
    let mut measured: Vec<(Side, Vec<Value>)> = sides.map(|side| (side, Vec::new())).collect();
    for _ in 0..args.rounds {
        for (side, runs) in &mut measured {
            runs.push(measure(args, *side)?);
        }
    }
    let is_clean =
        |side: &Side, run: &Value| side.kind != ServerKind::Crore || run["clean"] == true;
    let clean = measured
        .iter()
        .all(|(side, runs)| runs.iter().all(|run| is_clean(side, run)));
    let rows: Map<String, Value> = [("unicast", DELIVERY), ("set-up", OPENING)]
        .into_iter()
        .map(|(row, values)| (row.into(), compare(row, values, &measured)))
        .collect();
    let runs: Map<String, Value> = measured
        .into_iter()
        .map(|(side, runs)| (side.name.into(), json!(runs)))
        .collect();
    Ok(json!({
        "clean": clean,
        "rounds": args.rounds,
        "rows": rows,
        "runs": runs,
    }))
}

/// The medians of a row, and the ratios of Crore over its own TCP to Crore over the kernel's TCP.
fn compare(row: &str, names: [&'static str; 2], measured: &[(Side, Vec<Value>)]) -> Value {
    let median_of = |runs: &[Value], name: &str| {
        let values: Vec<f64> = runs.iter().filter_map(|run| run[name].as_f64()).collect();
        median(&values)
    };
    let medians: Vec<[f64; 2]> = measured
        .iter()
        .map(|(_, runs)| names.map(|name| median_of(runs, name)))
        .collect();
    let ratios = ratios(medians[0], medians[1]);
    for ((side, _), [server, tool]) in measured.iter().zip(&medians) {
        report::say(&format!(
            "{row:<8} {:<5} us of the server {server:.2}, of the tool {tool:.2}",
            side.name
        ));
    }
    report::say(&format!(
        "{row:<8} Crore's own TCP over the kernel's: server {:.2}, with its kernel {:.2}, with the tool {:.2}",
        ratios[0], ratios[1], ratios[2],
    ));
    let by_side = |value: usize| -> Map<String, Value> {
        let values = measured.iter().zip(&medians);
        let pair = |((side, _), medians): (&(Side, _), &[f64; 2])| {
            (side.name.to_string(), json!(medians[value]))
        };
        values.map(pair).collect()
    };
    json!({
        names[0]: by_side(0),
        names[1]: by_side(1),
        "ratio_of_server": ratios[0],
        "ratio_of_server_with_kernel": ratios[1],
        "ratio_of_both": ratios[2],
    })
}

/// Three ratios: of the server alone, of the server with its kernel work, and of server and tool together. Each argument has the time of the server and the
/// time of the tool.
fn ratios(kernel: [f64; 2], xdp: [f64; 2]) -> [f64; 3] {
    let own_kernel = (kernel[1] - xdp[1]).max(0.0);
    [
        xdp[0] / kernel[0],
        xdp[0] / (kernel[0] + own_kernel),
        (xdp[0] + xdp[1]) / (kernel[0] + kernel[1]),
    ]
}

/// Measures a server: opens connections, then publishes.
fn measure(args: &RunArgs, side: Side) -> Result<Value> {
    let swarm = SwarmArgs {
        kind: side.kind,
        transport: side.transport,
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

/// Processor time of the server and of the tool between two samples, in microseconds, divided by `count`.
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
        // Noise must not make the kernel's share negative.
        assert_eq!(ratios([4.0, 2.0], [2.0, 3.0])[1], 0.5);
    }
}
