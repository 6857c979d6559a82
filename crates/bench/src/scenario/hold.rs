//! `million`, `one-host` and `comet-million`: hold many connections and serve them for minutes.
//!
//! The three differ in how connections get their tuples (many local addresses, or many server
//! ports), in the protocol and in who publishes to whom. What is accepted for publication must
//! arrive, exactly once, at its own client: the last messages are checked by the totals, which no
//! gap in a sequence would show.
//!
//! The clients of `comet-million` stand in a grid, and each sends what it has to say to its neighbours itself, over a
//! connection of its own (`subscribe/worker/talk.rs`); the others are published to by one tool.

use anyhow::Result;
use serde_json::{Value, json};

use super::rig::{Kind, Publisher, Server, Setting, Subscriber, bottleneck, shards_for};
use super::{
    Moment, RunArgs, Scenario, is_clean, locals, pause, per_connection, protocol_name, topics,
    watch,
};
use crate::report;
use crate::subscribe::Protocol;
use crate::subscribe::grid::Grid;

/// Seconds after the opening before memory is read, so that the last handshakes are over.
const REST_S: f64 = 5.0;
/// Connections for each port of `one-host`. The kernel offers only every second port of its range
/// until those are used up, and then searches all of them each time: stay below 14,000.
const PER_PORT: u32 = 10_000;
/// Seconds between two messages to one client, and from one request of a client in the grid to its next.
const EVERY_S: f64 = 60.0;

struct Shape {
    connections: u32,
    ports: u16,
    protocol: Protocol,
    size: usize,
    /// Messages a second.
    rate: f64,
    /// How often each client talks to its neighbours, in seconds, if they publish themselves.
    talk_every_s: Option<f64>,
}

fn shape(args: &RunArgs) -> Shape {
    let connections = args.connections.unwrap_or(1_000_000);
    let comet = args.scenario == Scenario::CometMillion;
    let ports = match args.scenario {
        Scenario::OneHost => connections.div_ceil(PER_PORT).clamp(2, 200) as u16,
        _ => 1,
    };
    let size = args.size.unwrap_or(if comet { 64 } else { 512 });
    // Messages when each client gets one, or when each talks to its neighbours once.
    let round = if comet {
        Grid::of(connections).messages() as f64
    } else {
        f64::from(connections)
    };
    let rate = args.rate.unwrap_or(round / EVERY_S);
    Shape {
        connections,
        ports,
        protocol: args
            .protocol
            .unwrap_or(if comet { Protocol::Poll } else { Protocol::Ws }),
        size,
        rate,
        talk_every_s: comet.then(|| round / rate),
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
    let size = shape.size.to_string();
    if shape.talk_every_s.is_some() {
        rest.extend(["--talk", &size]);
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

    let tool_before_s = subscriber.sample()?.cpu_s;
    let (samples, published) = match shape.talk_every_s {
        Some(every_s) => {
            subscriber.ask(&format!("talk {every_s}"))?;
            let samples = watch(&mut server, duration_s)?;
            (samples, subscriber.ask("talk 0")?["said"].take())
        }
        None => {
            let (rate, seconds) = (shape.rate.to_string(), duration_s.to_string());
            let how = ["--rate", &rate, "--duration", &seconds];
            let publisher =
                Publisher::start(args, &server, setting.kind, &topics, shape.size, &how)?;
            (watch(&mut server, duration_s)?, publisher.result()?)
        }
    };
    pause(REST_S);
    let received = subscriber.ask("report")?;
    let tool = subscriber.sample()?;
    let after = Moment::of(&mut server)?;

    let (accepted, arrived) = (count(&published, "accepted"), count(&received, "messages"));
    let missing = accepted as i64 - arrived as i64;
    let clean = is_clean(&received)
        && missing == 0
        && count(&published, "refused") + count(&published, "unanswered") == 0
        && received["connections"]["closed"] == 0;
    let served_s = (after.at_ns - idle.at_ns) as f64 / 1e9;
    let busy = (after.process.cpu_s - idle.process.cpu_s) / served_s;
    let server_cpu_s = after.process.cpu_s - idle.process.cpu_s;
    let publisher_s = published["tool_cpu_s"].as_f64().unwrap_or(0.0);
    let tools_busy = (tool.cpu_s - tool_before_s + publisher_s) / served_s;
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
    if shape.talk_every_s.is_some() {
        report::say(&format!(
            "the clients made {} requests, answered after {:.3} ms in the mean, p99 {:.3} ms; refused {}, unanswered {}; \
             turned away and made again {}, at most {:.1} ms late",
            published["requests"],
            number(&published["answered_ms"], "mean"),
            number(&published["answered_ms"], "p99"),
            published["refused"],
            published["unanswered"],
            published["turned_away"],
            number(&published, "late_ms_max"),
        ));
    }
    Ok(json!({
        "clean": clean,
        "connections": shape.connections,
        "protocol": protocol_name(shape.protocol),
        "shards": setting.shards,
        "ports": shape.ports,
        "log_messages": setting.keep,
        "size_bytes": shape.size,
        "rate_per_s": shape.rate,
        "talk_every_s": shape.talk_every_s,
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
