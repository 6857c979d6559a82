//! `million`, `one-host` and `comet-million`: hold many connections and serve them for minutes.
//!
//! The three differ in how connections get their tuples (many local addresses, or many server
//! ports), in the protocol and in who publishes to whom. What is accepted for publication must
//! arrive, exactly once, at its own client: the last messages are checked by the totals, which no
//! gap in a sequence would show.
//!
//! The clients of `comet-million` publish nothing themselves: one publisher on one connection does it for them, in
//! batches, so that a client's own request, its head and its answer are not in the measured cost.

use anyhow::Result;
use serde_json::{Value, json};

use super::rig::{Kind, Publisher, Server, Setting, Subscriber, bottleneck, shards_for};
use super::{
    Moment, RunArgs, Scenario, is_clean, locals, pause, per_connection, protocol_name, topics,
    watch,
};
use crate::report;
use crate::subscribe::Protocol;

/// Seconds after the opening before memory is read, so that the last handshakes are over.
const REST_S: f64 = 5.0;
/// Connections for each port of `one-host`. The kernel offers only every second port of its range
/// until those are used up, and then searches all of them each time: stay below 14,000.
const PER_PORT: u32 = 10_000;
/// Seconds between two messages to one client.
const EVERY_S: f64 = 60.0;

struct Shape {
    connections: u32,
    ports: u16,
    protocol: Protocol,
    size: usize,
    rate: f64,
    grid: Option<u32>,
}

fn shape(args: &RunArgs) -> Shape {
    let connections = args.connections.unwrap_or(1_000_000);
    let comet = args.scenario == Scenario::CometMillion;
    let ports = match args.scenario {
        Scenario::OneHost => connections.div_ceil(PER_PORT).clamp(2, 200) as u16,
        _ => 1,
    };
    // In the grid each client acts once a minute, and four neighbours hear of it.
    let per_action = if comet { 4.0 } else { 1.0 };
    Shape {
        connections,
        ports,
        protocol: args
            .protocol
            .unwrap_or(if comet { Protocol::Poll } else { Protocol::Ws }),
        size: args.size.unwrap_or(if comet { 64 } else { 512 }),
        rate: args
            .rate
            .unwrap_or(f64::from(connections) * per_action / EVERY_S),
        grid: comet.then(|| f64::from(connections).sqrt().ceil() as u32),
    }
}

/// Runs one of the three.
pub fn run(args: &RunArgs) -> Result<Value> {
    let shape = shape(args);
    let setting = Setting {
        kind: Kind::Crore,
        shards: args
            .shards
            .unwrap_or(shards_for(shape.connections, shape.ports, 2)),
        ports: shape.ports,
        keep: args.keep(shape.protocol),
    };
    let duration_s = args.duration.unwrap_or(600.0);
    let topics = topics(shape.connections);
    let mut server = Server::start(args, setting)?;
    let addresses = locals(shape.connections);
    let mut rest = vec!["--protocol", protocol_name(shape.protocol)];
    if args.scenario != Scenario::OneHost {
        rest.extend(["--local", &addresses]);
    }
    let mut subscriber = Subscriber::start(
        args,
        &server,
        setting.kind,
        shape.connections,
        &topics,
        &rest,
    )?;
    let empty = Moment::of(&mut server)?;
    let opening_s = subscriber.open()?;
    report::note(&format!(
        "{} connections open after {opening_s:.1} s, {:.0} a second",
        shape.connections,
        f64::from(shape.connections) / opening_s
    ));
    pause(REST_S);
    let idle = Moment::of(&mut server)?;

    let (rate, seconds) = (shape.rate.to_string(), duration_s.to_string());
    let mut how = vec!["--rate", &rate, "--duration", &seconds];
    let width = shape.grid.map(|width| width.to_string());
    if let Some(width) = &width {
        how.extend(["--grid", width]);
    }
    let tool_before_s = subscriber.sample()?.cpu_s();
    let publisher = Publisher::start(args, &server, setting.kind, &topics, shape.size, &how)?;
    let samples = watch(&mut server, duration_s)?;
    let published = publisher.result()?;
    pause(REST_S);
    let received = subscriber.ask("report")?;
    let tool = subscriber.sample()?;
    let after = Moment::of(&mut server)?;

    let (accepted, arrived) = (count(&published, "accepted"), count(&received, "messages"));
    let missing = accepted as i64 - arrived as i64;
    let clean = is_clean(&received) && missing == 0 && received["connections"]["closed"] == 0;
    let served_s = (after.at_ns - idle.at_ns) as f64 / 1e9;
    let busy = (after.process.cpu_s() - idle.process.cpu_s()) / served_s;
    let server_cpu_s = after.process.cpu_s() - idle.process.cpu_s();
    let tools_busy = (tool.cpu_s() - tool_before_s + number(&published, "tool_cpu_s")) / served_s;
    let cores = std::thread::available_parallelism()?.get() as f64;
    let idle_cost = per_connection(shape.connections, &empty, &idle);
    let after_cost = per_connection(shape.connections, &empty, &after);
    report::say(&format!(
        "{} {} connections, {} shards, log of {}: PSS {:.1} B a connection when open, {:.1} B after {duration_s:.0} s; \
         kernel {:.0} B (both ends)\n\
         published {accepted}, arrived {arrived}, missing {missing}, lost {}, doubled {}, misdelivered {}\n\
         latency ms: mean {:.3}, deviation {:.3}, p99 {:.3}, p99.9 {:.3}, max {:.3}; server {busy:.2} cores",
        shape.connections,
        protocol_name(shape.protocol),
        setting.shards,
        setting.keep,
        number(&idle_cost, "server_pss_bytes"),
        number(&after_cost, "server_pss_bytes"),
        number(&after_cost, "kernel_both_ends_slab_bytes")
            + number(&after_cost, "kernel_both_ends_buffer_bytes"),
        received["lost"],
        received["doubled"],
        received["misdelivered"],
        number(&received["latency_ms"], "mean"),
        number(&received["latency_ms"], "standard_deviation"),
        number(&received["latency_ms"], "p99"),
        number(&received["latency_ms"], "p99_9"),
        number(&received["latency_ms"], "max"),
    ));
    Ok(json!({
        "clean": clean,
        "connections": shape.connections,
        "protocol": protocol_name(shape.protocol),
        "shards": setting.shards,
        "ports": shape.ports,
        "log_messages": setting.keep,
        "size_bytes": shape.size,
        "rate_per_s": shape.rate,
        "duration_s": duration_s,
        "opening_s": opening_s,
        "connects_per_s": f64::from(shape.connections) / opening_s,
        "missing": missing,
        "per_connection_open": idle_cost,
        "per_connection_after": after_cost,
        "server_cores_busy": busy,
        "server_cpu_us_per_delivery": server_cpu_s * 1e6 / arrived as f64,
        "tools_cores_busy": tools_busy,
        // Tools that have to share the machine are full when they have what the server leaves.
        "bottleneck": bottleneck(busy, cores.min(setting.shards.into()), tools_busy, cores - busy),
        "subscriber_rss_bytes_per_connection": tool.rss_bytes as f64 / f64::from(shape.connections),
        "empty": empty.json(),
        "open": idle.json(),
        "after": after.json(),
        "samples": samples,
        "published": published,
        "received": received,
    }))
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(f64::NAN)
}
