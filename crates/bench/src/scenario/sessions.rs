//! `sessions`: measures the memory of an MQTT session without a connection. MQTT clients subscribe to a topic each and disconnect.
//!
//! Every server is newly started. Otherwise sessions would use memory that the allocator had kept from earlier clients, and would seem to
//! cost nothing. The clients connect in batches, so that few are connected at once. The memory of sessions grows from batch to batch, but
//! memory that connections have used and not returned does not grow. So the slope of a straight line through the measurements is the memory
//! of the sessions. At the end some clients reconnect and check that their session exists.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use crate::client::link::Link;
use crate::client::mqtt::{Dialect, Error, MqttArgs, Packet, SessionMode, client_id};
use crate::measure::stats::line;
use crate::report;
use crate::rig::{
    RunArgs, Sample, Server, ServerKind, ServerOptions, Subscriber, local_address_pattern,
    number_at, pause, per_connection, versions,
};
use crate::subscribe::Protocol;

/// Number of batches, unless the size of a batch would be outside `BATCH_CLIENTS`.
const BATCHES: u32 = 10;
/// The minimum and maximum size of a batch. The minimum is large enough that starting the tool does not matter. The maximum fits into a
/// descriptor table whose limit cannot be raised.
const BATCH_CLIENTS: (u32, u32) = (500, 15_000);
/// Seconds after a batch, so that the server has handled all disconnects.
const SETTLE_S: f64 = 2.0;
/// Seconds until memory is read for the result. A server may keep memory for clients that return soon; Crore does so for half a minute. That
/// memory is not part of a session.
const MEMORY_KEPT_S: f64 = 35.0;
/// The number of clients of each batch that reconnect at the end.
const CHECKS_PER_BATCH: u32 = 20;
/// Timeout for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Measures Crore, and Mosquitto if it is chosen with `--peer`.
pub fn run(args: &RunArgs) -> Result<Value> {
    let args = &RunArgs {
        mqtt: MqttArgs {
            session: SessionMode::Persistent,
            qos: args.mqtt.qos.max(1),
            ..args.mqtt
        },
        ..args.clone()
    };
    let mut kinds = vec![ServerKind::Crore];
    if args.peer.contains(&ServerKind::Mosquitto) {
        kinds.push(ServerKind::Mosquitto);
    }
    let mut results = Map::new();
    for kind in kinds {
        results.insert(kind.name().into(), measure(args, kind)?);
    }
    Ok(json!({
        "clean": results.values().all(|result| result["clean"] == true),
        "packages": versions(),
        "sides": results,
    }))
}

/// A batch of clients that have connected and disconnected.
struct Batch {
    /// The process id of the clients' load tool, which is part of the client ids.
    process_id: u32,
    count: u32,
    has_failures: bool,
}

fn measure(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let sessions = args.connections.unwrap_or(1_000_000);
    let size = (sessions / BATCHES).clamp(BATCH_CLIENTS.0, BATCH_CLIENTS.1);
    let options = ServerOptions::new(kind, args.shards.unwrap_or(2), args.keep(Protocol::Mqtt));
    let mut server = Server::start(args, options)?;
    let empty = Sample::of(&mut server)?;
    let (mut session_count, mut batches) = (0, Vec::new());
    let mut growth = Vec::new();
    while session_count < sessions {
        let count = (sessions - session_count).min(size);
        batches.push(run_batch(args, &server, session_count, count)?);
        session_count += count;
        let now = Sample::of(&mut server)?;
        growth.push((session_count, growth_bytes(&empty, &now)));
    }
    pause(MEMORY_KEPT_S);
    let after = Sample::of(&mut server)?;
    let (mut checked_count, mut present_count) = (0, 0);
    for batch in &batches {
        for n in 0..batch.count.min(CHECKS_PER_BATCH) {
            let number = n * (batch.count / batch.count.min(CHECKS_PER_BATCH));
            let client_id = client_id(batch.process_id, 's', number);
            checked_count += 1;
            present_count += u32::from(has_session(args, server.addresses[0], &client_id)?);
        }
    }
    let cost = per_connection(sessions, &empty, &after);
    let points: Vec<_> = growth
        .iter()
        .map(|(n, bytes)| (f64::from(*n), *bytes))
        .collect();
    let (bytes_per_session, fixed_bytes) = line(&points);
    report::say(&format!(
        "{}: {sessions} sessions of absent clients with a subscription each: PSS {:.1} B a session; \
         from batch to batch {bytes_per_session:.1} B, and {:.2} MB that do not grow; {present_count} of {checked_count} were there",
        kind.name(),
        number_at(&cost, "/server_pss_bytes"),
        fixed_bytes / 1e6,
    ));
    let growth = growth.into_iter().map(|(sessions, bytes)| {
        json!({"sessions": sessions, "pss_bytes": bytes, "per_session": bytes / f64::from(sessions)})
    });
    Ok(json!({
        "clean": present_count == checked_count && batches.iter().all(|batch| !batch.has_failures),
        "sessions": sessions,
        "batch": size,
        "shards": options.shards,
        "complaints": server.error_log(),
        "checked": checked_count,
        "present": present_count,
        "per_session": cost,
        "per_session_of_growth": bytes_per_session,
        "fixed_bytes_of_growth": fixed_bytes,
        "growth": growth.collect::<Vec<_>>(),
        "empty": empty.json(),
        "after": after.json(),
    }))
}

fn growth_bytes(before: &Sample, after: &Sample) -> f64 {
    after.process.pss_bytes as f64 - before.process.pss_bytes as f64
}

/// Connects `count` clients with topics from number `first_topic` on, and disconnects them properly.
fn run_batch(args: &RunArgs, server: &Server, first_topic: u32, count: u32) -> Result<Batch> {
    let first = 1_000_001 + first_topic;
    let topics = format!("/p/s{{{first}..{}}}/-", first + count - 1);
    let addresses = local_address_pattern(count);
    let flags = ["--protocol", "mqtt", "--local", &addresses];
    let mut subscriber = Subscriber::start(args, server, count, &topics, &flags)?;
    subscriber.open()?;
    let report = subscriber.ask("close")?;
    pause(SETTLE_S);
    Ok(Batch {
        process_id: subscriber.process_id(),
        count,
        has_failures: report["connections"]["failed"] != 0,
    })
}

/// Whether the server has a session with this client id. The session is kept.
fn has_session(args: &RunArgs, server: SocketAddr, client_id: &str) -> Result<bool> {
    let (dialect, mut out) = (Dialect::new(&args.mqtt, false), Vec::new());
    let mut link = Link::open(server, ANSWER_TIMEOUT)?;
    dialect.write_connect(client_id, &[], &mut out);
    link.send(&out)?;
    let session_present = loop {
        match dialect.parse_packet(&link.buffer) {
            Ok(None) => link.read().context("no CONNACK came")?,
            Ok(Some((
                Packet::Connack {
                    session_present, ..
                },
                _,
            ))) => break session_present,
            Ok(Some(_)) => bail!("the server began with another packet than CONNACK"),
            Err(Error::Refused(_)) => break false,
            Err(error) => return Err(error.into()),
        }
    };
    out.clear();
    dialect.write_disconnect(&mut out);
    link.send(&out)?;
    Ok(session_present)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_the_bytes_per_session_and_the_fixed_bytes() {
        let points: Vec<(f64, f64)> = (1..=10)
            .map(|n| f64::from(n * 1500))
            .map(|n| (n, n * 250.0 + 4e6))
            .collect();
        let (each, fixed_bytes) = line(&points);
        assert!((each - 250.0).abs() < 1e-6 && (fixed_bytes - 4e6).abs() < 1e-3);
    }
}
