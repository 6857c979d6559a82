//! `crore-bench swarm`: clients without kernel sockets, so that nearly all memory of the machine is left for the server.
//!
//! A client is a small row in this process (`client_row`). Its TCP is that of `crore-tcp`, in whose table a client has a connection while it
//! is not idle (`worker`). Packets pass through TUN devices, or a pair of virtual interfaces (`veth`), in a network namespace of the run
//! (`namespace`). The server runs in the same namespace, and no packet leaves it. On the server's side each connection is a real socket of the
//! kernel, unless Crore serves it over `AF_XDP`.
//!
//! The kernel processes a packet to the server while the tool writes it. That work counts as the tool's processor time.

mod args;
mod churn;
mod client_row;
mod counts;
mod flood;
mod namespace;
mod plan;
mod run;
mod timers;
mod veth;
mod wire;
mod worker;
mod workers;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

pub use crate::rig::Transport;
use crate::rig::{Sample, pause};
use crate::{report, sys};
pub use args::{Protocol, SwarmArgs};
pub use counts::Counts;
pub use namespace::{Namespace, SERVER};
pub use run::{Outcome, SwarmRun};

/// Seconds after the opening before memory is read, so that the last handshakes are over.
const SETTLE_S: f64 = 2.0;

/// Runs the tool. The exit code is a failure if a message was lost, duplicated or wrong, or if the tool could not keep up.
pub fn run(args: &SwarmArgs) -> Result<ExitCode> {
    sys::raise_descriptor_limit();
    sys::catch_interrupt();
    let mut run = SwarmRun::start(args)?;
    let empty = run.sample()?;
    let opening_s = run.connect()?;
    pause(SETTLE_S);
    let open = run.sample()?;
    if args.publish_rate() > 0.0 {
        run.set_publish_rate(args.publish_rate())?;
    }
    run.swarm.set_drop_rate(args.reconnect_rate);
    let first_half = run.run_window(args.duration_s / 2.0)?;
    if args.reset_clients > 0 {
        run.swarm.reset_clients(args.reset_clients);
    }
    run.swarm.set_flood_rate(args.syn_flood);
    let second_half = run.run_window(args.duration_s / 2.0)?;
    run.swarm.set_flood_rate(0.0);
    let after = run.sample()?;
    let connections = args.connections;
    let outcome = run.finish()?;
    let cost = empty
        .zip(open)
        .map(|(empty, open)| cost(connections, &empty, &open));
    if !args.quiet {
        report::say(&summary(&outcome, connections, opening_s, cost.as_ref()));
    }
    let of_this_run = json!({
        "clean": outcome.faults.is_empty(),
        "connections": connections,
        "protocol": args.protocol.name(),
        "transport": args.transport.name(),
        "size_bytes": args.message_bytes,
        "rate_per_s": args.publish_rate(),
        "opening_s": opening_s,
        "connects_per_s": f64::from(connections) / opening_s,
        "per_connection_open": cost,
        "after": after.as_ref().map(Sample::json),
        "first_half": first_half.json(),
        "second_half": second_half.json(),
    });
    if let Some(path) = &args.json {
        let result = json!({ "result": report::merge(outcome.json.clone(), of_this_run) });
        report::write_result(path, &report::record("Swarm", result))?;
    }
    Ok(ExitCode::from(u8::from(!outcome.faults.is_empty())))
}

/// Memory and processor time per connection between two samples. Only the server's end of a connection has a socket, so the kernel's
/// figures are for that end alone.
pub fn cost(connections: u32, before: &Sample, after: &Sample) -> Value {
    let n = f64::from(connections);
    let grown = |after: u64, before: u64| (after as f64 - before as f64) / n;
    let slabs = after.kernel.slabs.iter().map(|(name, bytes)| {
        let before = before.kernel.slabs.get(name).copied().unwrap_or(0);
        (name.clone(), json!(grown(*bytes, before)))
    });
    json!({
        "server_pss_bytes": grown(after.process.pss_bytes, before.process.pss_bytes),
        "server_cpu_us": (after.process.cpu_s - before.process.cpu_s) * 1e6 / n,
        "kernel_slab_bytes": grown(after.kernel.slab_bytes, before.kernel.slab_bytes),
        "kernel_buffer_bytes": grown(after.kernel.buffer_bytes, before.kernel.buffer_bytes),
        "kernel_slabs": slabs.collect::<serde_json::Map<_, _>>(),
        "machine_bytes": grown(before.kernel.available_bytes, after.kernel.available_bytes),
    })
}

fn summary(outcome: &Outcome, connections: u32, opening_s: f64, cost: Option<&Value>) -> String {
    let (counts, latency) = (&outcome.counts, outcome.counts.tally.latency.summary());
    let mut text = format!(
        "{connections} connections opened in {opening_s:.1} s, {:.0} a second, p99 of the set-up {:.1} ms\n",
        f64::from(connections) / opening_s,
        counts.setup_times.summary().p99_ms,
    );
    if let Some(cost) = cost {
        let bytes = |name: &str| cost[name].as_f64().unwrap_or(f64::NAN);
        text += &format!(
            "each: server {:.0} B, kernel {:.0} B; the machine's memory fell by {:.0} B\n",
            bytes("server_pss_bytes"),
            bytes("kernel_slab_bytes") + bytes("kernel_buffer_bytes"),
            bytes("machine_bytes"),
        );
    }
    text += &format!(
        "{} messages arrived; ms: mean {:.3}, p50 {:.3}, p99 {:.3}, p99.9 {:.3}, max {:.3}; {} more while away\n",
        counts.tally.messages,
        latency.mean_ms,
        latency.p50_ms,
        latency.p99_ms,
        latency.p999_ms,
        latency.max_ms,
        counts.tally.missed_away,
    );
    text + &outcome.verdict()
}
