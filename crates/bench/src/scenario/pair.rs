//! `pair`: the floor and the server in turn, the same work, one core each; what counts is the ratio
//! of the medians.
//!
//! One on the same machine under the same load is the only fair measure of a server on a shared
//! machine: whatever slows one of them slows the other as well. Each measurement starts its
//! processes anew. Give `--pin` for one core each.

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use super::comet::broadcast;
use super::rig::{Kind, Publisher, Server, Setting, Subscriber, bottleneck};
use super::{Moment, RunArgs, is_clean, locals, pause, per_connection, protocol_name, topics};
use crate::report;
use crate::stats::median;
use crate::subscribe::Protocol;

/// Connections of the unicast and broadcast rows.
const CONNECTIONS: u32 = 10_000;
/// Subscribers of the fan-out row.
const FAN: u32 = 1_000;
/// Connections of the idle row.
const IDLE: u32 = 15_000;
/// Messages a second of the row at a rate.
const RATE: f64 = 10_000.0;
/// Seconds before a window: buffers fill, tables grow.
const WARM_S: f64 = 2.0;
/// Seconds of a window, unless told otherwise.
const WINDOW_S: f64 = 5.0;
/// Broadcasts of which one measurement takes the median.
const BROADCASTS: usize = 7;

type Measure = fn(&RunArgs, Kind) -> Result<Value>;

/// A row: its name, how it is measured, and the values whose ratios are told, with their bars.
struct Row {
    name: &'static str,
    measure: Measure,
    values: &'static [(&'static str, &'static str)],
}

const ROWS: [Row; 5] = [
    Row {
        name: "unicast",
        measure: |args, kind| saturated(args, kind, args.connections.unwrap_or(CONNECTIONS), false),
        values: &[("deliveries_per_s", ">= 0.90")],
    },
    Row {
        name: "fan-out",
        measure: |args, kind| saturated(args, kind, FAN, true),
        values: &[("deliveries_per_s", ">= 9")],
    },
    Row {
        name: "broadcast",
        measure: once,
        values: &[("last_has_it_ms", "<= 1.1")],
    },
    Row {
        name: "rate",
        measure: at_rate,
        values: &[
            ("p99_ms", "no bar"),
            ("server_cpu_us_per_delivery", "<= 1.15"),
        ],
    },
    Row {
        name: "idle",
        measure: idle,
        values: &[
            ("handshake_cpu_us", "<= 1.3"),
            ("pss_bytes", "server <= 300 B"),
        ],
    },
];

/// Runs the rows, each `--rounds` times.
pub fn run(args: &RunArgs) -> Result<Value> {
    let known = |name: &String| ROWS.iter().any(|row| row.name == *name);
    ensure!(
        args.rows.iter().all(known),
        "rows are unicast, fan-out, broadcast, rate and idle"
    );
    ensure!(args.rounds > 0, "at least one round");
    let mut rows = Map::new();
    for row in &ROWS {
        if args.rows.is_empty() || args.rows.iter().any(|name| name == row.name) {
            rows.insert(row.name.into(), pair(args, row)?);
        }
    }
    let clean = rows.values().all(|row| row["clean"] == true);
    Ok(json!({ "clean": clean, "rounds": args.rounds, "rows": rows }))
}

fn pair(args: &RunArgs, row: &Row) -> Result<Value> {
    let (mut floor, mut crore) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        floor.push((row.measure)(args, Kind::Floor)?);
        crore.push((row.measure)(args, Kind::Crore)?);
    }
    let mut ratios = Map::new();
    for (name, bar) in row.values {
        let of = |runs: &[Value]| {
            median(
                &runs
                    .iter()
                    .map(|run| run[*name].as_f64().unwrap_or(f64::NAN))
                    .collect::<Vec<_>>(),
            )
        };
        let (ours, theirs) = (of(&crore), of(&floor));
        let ratio = ours / theirs;
        report::say(&format!(
            "{:<10} {name}: floor {theirs:.3}, server {ours:.3}, ratio {ratio:.3} (bar {bar})",
            row.name
        ));
        ratios.insert(
            (*name).into(),
            json!({ "floor_median": theirs, "server_median": ours, "ratio": ratio, "bar": bar }),
        );
    }
    let limits: Vec<&Value> = floor
        .iter()
        .chain(&crore)
        .map(|run| &run["bottleneck"])
        .collect();
    if limits
        .iter()
        .any(|limit| limit.as_str().is_some_and(|text| text.starts_with("TOOL")))
    {
        report::say(&format!(
            "{:<10} the load tool was the bottleneck in some runs",
            row.name
        ));
    }
    let clean = crore.iter().all(|run| run["clean"] == true);
    Ok(json!({ "clean": clean, "ratios": ratios, "floor": floor, "server": crore }))
}

/// A server with its subscribers, all open.
struct Pair {
    kind: Kind,
    server: Server,
    subscriber: Subscriber,
    topics: String,
    connections: u32,
    empty: Moment,
    open: Moment,
}

impl Pair {
    fn start(args: &RunArgs, kind: Kind, connections: u32, fan: bool) -> Result<Pair> {
        let protocol = match kind {
            Kind::Crore => args.protocol.unwrap_or(Protocol::Ws),
            Kind::Floor => Protocol::Ws,
        };
        let keep = args.keep(protocol);
        let setting = Setting {
            kind,
            shards: args.shards.unwrap_or(1),
            ports: 1,
            keep,
        };
        let mut server = Server::start(args, setting)?;
        let topics = if fan {
            "news".to_string()
        } else {
            topics(connections)
        };
        let addresses = locals(connections);
        let name = protocol_name(protocol);
        let rest = ["--protocol", name, "--threads", "1", "--local", &addresses];
        let mut subscriber = Subscriber::start(args, &server, kind, connections, &topics, &rest)?;
        let empty = Moment::of(&mut server)?;
        subscriber.open()?;
        pause(1.0);
        let open = Moment::of(&mut server)?;
        Ok(Pair {
            kind,
            server,
            subscriber,
            topics,
            connections,
            empty,
            open,
        })
    }

    /// Publishes with the given flags and measures one window in the middle of it.
    fn window(&mut self, args: &RunArgs, how: &[&str]) -> Result<Value> {
        let seconds = args.duration.unwrap_or(WINDOW_S);
        let size = args.size.unwrap_or(512);
        let publisher = Publisher::start(args, &self.server, self.kind, &self.topics, size, how)?;
        pause(WARM_S);
        let tools = |this: &Pair| -> Result<f64> {
            Ok(this.subscriber.sample()?.cpu_s() + publisher.sample()?.cpu_s())
        };
        let tools_before = tools(self)?;
        let before = Moment::of(&mut self.server)?;
        let first = self.subscriber.ask("restart")?;
        pause(seconds);
        let last = self.subscriber.ask("report")?;
        let after = Moment::of(&mut self.server)?;
        let tools_after = tools(self)?;
        let published = publisher.stop()?;

        let at = |report: &Value| report["now_ns"].as_u64().unwrap_or(0);
        let elapsed_s = (at(&last) - at(&first)) as f64 / 1e9;
        let sampled_s = (after.at_ns - before.at_ns) as f64 / 1e9;
        let deliveries_per_s = last["messages"].as_u64().unwrap_or(0) as f64 / elapsed_s;
        let cpu_s = after.process.cpu_s() - before.process.cpu_s();
        let (server_busy, tools_busy) =
            (cpu_s / sampled_s, (tools_after - tools_before) / sampled_s);
        Ok(json!({
            "clean": is_clean(&last) && published["refused"] == 0,
            "deliveries_per_s": deliveries_per_s,
            "p99_ms": last["latency_ms"]["p99"],
            "latency_ms": last["latency_ms"],
            "reads_per_s": (reads(&last) - reads(&first)) / elapsed_s,
            "server_cpu_us_per_delivery": server_busy / deliveries_per_s * 1e6,
            "server_cores_busy": server_busy,
            "tools_cores_busy": tools_busy,
            "bottleneck": bottleneck(server_busy, 1.0, tools_busy, 1.0),
            "published": published,
        }))
    }
}

fn reads(report: &Value) -> f64 {
    report["connections"]["chunks"].as_f64().unwrap_or(0.0)
}

fn saturated(args: &RunArgs, kind: Kind, connections: u32, fan: bool) -> Result<Value> {
    let mut how = vec!["--saturate"];
    if fan && kind == Kind::Floor {
        how.push("--broadcast");
    }
    Pair::start(args, kind, connections, fan)?.window(args, &how)
}

fn at_rate(args: &RunArgs, kind: Kind) -> Result<Value> {
    let rate = args.rate.unwrap_or(RATE).to_string();
    let connections = args.connections.unwrap_or(CONNECTIONS);
    Pair::start(args, kind, connections, false)?.window(args, &["--rate", &rate])
}

fn once(args: &RunArgs, kind: Kind) -> Result<Value> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let mut pair = Pair::start(args, kind, connections, true)?;
    let size = args.size.unwrap_or(512);
    let mut times = Vec::new();
    for _ in 0..BROADCASTS {
        let (server, topic) = (&pair.server, pair.topics.clone());
        times.push(broadcast(
            args,
            server,
            kind,
            &mut pair.subscriber,
            &topic,
            connections,
            size,
        )?);
    }
    let clean = times.iter().all(|ms| ms.is_finite());
    Ok(json!({ "clean": clean, "last_has_it_ms": median(&times), "all_ms": times }))
}

fn idle(args: &RunArgs, kind: Kind) -> Result<Value> {
    let pair = Pair::start(args, kind, args.connections.unwrap_or(IDLE), false)?;
    let cost = per_connection(pair.connections, &pair.empty, &pair.open);
    Ok(json!({
        "clean": true,
        "handshake_cpu_us": cost["server_cpu_us"],
        "pss_bytes": cost["server_pss_bytes"],
        "per_connection": cost,
    }))
}
