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

/// Number of batches, unless the size of a batch would be outside `BATCH`.
const BATCHES: u32 = 10;
/// The minimum and maximum size of a batch. The minimum is large enough that starting the tool does not matter. The maximum fits into a
/// descriptor table whose limit cannot be raised.
const BATCH: (u32, u32) = (500, 15_000);
/// Seconds after a batch, so that the server has handled all disconnects.
const REST_S: f64 = 2.0;
/// Seconds before memory is read for the result. A server may keep memory for clients that return soon. Crore does so for half a minute.
/// This memory is not part of a session.
const CALM_S: f64 = 35.0;
/// The number of clients of each batch that reconnect at the end.
const CHECKS: u32 = 20;
/// Timeout for an answer.
const SILENCE: Duration = Duration::from_secs(10);

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
    let mut sides = Map::new();
    for kind in kinds {
        sides.insert(kind.name().into(), measure(args, kind)?);
    }
    Ok(json!({
        "clean": sides.values().all(|side| side["clean"] == true),
        "packages": versions(),
        "sides": sides,
    }))
}

/// Clients that have connected and disconnected.
struct Batch {
    /// The process id of the clients' load tool, which is part of the client ids.
    process: u32,
    count: u32,
    failed: bool,
}

fn measure(args: &RunArgs, kind: ServerKind) -> Result<Value> {
    let sessions = args.connections.unwrap_or(1_000_000);
    let size = (sessions / BATCHES).clamp(BATCH.0, BATCH.1);
    let setting = ServerOptions::new(kind, args.shards.unwrap_or(2), args.keep(Protocol::Mqtt));
    let mut server = Server::start(args, setting)?;
    let empty = Sample::of(&mut server)?;
    let (mut begun, mut batches) = (0, Vec::new());
    let mut growth = Vec::new();
    while begun < sessions {
        let count = (sessions - begun).min(size);
        batches.push(batch(args, &server, begun, count)?);
        begun += count;
        let now = Sample::of(&mut server)?;
        growth.push((begun, grown(&empty, &now)));
    }
    pause(CALM_S);
    let after = Sample::of(&mut server)?;
    let (mut checked, mut present) = (0, 0);
    for batch in &batches {
        for n in 0..batch.count.min(CHECKS) {
            let number = n * (batch.count / batch.count.min(CHECKS));
            let name = client_id(batch.process, 's', number);
            checked += 1;
            present += u32::from(is_present(args, server.addresses[0], &name)?);
        }
    }
    let cost = per_connection(sessions, &empty, &after);
    let points: Vec<_> = growth
        .iter()
        .map(|(n, bytes)| (f64::from(*n), *bytes))
        .collect();
    let (bytes_per_session, fixed) = line(&points);
    report::say(&format!(
        "{}: {sessions} sessions of absent clients with a subscription each: PSS {:.1} B a session; \
         from batch to batch {bytes_per_session:.1} B, and {:.2} MB that do not grow; {present} of {checked} were there",
        kind.name(),
        number_at(&cost, "/server_pss_bytes"),
        fixed / 1e6,
    ));
    let growth = growth.into_iter().map(|(sessions, bytes)| {
        json!({"sessions": sessions, "pss_bytes": bytes, "per_session": bytes / f64::from(sessions)})
    });
    Ok(json!({
        "clean": present == checked && batches.iter().all(|batch| !batch.failed),
        "sessions": sessions,
        "batch": size,
        "shards": setting.shards,
        "complaints": server.error_log(),
        "checked": checked,
        "present": present,
        "per_session": cost,
        "per_session_of_growth": bytes_per_session,
        "fixed_bytes_of_growth": fixed,
        "growth": growth.collect::<Vec<_>>(),
        "empty": empty.json(),
        "after": after.json(),
    }))
}

fn grown(before: &Sample, after: &Sample) -> f64 {
    after.process.pss_bytes as f64 - before.process.pss_bytes as f64
}

/// Connects `count` clients with topics from number `from` on, and disconnects them properly.
fn batch(args: &RunArgs, server: &Server, from: u32, count: u32) -> Result<Batch> {
    let first = 1_000_001 + from;
    let topics = format!("/p/s{{{first}..{}}}/-", first + count - 1);
    let addresses = local_address_pattern(count);
    let flags = ["--protocol", "mqtt", "--local", &addresses];
    let mut subscriber = Subscriber::start(args, server, count, &topics, &flags)?;
    subscriber.open()?;
    let report = subscriber.ask("part")?;
    pause(REST_S);
    Ok(Batch {
        process: subscriber.process_id(),
        count,
        failed: report["connections"]["failed"] != 0,
    })
}

/// Whether the server has a session with this client id. The session is kept.
fn is_present(args: &RunArgs, server: SocketAddr, name: &str) -> Result<bool> {
    let (dialect, mut out) = (Dialect::new(&args.mqtt, false), Vec::new());
    let mut link = Link::open(server, SILENCE)?;
    dialect.write_connect(name, &[], &mut out);
    link.send(&out)?;
    let present = loop {
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
    Ok(present)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parted_into_what_grows_and_what_does_not() {
        let points: Vec<(f64, f64)> = (1..=10)
            .map(|n| f64::from(n * 1500))
            .map(|n| (n, n * 250.0 + 4e6))
            .collect();
        let (each, fixed) = line(&points);
        assert!((each - 250.0).abs() < 1e-6 && (fixed - 4e6).abs() < 1e-3);
    }
}
