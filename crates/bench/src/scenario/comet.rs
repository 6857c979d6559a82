//! `comet-10k`: repeats the table of a benchmark of 2009. Up to 10,000 long-polls wait on one topic. The scenario measures the memory of a
//! long-poll, and the time until all of them have received a message of five bytes.

use anyhow::Result;
use serde_json::{Value, json};

use crate::measure::stats::median;
use crate::report;
use crate::rig::{
    Audience, Publisher, RunArgs, Sample, Server, ServerKind, ServerOptions, count_at, number_at,
    pause, per_connection,
};
use crate::subscribe::Protocol;

/// The topic, which the benchmark of 2009 called a channel.
const TOPIC: &str = "pb";
/// Seconds between the opening of the connections and the reading of memory.
const SETTLE_S: f64 = 2.0;
/// The connections of each row in 2009.
const ROWS: [u32; 4] = [100, 1_000, 5_000, 10_000];
/// The number of broadcasts in a row of the table. Their median is reported.
const BROADCASTS_PER_ROW: usize = 9;
/// Message size of 2009, in bytes.
const DEFAULT_MESSAGE_BYTES: usize = 5;
/// Timeout for a broadcast, in polls of 50 ms.
const POLLS_MAX: usize = 200;

/// Measures each row with fewer connections than `--connections`, and a last one with that number.
pub fn run(args: &RunArgs) -> Result<Value> {
    let connections_max = args.connections.unwrap_or(10_000);
    let mut rows: Vec<u32> = ROWS
        .into_iter()
        .filter(|row| *row < connections_max)
        .collect();
    rows.push(connections_max);
    let results = rows
        .iter()
        .map(|row| measure(args, *row))
        .collect::<Result<Vec<Value>>>()?;
    let is_clean = results.iter().all(|row| row["clean"] == true);
    Ok(json!({ "clean": is_clean, "rows": results }))
}

fn measure(args: &RunArgs, connections: u32) -> Result<Value> {
    let protocol = args.protocol.unwrap_or(Protocol::Poll);
    let options = ServerOptions::new(
        ServerKind::Crore,
        args.shards_for(connections, 1, 1),
        args.keep(protocol),
    );
    let server = Server::start(args, options)?;
    let flags = ["--protocol", protocol.name()];
    let mut audience = Audience::open(args, server, connections, TOPIC, &flags, SETTLE_S)?;

    let size = args.size.unwrap_or(DEFAULT_MESSAGE_BYTES);
    let mut times_ms = Vec::new();
    for _ in 0..BROADCASTS_PER_ROW {
        times_ms.push(broadcast(args, &mut audience, TOPIC, size)?);
    }
    let after = Sample::of(&mut audience.server)?;
    let report = audience.subscriber.ask("report")?;
    let is_clean = report["connections"]["closed"] == 0 && times_ms.iter().all(|ms| ms.is_finite());
    let cost = audience.cost_open();
    report::say(&format!(
        "{connections} {}: {:.0} B a connection, all had {size} B after {:.2} ms (median of {BROADCASTS_PER_ROW}), failed {}",
        protocol.name(),
        number_at(&cost, "/server_pss_bytes"),
        median(&times_ms),
        report["connections"]["failed"],
    ));
    Ok(json!({
        "clean": is_clean,
        "connections": connections,
        "protocol": protocol.name(),
        "shards": options.shards,
        "log_messages": options.log_messages,
        "empty": audience.empty.json(),
        "per_connection": cost,
        "per_connection_after": per_connection(connections, &audience.empty, &after),
        "size_bytes": size,
        "broadcast_ms": times_ms,
        "broadcast_ms_median": median(&times_ms),
        "received": report,
    }))
}

/// Publishes one message. Returns the milliseconds until the last subscriber received it, or NaN if not all received it.
pub fn broadcast(args: &RunArgs, audience: &mut Audience, topic: &str, size: usize) -> Result<f64> {
    audience.subscriber.ask("restart")?;
    let mut flags = vec!["--messages", "1", "--rate", "1"];
    if audience.server.kind == ServerKind::Floor {
        flags.push("--broadcast");
    }
    let publisher = Publisher::start(args, &audience.server, topic, size, &flags)?;
    let published = publisher.wait_for_result()?;
    let subscribers = u64::from(audience.connections);
    let mut report = Value::Null;
    for _ in 0..POLLS_MAX {
        pause(0.05);
        report = audience.subscriber.ask("report")?;
        if count_at(&report, "/messages") >= subscribers {
            break;
        }
    }
    if count_at(&report, "/messages") != subscribers {
        return Ok(f64::NAN);
    }
    // In this pause the long-polls send their next requests.
    pause(0.2);
    let count = |value: &Value, name: &str| count_at(value, name) as f64;
    Ok((count(&report, "/last_arrival_ns") - count(&published, "/first_sent_ns")) / 1e6)
}
