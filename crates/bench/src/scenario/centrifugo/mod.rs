//! `centrifugo`: compares Crore with Centrifugo over Centrifugo's client protocol. Both have the same clients and one core.
//!
//! * `idle`: memory of connections with 1, 10 and 50 subscriptions, and of MQTT clients of Crore.
//! * `fan-out`, `presence` and `unicast`: the server's processor time of a delivery, in JSON and in protobuf (`rig/deliveries.rs`). A client publishes.
//!   `presence` is the fan-out in a channel with presence.
//! * `reconnect`: the time until all clients have reconnected and recovered the message that they missed.

pub mod clients;
pub mod frames;
mod mqtt;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use self::clients::{Clients, Connection, open_all};
use self::frames::Format;
use crate::report;
use crate::rig::{
    Directory, RunArgs, Sample, Server, ServerKind, ServerOptions, Variant, measure_deliveries,
    pause, per_connection, program, reserve_ports, topic_name,
};

/// The name of Centrifugo's program.
const PEER: &str = "centrifugo";
/// The environment variable with the path of that program.
const PEER_PATH: &str = "BENCH_CENTRIFUGO";
/// Default number of connections for `idle`, and the numbers of their subscriptions.
const IDLE_CONNECTIONS: u32 = 2_000;
const SUBSCRIPTIONS: [u32; 3] = [1, 10, 50];
/// Number of channels of the idle connections together.
const IDLE_CHANNELS: u32 = 1_000;
/// Default number of clients for `fan-out` and `unicast`.
const CLIENTS: u32 = 1_000;
/// Default number of clients for `reconnect`.
const RECONNECTING: u32 = 10_000;
/// The number of messages that a channel keeps, for `reconnect`.
const KEPT: u32 = 10;
/// Ping interval and timeout, in seconds. They are long, so that clients need not answer while another server has load.
const PING_S: u32 = 3_600;
/// Seconds of rest after clients have connected.
const SETTLE_S: f64 = 2.0;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    ensure!(args.rounds > 0, "at least one round");
    args.pin_tool()?;
    let is_chosen = |row: &str| args.rows.is_empty() || args.rows.iter().any(|other| other == row);
    let directory = Directory::make(format_args!("centrifugo-{}", std::process::id()))?;
    let mut rows = Map::new();
    if is_chosen("idle") {
        rows.insert("idle".into(), measure_idle(args, &directory)?);
    }
    for (row, is_fan_out) in [("fan-out", true), ("presence", true), ("unicast", false)] {
        if !is_chosen(row) {
            continue;
        }
        let count = args.connections.unwrap_or(CLIENTS);
        let mut variants = Vec::new();
        for format in [Format::Json, Format::Protobuf] {
            for kind in [ServerKind::Crore, ServerKind::Other] {
                let server = start_with(args, kind, 0, row == "presence", &directory)?;
                let channels = |client| vec![topic_name(is_fan_out, client)];
                let clients = Clients::open(server.addresses[0], format, count, channels)?;
                let name = format!("{}_{}", server_name(kind), format.name());
                variants.push(Variant::new(name, server, clients));
            }
        }
        pause(SETTLE_S);
        let measured = measure_deliveries(args, row, is_fan_out, count, variants)?;
        rows.insert(row.into(), measured);
    }
    if is_chosen("reconnect") {
        rows.insert("reconnect".into(), measure_reconnects(args, &directory)?);
    }
    let is_clean = rows.values().all(|row| row["clean"] != false);
    Ok(json!({ "clean": is_clean, "peer": peer_version()?, "rounds": args.rounds, "rows": rows }))
}

fn server_name(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Other => PEER,
        kind => kind.name(),
    }
}

fn peer_program() -> Result<PathBuf> {
    match std::env::var_os(PEER_PATH) {
        Some(path) => Ok(path.into()),
        None => program(PEER).with_context(|| {
            format!("install it with `go install github.com/centrifugal/centrifugo/v6@latest`, and name it in {PEER_PATH}")
        }),
    }
}

fn peer_version() -> Result<String> {
    let output = std::process::Command::new(peer_program()?)
        .arg("version")
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Starts Crore or Centrifugo. Channels keep `kept` messages, and have no presence.
fn start(args: &RunArgs, kind: ServerKind, kept: u32, directory: &Directory) -> Result<Server> {
    start_with(args, kind, kept, false, directory)
}

fn start_with(
    args: &RunArgs,
    kind: ServerKind,
    kept: u32,
    has_presence: bool,
    directory: &Directory,
) -> Result<Server> {
    if kind == ServerKind::Crore {
        let options = ServerOptions::new(kind, args.shards.unwrap_or(1), kept);
        let settings = format!(
            "[centrifugo]\nenabled = true\nping_interval_s = {PING_S}\npong_timeout_s = {PING_S}\n\n[limits]\naccepts_per_s = {}\ntopics_per_connection = 1000\n\n[[rule]]\nmatch = \"#\"\n\
             log_messages = {kept}\npresence = {has_presence}\n",
            args.accepts()
        );
        return Server::start_with(args, options, &settings, None);
    }
    let ports = reserve_ports(1)?;
    let address = ports[0].addr();
    let mut channel = json!({
        "allow_subscribe_for_client": true, "allow_subscribe_for_anonymous": true,
        "allow_publish_for_client": true, "allow_publish_for_anonymous": true,
    });
    if has_presence {
        channel["presence"] = json!(true);
        channel["join_leave"] = json!(true);
    }
    if kept > 0 {
        channel["history_size"] = json!(kept);
        channel["history_ttl"] = json!("1h");
        channel["force_recovery"] = json!(true);
    }
    let config = json!({
        "http_server": { "address": "127.0.0.1", "port": address.port() },
        "client": {
            "insecure": true, "allow_anonymous_connect_without_token": true,
            "allowed_origins": ["*"], "channel_limit": 1000, "ping_interval": format!("{PING_S}s"), "pong_timeout": format!("{}s", PING_S - 1),
        },
        "channel": { "without_namespace": channel },
        "log": { "level": "error" },
    });
    let config = directory.write(&format!("{}.json", address.port()), &config.to_string())?;
    let pinned = args.core_of_server();
    let pin = pinned.map_or(String::new(), |core| format!("taskset -c {core}"));
    let command = format!(
        "GOMAXPROCS=1 exec {pin} {} --config {} 2> {}.log",
        peer_program()?.display(),
        config.display(),
        config.display()
    );
    // The port is free now, and the peer takes it.
    drop(ports);
    Server::start_by(&command, address)
}

/// Measures the memory of connections that receive nothing.
fn measure_idle(args: &RunArgs, directory: &Directory) -> Result<Value> {
    let count = args.connections.unwrap_or(IDLE_CONNECTIONS);
    let mut row = Map::new();
    for subscriptions in SUBSCRIPTIONS {
        let channels = |client: u32| -> Vec<String> {
            let numbers = (0..subscriptions).map(|n| (client * subscriptions + n) % IDLE_CHANNELS);
            numbers.map(|number| topic_name(false, number)).collect()
        };
        for (name, kind) in [
            ("crore_json", ServerKind::Crore),
            ("crore_mqtt", ServerKind::Crore),
            ("centrifugo_json", ServerKind::Other),
        ] {
            let mut server = start(args, kind, 0, directory)?;
            let address = server.addresses[0];
            // The first connections create all channels, so that the measured connections do not include the channels' memory.
            let first = (0..IDLE_CHANNELS.div_ceil(subscriptions)).map(channels);
            let first = open_all(address, Format::Json, first)?;
            let before = Sample::of(&mut server)?;
            let (mut open, mut open_mqtt) = (Vec::<Connection>::new(), Vec::new());
            match name {
                "crore_mqtt" => open_mqtt = mqtt::open_all(address, (0..count).map(channels))?,
                _ => open = open_all(address, Format::Json, (0..count).map(channels))?,
            }
            pause(SETTLE_S);
            let after = Sample::of(&mut server)?;
            drop((first, open, open_mqtt));
            let cost = per_connection(count, &before, &after);
            report::say(&format!(
                "idle, {subscriptions} subscriptions, {name}: PSS {:.0} B for a connection",
                cost["server_pss_bytes"].as_f64().unwrap_or(f64::NAN)
            ));
            row.insert(format!("{name}_{subscriptions}"), cost);
        }
    }
    row.insert("connections".into(), json!(count));
    Ok(row.into())
}

/// Measures the time until all clients have reconnected and recovered the message that they missed.
fn measure_reconnects(args: &RunArgs, directory: &Directory) -> Result<Value> {
    let count = args.connections.unwrap_or(RECONNECTING);
    let mut row = Map::new();
    let mut is_clean = true;
    for kind in [ServerKind::Crore, ServerKind::Other] {
        let mut windows = Vec::new();
        let mut server = start(args, kind, KEPT, directory)?;
        let address = server.addresses[0];
        for _ in 0..args.rounds {
            let channels = |client| vec![topic_name(false, client)];
            let open = open_all(address, Format::Json, (0..count).map(channels))?;
            let positions: Vec<_> = open.iter().map(|it| it.positions.clone()).collect();
            drop(open);
            pause(SETTLE_S);
            let mut publisher = Clients::open(address, Format::Json, 0, channels)?;
            publisher.publish_to_each(count)?;
            drop(publisher);
            let (start, before) = (Instant::now(), server.cpu_s()?);
            let open = clients::recover_all(address, &positions)?;
            let (elapsed_s, cpu_s) = (start.elapsed().as_secs_f64(), server.cpu_s()? - before);
            let recovered = open.iter().filter(|it| it.has_recovered_one()).count();
            is_clean &= recovered == count as usize;
            drop(open);
            pause(SETTLE_S);
            report::say(&format!(
                "reconnect, {}: {recovered} of {count} recovered in {elapsed_s:.2} s, {:.0} us of the server for each",
                server_name(kind),
                cpu_s * 1e6 / f64::from(count)
            ));
            windows.push(json!({
                "recovered": recovered,
                "took_s": elapsed_s,
                "server_cpu_us": cpu_s * 1e6 / f64::from(count),
            }));
        }
        row.insert(server_name(kind).into(), windows.into());
    }
    row.insert("clients".into(), json!(count));
    row.insert("clean".into(), json!(is_clean));
    Ok(row.into())
}
