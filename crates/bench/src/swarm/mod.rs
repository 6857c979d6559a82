//! `crore-bench swarm`: clients without kernel sockets, so that the memory of a machine is the server's.
//!
//! The clients are rows of this process with a TCP of their own (`worker`): active opens, requests, data in order,
//! acknowledgements, retransmission, FIN and RST; no general stack. Their packets go through a TUN device in a network namespace of
//! the run (`ground`), in which the server runs, too: nothing gets out. The server's ends are the kernel's real connections.
//!
//! The kernel's work for a packet to the server is done while the tool writes it, and so counts as the tool's processor time.

mod alarms;
mod args;
mod counts;
mod crowd;
mod ground;
mod packet;
mod plan;
mod row;
mod session;
mod turnover;
mod wire;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::rig::{Moment, pause};
use crate::{report, sys};
pub use args::{Protocol, SwarmArgs};
pub use counts::Counts;
pub use ground::{Ground, SERVER};
pub use session::{Outcome, Session};

/// Seconds after the opening before memory is read, so that the last handshakes are over.
const REST_S: f64 = 2.0;

/// Runs the tool; fails when anything was lost, doubled or wrong, or when the tool could not do its work.
pub fn run(args: &SwarmArgs) -> Result<ExitCode> {
    sys::raise_descriptor_limit();
    sys::catch_interrupt();
    let mut session = Session::begin(args)?;
    let empty = session.moment()?;
    let opening_s = session.open()?;
    pause(REST_S);
    let open = session.moment()?;
    if args.rate() > 0.0 {
        session.publish(args.rate())?;
    }
    session.swarm.drop_per_s(args.drop_rate);
    session.window(args.duration / 2.0)?;
    if args.tsunami > 0 {
        session.swarm.reset(args.tsunami);
    }
    session.window(args.duration / 2.0)?;
    let after = session.moment()?;
    let connections = args.connections;
    let outcome = session.finish()?;
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
        "size_bytes": args.size,
        "rate_per_s": args.rate(),
        "opening_s": opening_s,
        "connects_per_s": f64::from(connections) / opening_s,
        "per_connection_open": cost,
        "after": after.as_ref().map(Moment::json),
    });
    if let Some(path) = &args.json {
        let result = json!({ "result": report::with(outcome.json.clone(), of_this_run) });
        report::keep(path, &report::record("Swarm", result))?;
    }
    Ok(ExitCode::from(u8::from(!outcome.faults.is_empty())))
}

/// The memory and the processor time of each connection between two moments: the server's end alone, since the client's is a row here.
pub fn cost(connections: u32, before: &Moment, after: &Moment) -> Value {
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
        counts.setup.summary().p99_ms,
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
