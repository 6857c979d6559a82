//! `cluster-rates` measures three things:
//! * the publishes a second that a cluster node answers, compared with a bare NATS client that sends batches of the same size, with as many
//!   in flight;
//! * the time from a publish at one node to its delivery at the other;
//! * the memory of a node with many topics, compared with a single server.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster::Testbed;
use crate::client::link::Link;
use crate::measure::sample::Process;
use crate::measure::stats::median;
use crate::report;
use crate::rig::{
    Publisher, RunArgs, Sample, Server, ServerKind, ServerOptions, Subscriber, bare, is_clean,
    local_address_pattern, number_at, pause, topic_pattern,
};

/// Default size of a message, in bytes.
const DEFAULT_MESSAGE_BYTES: usize = 512;
/// Default duration of each window, in seconds.
const DEFAULT_WINDOW_S: f64 = 5.0;
/// The topics of the messages. Their number is large enough that every partition has some.
const TOPICS: &str = "/p/s{1..1024}/-";
/// The maximum number of batches of a partition that a node has in flight.
const BATCHES_IN_FLIGHT_MAX: u64 = 2;
/// Messages a second at which the latency is measured.
const RATES: [u32; 2] = [1_000, 10_000];
/// Subscribers at the other node.
const SUBSCRIBERS: u32 = 1_000;
/// Default number of topics with a kept message.
const DEFAULT_TOPIC_COUNT: u32 = 100_000;
/// Seconds until NATS has sent a node the sizes of its streams again. After this time the logs are idle, too.
const SETTLE_S: f64 = 5.0;
/// Timeout for an answer of the admin port.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A way to publish to a node.
struct PublishLoad {
    name: &'static str,
    flags: &'static [&'static str],
    qos: u8,
    /// The maximum number of batches of each partition in flight in NATS. Each request has messages of all partitions.
    in_flight: u64,
}

const LOADS: [PublishLoad; 3] = [
    PublishLoad {
        name: "HTTP, 1 batch of 256",
        flags: &["--connections", "1", "--in-flight", "1", "--batch", "256"],
        qos: 0,
        in_flight: 1,
    },
    PublishLoad {
        name: "HTTP, 16 batches of 256",
        // The server handles one request of a connection at a time, so several requests in flight on a connection would not help.
        flags: &["--connections", "16", "--in-flight", "1", "--batch", "256"],
        qos: 0,
        in_flight: BATCHES_IN_FLIGHT_MAX,
    },
    PublishLoad {
        name: "MQTT QoS 1, 1,024 in flight",
        flags: &[
            "--connections",
            "8",
            "--in-flight",
            "128",
            "--protocol",
            "mqtt",
        ],
        qos: 1,
        in_flight: BATCHES_IN_FLIGHT_MAX,
    },
];

/// The settings of all servers: room for many topics, each of which keeps its newest message.
fn settings(args: &RunArgs) -> String {
    format!(
        "partitions = {}\n\n[limits]\naccepts_per_s = {}\nlog_bytes = \"16 GiB\"\ntopics_per_address_per_s = 0\ntopics_max = 4000000\ntopics_per_shard = 4000000\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 1\n",
        args.partitions,
        args.accepts()
    )
}

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let options = ServerOptions {
        admin: true,
        ..ServerOptions::new(ServerKind::Crore, args.shards.unwrap_or(2), 0)
    };
    let mut testbed = Testbed::make(args, options, &settings(args))?;
    // Memory is measured first, while the nodes' heaps are still small.
    let memory = measure_memory(args, &mut testbed)?;
    let rates = measure_rates(args, &mut testbed)?;
    let latency = measure_latency(args, &testbed)?;
    let are_all_clean = latency.iter().all(|row| row["clean"] == true);
    Ok(json!({
        "clean": are_all_clean,
        "rates": rates,
        "publish_to_delivery": latency,
        "memory": memory,
        "nats_version": testbed.nats.version(),
        "size": args.size.unwrap_or(DEFAULT_MESSAGE_BYTES),
        "window_s": args.duration.unwrap_or(DEFAULT_WINDOW_S),
        "rounds": args.rounds,
        "shards": options.shards,
        "partitions": args.partitions,
    }))
}

/// Measures answered publishes a second of a node and of the bare client in turn.
fn measure_rates(args: &RunArgs, testbed: &mut Testbed) -> Result<Value> {
    let mut rows = serde_json::Map::new();
    for load in &LOADS {
        let mut rounds = Vec::new();
        for _ in 0..args.rounds {
            rounds.push(measure_round(args, testbed, load).with_context(|| load.name)?);
        }
        let median_of = |name: &str| {
            let values: Vec<f64> = rounds.iter().map(|round| number_at(round, name)).collect();
            median(&values)
        };
        report::say(&format!(
            "{}: {:.0} publishes/s, the bare client {:.0}/s: {:.2}",
            load.name,
            median_of("/per_s"),
            median_of("/bare_per_s"),
            median_of("/of_bare")
        ));
        let row = json!({
            "per_s": median_of("/per_s"), "bare_per_s": median_of("/bare_per_s"), "of_bare": median_of("/of_bare"), "rounds": rounds,
        });
        rows.insert(load.name.into(), row);
    }
    Ok(Value::Object(rows))
}

fn measure_round(args: &RunArgs, testbed: &mut Testbed, load: &PublishLoad) -> Result<Value> {
    let (size, seconds) = (
        args.size.unwrap_or(DEFAULT_MESSAGE_BYTES),
        args.duration.unwrap_or(DEFAULT_WINDOW_S),
    );
    let seconds_text = seconds.to_string();
    let flags = [load.flags, &["--saturate", "--duration", &seconds_text]].concat();
    let before = LogCounters::read(testbed)?;
    let cpu_before = cpu_s_by_process(testbed)?;
    let args = &args.at_qos(load.qos);
    let result =
        Publisher::start_with(args, &testbed.nodes[0], TOPICS, size, &flags)?.wait_for_result()?;
    let cpu_used_s: Vec<f64> = cpu_s_since(testbed, &cpu_before)?;
    ensure!(
        result["refused"] == 0 && result["unanswered"] == 0,
        "refused publishes: {result}"
    );
    pause(SETTLE_S);
    let after = LogCounters::read(testbed)?;
    let accepted = number_at(&result, "/accepted");
    let batches = (after.batches - before.batches).max(1) as f64;
    let messages_per_batch = accepted / batches;
    let bytes = (after.bytes - before.bytes) as f64 / batches;
    let per_s = accepted / number_at(&result, "/seconds");
    let urls = testbed.nats_urls();
    let bare_cpu_before = cpu_s_by_process(testbed)?;
    let streams = u64::from(args.partitions);
    let in_flight = load.in_flight * streams;
    let bare = bare::publish(&urls, streams, 3, bytes as usize, in_flight, seconds);
    let bare = bare.with_context(|| testbed.nats.warnings())?;
    let bare_nats_cpu_s = cpu_s_since(testbed, &bare_cpu_before)?[2];
    let us_per_message = |cpu_s: f64| cpu_s * 1e6 / accepted;
    Ok(json!({
        "per_s": per_s,
        "bare_per_s": bare.per_s * messages_per_batch,
        "of_bare": per_s / (bare.per_s * messages_per_batch),
        "batches_per_s": batches / number_at(&result, "/seconds"),
        "bare_batches_per_s": bare.per_s,
        "bare_stalls": bare.stalls,
        "messages_of_a_batch": messages_per_batch,
        "bytes_of_a_batch": bytes,
        "nats_cpu_us_a_batch": cpu_used_s[2] * 1e6 / batches,
        "bare_nats_cpu_us_a_batch": bare_nats_cpu_s * 1e6 / (bare.per_s * bare.seconds),
        "cpu_us_a_message": {
            "node": us_per_message(cpu_used_s[0]), "other_node": us_per_message(cpu_used_s[1]), "nats": us_per_message(cpu_used_s[2]), "tool": us_per_message(number_at(&result, "/tool_cpu_s")),
        },
    }))
}

/// Processor time of each node, and of all NATS servers together.
fn cpu_s_by_process(testbed: &mut Testbed) -> Result<Vec<f64>> {
    let mut cpu_s = Vec::new();
    for node in &mut testbed.nodes {
        cpu_s.push(node.cpu_s()?);
    }
    let nats_cpu_s = testbed
        .nats
        .processes()
        .map(|pid| Ok(Process::read(pid)?.cpu_s));
    cpu_s.push(nats_cpu_s.sum::<Result<f64>>()?);
    Ok(cpu_s)
}

fn cpu_s_since(testbed: &mut Testbed, before: &[f64]) -> Result<Vec<f64>> {
    let now = cpu_s_by_process(testbed)?;
    Ok(now
        .iter()
        .zip(before)
        .map(|(now, before)| now - before)
        .collect())
}

/// The counters of what a node has written to the log.
struct LogCounters {
    batches: u64,
    bytes: u64,
}

impl LogCounters {
    /// Reads the counters of node 0, which receives all publishes.
    fn read(testbed: &Testbed) -> Result<LogCounters> {
        let status = get(testbed.admin_address(0), "/api/v1/cluster")?;
        let partitions = status["partitions"].as_array().context("partitions")?;
        let bytes = partitions
            .iter()
            .filter_map(|partition| partition["bytes"].as_u64());
        Ok(LogCounters {
            batches: status["engine"]["appended"].as_u64().context("a count")?,
            bytes: bytes.sum(),
        })
    }
}

fn get(address: SocketAddr, path: &str) -> Result<Value> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let (status, body) = Link::open(address, TIMEOUT)?.request(request.as_bytes())?;
    ensure!(status == 200, "{path} was answered with {status}");
    Ok(serde_json::from_slice(&body)?)
}

/// Measures the time from the publish at node 0 to the delivery at node 1.
fn measure_latency(args: &RunArgs, testbed: &Testbed) -> Result<Vec<Value>> {
    let (size, seconds) = (
        args.size.unwrap_or(DEFAULT_MESSAGE_BYTES),
        args.duration.unwrap_or(DEFAULT_WINDOW_S),
    );
    let (topics, addresses) = (
        topic_pattern(SUBSCRIBERS),
        local_address_pattern(SUBSCRIBERS),
    );
    let flags = ["--protocol", "ws", "--threads", "1", "--local", &addresses];
    let mut rows = Vec::new();
    for rate in RATES {
        let mut subscriber =
            Subscriber::start(args, &testbed.nodes[1], SUBSCRIBERS, &topics, &flags)?;
        subscriber.open()?;
        let rate = rate.to_string();
        // If a connection had several requests in flight, a request would wait for the answer to the one before.
        let flags = ["--rate", &rate, "--connections", "16", "--in-flight", "1"];
        let publisher = Publisher::start_with(args, &testbed.nodes[0], &topics, size, &flags)?;
        pause(SETTLE_S);
        subscriber.ask("restart")?;
        pause(seconds);
        let report = subscriber.ask("report")?;
        let published = publisher.stop()?;
        let latency = &report["latency_ms"];
        report::say(&format!(
            "{rate} messages/s from one node to the other: p50 {} ms, p99 {} ms",
            latency["p50"], latency["p99"]
        ));
        rows.push(json!({
            "messages_per_s": rate,
            "clean": is_clean(&report) && published["refused"] == 0,
            "rate_kept": published["rate_kept"],
            "latency_ms": latency,
            "messages": report["messages"],
        }));
    }
    Ok(rows)
}

/// Measures the memory of a topic with a message, at both nodes and at a single server.
fn measure_memory(args: &RunArgs, testbed: &mut Testbed) -> Result<Value> {
    let (size, count) = (
        args.size.unwrap_or(DEFAULT_MESSAGE_BYTES),
        args.topics.unwrap_or(DEFAULT_TOPIC_COUNT),
    );
    let settings = settings(args);
    let options = ServerOptions::new(ServerKind::Crore, args.shards.unwrap_or(2), 0);
    let mut single = Server::start_with(args, options, &settings, None)?;
    let topics = format!("/m/s{{1000001..{}}}/-", 1_000_000 + count);
    let messages = count.to_string();
    let flags = [
        "--cycle",
        "--saturate",
        "--messages",
        &messages,
        "--batch",
        "256",
        "--in-flight",
        "4",
    ];
    let bytes_per_topic = |server: &mut Server, must_publish: bool, before: u64| -> Result<f64> {
        if must_publish {
            let result =
                Publisher::start_with(args, server, &topics, size, &flags)?.wait_for_result()?;
            ensure!(result["accepted"] == count, "refused publishes: {result}");
        }
        pause(SETTLE_S);
        let growth = Sample::of(server)?.process.pss_bytes.saturating_sub(before);
        Ok(growth as f64 / f64::from(count))
    };
    let [publish_node, other] = testbed.nodes.as_mut_slice() else {
        anyhow::bail!("there are two nodes");
    };
    let before = [&mut *publish_node, &mut *other, &mut single]
        .map(|server| Sample::of(server).map(|sample| sample.process.pss_bytes));
    let [publish_node_before, other_node_before, single_before] = before;
    let publish_node = bytes_per_topic(publish_node, true, publish_node_before?)?;
    let other = bytes_per_topic(other, false, other_node_before?)?;
    let single = bytes_per_topic(&mut single, true, single_before?)?;
    report::say(&format!(
        "{count} topics with a message of {size} B: {publish_node:.0} B each at the node that took them, {other:.0} B at the other, {single:.0} B at a single server"
    ));
    Ok(json!({
        "topics": count, "node_bytes": publish_node, "other_node_bytes": other, "single_server_bytes": single,
    }))
}
