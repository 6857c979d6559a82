//! `comet-10k`: the table of 2009. So many long-polls wait on one channel; what does each cost, and
//! how long until all of them have a message of five bytes?

use anyhow::Result;
use serde_json::{Value, json};

use super::rig::{Kind, Publisher, Server, Setting, Subscriber, shards_for};
use super::{Moment, RunArgs, pause, per_connection, protocol_name};
use crate::report;
use crate::stats::median;
use crate::subscribe::Protocol;

/// The rows of 2009.
const ROWS: [u32; 4] = [100, 1_000, 5_000, 10_000];
/// Broadcasts of which the median is told.
const BROADCASTS: usize = 9;
/// The message of 2009.
const SIZE: usize = 5;
/// Longest wait for a broadcast, in looks of 50 ms.
const LOOKS_MAX: usize = 200;

/// Runs the rows up to `--connections`.
pub fn run(args: &RunArgs) -> Result<Value> {
    let most = args.connections.unwrap_or(10_000);
    let mut rows: Vec<u32> = ROWS.into_iter().filter(|row| *row < most).collect();
    rows.push(most);
    let results = rows
        .iter()
        .map(|row| measure(args, *row))
        .collect::<Result<Vec<Value>>>()?;
    let clean = results.iter().all(|row| row["clean"] == true);
    Ok(json!({ "clean": clean, "rows": results }))
}

fn measure(args: &RunArgs, connections: u32) -> Result<Value> {
    let protocol = args.protocol.unwrap_or(Protocol::Poll);
    let setting = Setting {
        kind: Kind::Crore,
        shards: args.shards.unwrap_or(shards_for(connections, 1, 1)),
        ports: 1,
        keep: args.keep(protocol),
    };
    let mut server = Server::start(args, setting)?;
    let rest = ["--protocol", protocol_name(protocol)];
    let mut subscriber = Subscriber::start(args, &server, setting.kind, connections, "pb", &rest)?;
    let empty = Moment::of(&mut server)?;
    subscriber.open()?;
    pause(2.0);
    let open = Moment::of(&mut server)?;

    let size = args.size.unwrap_or(SIZE);
    let mut times = Vec::new();
    for _ in 0..BROADCASTS {
        times.push(broadcast(
            args,
            &server,
            setting.kind,
            &mut subscriber,
            "pb",
            connections,
            size,
        )?);
    }
    let after = Moment::of(&mut server)?;
    let report = subscriber.ask("report")?;
    let clean = report["connections"]["closed"] == 0 && times.iter().all(|ms| ms.is_finite());
    let cost = per_connection(connections, &empty, &open);
    report::say(&format!(
        "{connections} {}: {:.0} B a connection, all had {size} B after {:.2} ms (median of {BROADCASTS}), failed {}",
        protocol_name(protocol),
        cost["server_pss_bytes"].as_f64().unwrap_or(f64::NAN),
        median(&times),
        report["connections"]["failed"],
    ));
    Ok(json!({
        "clean": clean,
        "connections": connections,
        "protocol": protocol_name(protocol),
        "shards": setting.shards,
        "log_messages": setting.keep,
        "empty": empty.json(),
        "per_connection": cost,
        "per_connection_after": per_connection(connections, &empty, &after),
        "size_bytes": size,
        "broadcast_ms": times,
        "broadcast_ms_median": median(&times),
        "received": report,
    }))
}

/// Publishes one message and returns the milliseconds until the last subscriber had it; NaN when
/// not everybody got it.
pub fn broadcast(
    args: &RunArgs,
    server: &Server,
    kind: Kind,
    subscriber: &mut Subscriber,
    topic: &str,
    connections: u32,
    size: usize,
) -> Result<f64> {
    subscriber.ask("restart")?;
    let mut how = vec!["--messages", "1", "--rate", "1"];
    if kind == Kind::Floor {
        how.push("--broadcast");
    }
    let published = Publisher::start(args, server, kind, topic, size, &how)?.result()?;
    let mut report = Value::Null;
    for _ in 0..LOOKS_MAX {
        pause(0.05);
        report = subscriber.ask("report")?;
        if report["messages"].as_u64() >= Some(connections.into()) {
            break;
        }
    }
    if report["messages"] != connections {
        return Ok(f64::NAN);
    }
    // Long-polls ask again before the next one comes.
    pause(0.2);
    let at = |value: &Value, name: &str| value[name].as_u64().unwrap_or(0) as f64;
    Ok((at(&report, "last_arrival_ns") - at(&published, "first_sent_ns")) / 1e6)
}
