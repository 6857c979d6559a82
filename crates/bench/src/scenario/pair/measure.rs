//! The measurements of the rows of `pair`. Each measures a server in one round.

use anyhow::Result;
use serde_json::{Value, json};

use crate::measure::stats::median;
use crate::rig::{
    Audience, Publisher, RunArgs, Sample, Server, ServerKind, ServerOptions, bottleneck, count_at,
    is_clean, local_address_pattern, pause, topic_pattern,
};
use crate::scenario::comet::broadcast;

/// The results of one server's windows.
pub type WindowResults = Vec<Result<Value>>;

/// Connections of the unicast and broadcast rows.
const DEFAULT_CONNECTIONS: u32 = 10_000;
/// Subscribers of the fan-out row.
const FAN_OUT_SUBSCRIBERS: u32 = 1_000;
/// Connections of the idle row.
const IDLE_CONNECTIONS: u32 = 15_000;
/// Messages a second of the row `rate`.
const MESSAGES_PER_S: f64 = 10_000.0;
/// Flags of a publisher that waits for acknowledgements. The number of messages in flight is Crore's default Receive Maximum.
const ACKNOWLEDGED_FLAGS: [&str; 3] = ["--saturate", "--in-flight", "100"];
/// Length of a log that overflows during the measurement. It is Nchan's default.
const SHORT_LOG_MESSAGES: u32 = 10;
/// Warm-up before the first window, in seconds.
const FIRST_WARM_UP_S: f64 = 2.0;
/// Warm-up before the other windows, in seconds.
const WARM_UP_S: f64 = 0.5;
/// Default duration of a window, in seconds.
const WINDOW_S: f64 = 5.0;
/// Windows in a round of the row `rate`.
const WINDOWS_PER_ROUND: usize = 5;
/// Broadcasts of one measurement, which returns their median.
const BROADCASTS_PER_RUN: usize = 7;

/// A measured server with its open subscribers.
struct MeasuredServer {
    audience: Audience,
    topics: String,
    is_warm: bool,
}

impl MeasuredServer {
    fn start(
        args: &RunArgs,
        kind: ServerKind,
        connections: u32,
        is_fan_out: bool,
    ) -> Result<MeasuredServer> {
        let protocol = kind.protocol(args.subscribe_protocol());
        let options = ServerOptions::new(kind, args.shards.unwrap_or(1), args.keep(protocol));
        let server = Server::start(args, options)?;
        let topics = if is_fan_out {
            "news".to_string()
        } else {
            topic_pattern(connections)
        };
        let (name, addresses) = (protocol.name(), local_address_pattern(connections));
        let flags = ["--protocol", name, "--threads", "1", "--local", &addresses];
        let audience = Audience::open(args, server, connections, &topics, &flags, 1.0)?;
        Ok(MeasuredServer {
            audience,
            topics,
            is_warm: false,
        })
    }

    /// Publishes with these flags, and measures a window during that time.
    fn measure_window(&mut self, args: &RunArgs, flags: &[&str]) -> Result<Value> {
        let seconds = args.duration.unwrap_or(WINDOW_S);
        let size = args.size.unwrap_or(512);
        let publisher = Publisher::start(args, &self.audience.server, &self.topics, size, flags)?;
        pause(if self.is_warm {
            WARM_UP_S
        } else {
            FIRST_WARM_UP_S
        });
        self.is_warm = true;
        let Audience {
            server, subscriber, ..
        } = &mut self.audience;
        let tools_before = subscriber.sample()?.cpu_s + publisher.sample()?.cpu_s;
        let before = Sample::of(server)?;
        let start_report = subscriber.ask("restart")?;
        pause(seconds);
        let end_report = subscriber.ask("report")?;
        let after = Sample::of(server)?;
        let tools_after = subscriber.sample()?.cpu_s + publisher.sample()?.cpu_s;
        let published = publisher.stop()?;

        let elapsed_s =
            (count_at(&end_report, "/now_ns") - count_at(&start_report, "/now_ns")) as f64 / 1e9;
        let sampled_s = after.seconds_since(&before);
        let deliveries_per_s = count_at(&end_report, "/messages") as f64 / elapsed_s;
        let reads = |report: &Value| count_at(report, "/connections/chunks") as f64;
        let server_busy = after.cores_since(&before);
        let tools_busy = (tools_after - tools_before) / sampled_s;
        let server_waited = (after.process.waited_s - before.process.waited_s) / sampled_s;
        Ok(json!({
            "clean": is_clean(&end_report) && published["refused"] == 0,
            "lost": end_report["lost"],
            "told_lost": end_report["told_lost"],
            "doubled": end_report["doubled"],
            "misdelivered": end_report["misdelivered"],
            "closed": end_report["connections"]["closed"],
            "complaints": server.error_log(),
            "deliveries_per_s": deliveries_per_s,
            "p99_ms": end_report["latency_ms"]["p99"],
            "latency_ms": end_report["latency_ms"],
            "reads_per_s": (reads(&end_report) - reads(&start_report)) / elapsed_s,
            "server_cpu_us_per_delivery": server_busy / deliveries_per_s * 1e6,
            "server_cores_busy": server_busy,
            // Time in which other processes had the server's core. Such processes slow all servers alike, so the ratios of the servers do
            // not change.
            "server_cores_waited_for": server_waited,
            "tools_cores_busy": tools_busy,
            "bottleneck": bottleneck(server_busy + server_waited, 1.0, tools_busy, 1.0),
            "is_saturating": flags.contains(&"--saturate"),
            "published": published,
        }))
    }
}

/// Saturating messages, each to one of 10,000 subscribers.
pub fn unicast(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let connections = args.connections.unwrap_or(DEFAULT_CONNECTIONS);
    MeasuredServer::start(args, kind, connections, false)?.measure_window(args, &["--saturate"])
}

/// Like [`unicast`], but with short logs. The result also has the ratio to the rate without logs. A server that has no logs is measured
/// once.
pub fn logged(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let with_keep = |keep| RunArgs {
        keep: Some(keep),
        ..args.clone()
    };
    if !matches!(kind, ServerKind::Crore | ServerKind::Nchan) {
        return unicast(args, kind);
    }
    let without_log = unicast(&with_keep(0), kind)?;
    let mut with_log = unicast(&with_keep(SHORT_LOG_MESSAGES), kind)?;
    let rate = |run: &Value| run["deliveries_per_s"].as_f64().unwrap_or(f64::NAN);
    with_log["share_of_no_log"] = json!(rate(&with_log) / rate(&without_log));
    with_log["without_log"] = without_log;
    Ok(with_log)
}

/// Saturating publishes with a request for each message, from 16 connections with 16 requests in flight each. Each message is for one of
/// 10,000 subscribers. Mosquitto gets MQTT packets with QoS 1 instead. The floor gets messages that it does not answer.
pub fn post(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let connections = args.connections.unwrap_or(DEFAULT_CONNECTIONS);
    let mut measured_server = MeasuredServer::start(&args.at_qos(0), kind, connections, false)?;
    match kind {
        ServerKind::Mosquitto => {
            measured_server.measure_window(&args.at_qos(1), &ACKNOWLEDGED_FLAGS)
        }
        ServerKind::Crore => {
            measured_server.measure_window(args, &["--saturate", "--connections", "16", "--single"])
        }
        ServerKind::Nchan => {
            measured_server.measure_window(args, &["--saturate", "--connections", "16"])
        }
        _ => measured_server.measure_window(args, &["--saturate"]),
    }
}

/// Saturating messages, each to all of 1,000 subscribers.
pub fn fan_out(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let mut flags = vec!["--saturate"];
    if kind == ServerKind::Floor {
        flags.push("--broadcast");
    }
    MeasuredServer::start(args, kind, FAN_OUT_SUBSCRIBERS, true)?.measure_window(args, &flags)
}

/// 10,000 messages a second, each to one of 10,000 subscribers. At this rate half of the cost of a delivery is waking the reader, and that
/// cost varies with time. So the windows of different servers follow each other as closely as possible.
pub fn at_rate(args: &RunArgs, kinds: &[ServerKind]) -> Vec<WindowResults> {
    let rate = args.rate.unwrap_or(MESSAGES_PER_S).to_string();
    let connections = args.connections.unwrap_or(DEFAULT_CONNECTIONS);
    let start = |kind: &ServerKind| MeasuredServer::start(args, *kind, connections, false);
    let mut measured_servers: Vec<Result<MeasuredServer>> = kinds.iter().map(start).collect();
    let mut runs: Vec<WindowResults> = kinds.iter().map(|_| Vec::new()).collect();
    for _ in 0..WINDOWS_PER_ROUND {
        for (measured_server, runs) in measured_servers.iter_mut().zip(&mut runs) {
            // A server that failed in one window is not measured in the next, where it would fail, too.
            if let Ok(measured_server) = measured_server
                && runs.last().is_none_or(Result::is_ok)
            {
                runs.push(measured_server.measure_window(args, &["--rate", &rate]));
            }
        }
    }
    for (measured_server, runs) in measured_servers.into_iter().zip(&mut runs) {
        runs.extend(measured_server.err().map(Err));
    }
    runs
}

/// Saturating messages with QoS 1, each to one of 10,000 subscribers with QoS 0.
pub fn acknowledged(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let connections = args.connections.unwrap_or(DEFAULT_CONNECTIONS);
    let mut measured_server = MeasuredServer::start(&args.at_qos(0), kind, connections, false)?;
    measured_server.measure_window(&args.at_qos(1), &ACKNOWLEDGED_FLAGS)
}

/// Like [`acknowledged`], but with subscribers with QoS 1.
pub fn quality_1(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let (args, connections) = (
        args.at_qos(1),
        args.connections.unwrap_or(DEFAULT_CONNECTIONS),
    );
    MeasuredServer::start(&args, kind, connections, false)?
        .measure_window(&args, &ACKNOWLEDGED_FLAGS)
}

/// One message to 10,000 subscribers: the time until the last one has it.
pub fn broadcasts(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let connections = args.connections.unwrap_or(DEFAULT_CONNECTIONS);
    let mut measured_server = MeasuredServer::start(args, kind, connections, true)?;
    let size = args.size.unwrap_or(512);
    let mut times_ms = Vec::new();
    for _ in 0..BROADCASTS_PER_RUN {
        times_ms.push(broadcast(
            args,
            &mut measured_server.audience,
            &measured_server.topics,
            size,
        )?);
    }
    let complete_times: Vec<f64> = times_ms
        .iter()
        .copied()
        .filter(|ms| ms.is_finite())
        .collect();
    let incomplete = times_ms.len() - complete_times.len();
    Ok(json!({
        "clean": incomplete == 0,
        "incomplete": incomplete,
        "complaints": measured_server.audience.server.error_log(),
        // The value is null if every broadcast was incomplete, because the median of no values is NaN.
        "last_has_it_ms": median(&complete_times),
        "all_ms": times_ms,
    }))
}

/// 15,000 idle connections.
pub fn idle(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let measured_server = MeasuredServer::start(
        args,
        kind,
        args.connections.unwrap_or(IDLE_CONNECTIONS),
        false,
    )?;
    let cost = measured_server.audience.cost_open();
    Ok(json!({
        "clean": true,
        "complaints": measured_server.audience.server.error_log(),
        "handshake_cpu_us": cost["server_cpu_us"],
        "pss_bytes": cost["server_pss_bytes"],
        "per_connection": cost,
    }))
}
