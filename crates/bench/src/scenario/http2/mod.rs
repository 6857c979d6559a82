//! `http2`: compares event streams and publishes over HTTP/2 with the same over HTTP/1.1, at one server with one shard.
//!
//! Four kinds of rows:
//!
//! * `connections`: memory of the server for connections of HTTP/2 without streams, compared with nginx and Caddy if they are installed.
//! * `idle`: memory of the server and the kernel for event streams without messages. HTTP/1.1 needs a connection for each.
//! * `fan-out` and `unicast`: the server's processor time of a delivery, over HTTP/1.1, and over HTTP/2 with several streams on a
//!   connection.
//! * `publish`: the server's processor time of a publish by `h2load`, with several requests in flight on one connection.

mod clients;
mod frames;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use self::clients::{Clients, Layout};
use crate::measure::stats::median;
use crate::rig::{
    Directory, MESSAGE_BYTES, RunArgs, Sample, Server, ServerKind, ServerOptions, Variant,
    measure_deliveries, pause, per_connection, program, reserve_ports, topic_name,
};
use crate::{report, sys};

/// Number of event streams for `idle`, unless `--connections` says otherwise.
const IDLE_STREAMS: u32 = 10_000;
/// Number of connections for `connections`.
const IDLE_CONNECTIONS: u32 = 5_000;
/// Number of event streams for `fan-out` and `unicast`.
const STREAMS: u32 = 1_000;
/// Streams of a connection, for the variants over HTTP/2.
const STREAMS_PER_CONNECTION: [u32; 2] = [10, 20];
/// Publishes of a window, and the requests in flight on a connection of `h2load`.
const PUBLISHES: u32 = 100_000;
const PUBLISHES_IN_FLIGHT: [u32; 3] = [1, 10, 100];
/// Seconds of rest after streams have opened.
const SETTLE_S: f64 = 2.0;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    ensure!(args.rounds > 0, "at least one round");
    args.pin_tool()?;
    let is_chosen = |row: &str| args.rows.is_empty() || args.rows.iter().any(|other| other == row);
    let mut rows = Map::new();
    if is_chosen("connections") {
        rows.insert("connections".into(), measure_connections(args)?);
    }
    if is_chosen("idle") {
        rows.insert("idle".into(), measure_idle(args)?);
    }
    for (name, is_fan_out) in [("fan-out", true), ("unicast", false)] {
        if is_chosen(name) {
            rows.insert(name.into(), measure_row(args, name, is_fan_out)?);
        }
    }
    if is_chosen("publish") {
        rows.insert("publish".into(), measure_publishes(args)?);
    }
    let is_clean = rows.values().all(|row| row["clean"] != false);
    Ok(json!({ "clean": is_clean, "rounds": args.rounds, "rows": rows }))
}

/// HTTP/1.1, and HTTP/2 with different numbers of streams on a connection.
fn variants(streams: u32) -> impl Iterator<Item = (String, Layout)> {
    let over_http2 = STREAMS_PER_CONNECTION.into_iter().map(move |on_each| {
        let layout = Layout {
            streams,
            on_each_connection: Some(on_each),
        };
        (format!("http2_{on_each}_streams"), layout)
    });
    let over_http1 = Layout {
        streams,
        on_each_connection: None,
    };
    std::iter::once(("http1".into(), over_http1)).chain(over_http2)
}

fn start_server(args: &RunArgs) -> Result<Server> {
    let options = ServerOptions::new(ServerKind::Crore, args.shards.unwrap_or(1), 0);
    let settings = format!(
        "[http]\nh2_cleartext = true\n\n[limits]\naccepts_per_s = {}\n\n[heartbeat]\ninterval_s = 0\n\n[[rule]]\nmatch = \"#\"\n\
         log_messages = 0\n",
        args.accepts()
    );
    Server::start_with(args, options, &settings, None)
}

/// Measures the memory of connections that have had one short request and now have no streams.
fn measure_connections(args: &RunArgs) -> Result<Value> {
    let connections = args.connections.unwrap_or(IDLE_CONNECTIONS);
    let directory = Directory::make(format_args!("http2-peers-{}", std::process::id()))?;
    let mut row = Map::new();
    for name in ["crore", "nginx", "caddy"] {
        let mut server = match name {
            "crore" => start_server(args)?,
            peer => match start_peer(peer, &directory)? {
                Some(server) => server,
                None => {
                    report::say(&format!("connections: {peer} is not installed"));
                    continue;
                }
            },
        };
        let before = Sample::of(&mut server)?;
        let open = clients::open_idle(server.addresses[0], connections)?;
        pause(SETTLE_S);
        let after = Sample::of(&mut server)?;
        drop(open);
        let cost = per_connection(connections, &before, &after);
        report::say(&format!(
            "connections, {name}: PSS {:.0} B for a connection",
            cost["server_pss_bytes"].as_f64().unwrap_or(f64::NAN)
        ));
        row.insert(name.into(), cost);
    }
    row.insert("connections".into(), json!(connections));
    Ok(row.into())
}

/// Starts another server that answers every request with one byte, over HTTP/2 without TLS. `None` if it is not installed.
fn start_peer(name: &str, directory: &Directory) -> Result<Option<Server>> {
    if program(name).is_err() {
        return Ok(None);
    }
    let ports = reserve_ports(1)?;
    let address = ports[0].addr();
    let place = directory.path().display();
    let command = if name == "nginx" {
        let user = if sys::is_root() { "user root;" } else { "" };
        let config = format!(
            "daemon off;\n{user}\nworker_processes 1;\npid {place}/nginx.pid;\nerror_log {place}/nginx.log crit;\n\
             events {{ worker_connections 20000; }}\nhttp {{\naccess_log off;\nkeepalive_timeout 1h;\n\
             server {{ listen {address} http2 backlog=4096; location / {{ return 200 x; }} }}\n}}\n"
        );
        let config = directory.write("nginx.conf", &config)?;
        format!(
            "exec nginx -e {place}/nginx.log -p {place} -c {}",
            config.display()
        )
    } else {
        let config = format!(
            "{{\nadmin off\nauto_https off\nservers {{\nprotocols h1 h2c\n}}\n}}\nhttp://{address} {{\nrespond x\n}}\n"
        );
        let config = directory.write("Caddyfile", &config)?;
        format!(
            "exec caddy run --adapter caddyfile --config {} 2> {place}/caddy.log",
            config.display()
        )
    };
    // The port is free now, and the peer takes it.
    drop(ports);
    Ok(Some(Server::start_by(&command, address)?))
}

/// Measures the memory of event streams that receive nothing, each with its own topic.
fn measure_idle(args: &RunArgs) -> Result<Value> {
    let streams = args.connections.unwrap_or(IDLE_STREAMS);
    let mut row = Map::new();
    for (name, layout) in variants(streams) {
        let mut server = start_server(args)?;
        let before = Sample::of(&mut server)?;
        let clients = Clients::open(server.addresses[0], layout, |stream| {
            topic_name(false, stream)
        })?;
        pause(SETTLE_S);
        let after = Sample::of(&mut server)?;
        drop(clients);
        let cost = per_connection(streams, &before, &after);
        report::say(&format!(
            "idle, {name}: PSS {:.0} B of the server and {:.0} B of the kernel (both ends) for a stream",
            cost["server_pss_bytes"].as_f64().unwrap_or(f64::NAN),
            cost["kernel_both_ends_slab_bytes"]
                .as_f64()
                .unwrap_or(f64::NAN),
        ));
        row.insert(name, cost);
    }
    row.insert("streams".into(), json!(streams));
    Ok(row.into())
}

/// Measures the processor time of a delivery: of messages that all streams receive (`is_fan_out`), or of messages that one stream receives.
fn measure_row(args: &RunArgs, row: &str, is_fan_out: bool) -> Result<Value> {
    let streams = args.connections.unwrap_or(STREAMS);
    let mut all = Vec::new();
    for (name, layout) in variants(streams) {
        let server = start_server(args)?;
        let topic_of = |stream| topic_name(is_fan_out, stream);
        let clients = Clients::open(server.addresses[0], layout, topic_of)?;
        all.push(Variant::new(name, server, clients));
    }
    pause(SETTLE_S);
    measure_deliveries(args, row, is_fan_out, streams, all)
}

/// Measures the processor time of a publish, over HTTP/1.1 with pipelining and over HTTP/2 with streams.
fn measure_publishes(args: &RunArgs) -> Result<Value> {
    let mut server = start_server(args)?;
    let directory = Directory::make(format_args!("http2-{}", std::process::id()))?;
    let size = args.size.unwrap_or(MESSAGE_BYTES);
    directory.write("message", &"x".repeat(size))?;
    let file = directory.path().join("message");
    let mut windows: Map<String, Value> = Map::new();
    for _ in 0..args.rounds {
        for in_flight in PUBLISHES_IN_FLIGHT {
            for (name, flag) in [("http1", Some("--h1")), ("http2", None)] {
                let (start, before) = (Instant::now(), server.cpu_s()?);
                let mut command = Command::new("h2load");
                command.args(["-n", &PUBLISHES.to_string(), "-c", "1", "-m"]);
                command.arg(in_flight.to_string()).arg("-d").arg(&file);
                command.args(flag).arg(publish_url(server.addresses[0]));
                let output = command
                    .output()
                    .context("h2load (package nghttp2-client)")?;
                let text = String::from_utf8_lossy(&output.stdout);
                let (elapsed_s, cpu_s) = (start.elapsed().as_secs_f64(), server.cpu_s()? - before);
                let is_clean = text.contains(&format!("{PUBLISHES} succeeded"));
                ensure!(is_clean, "h2load: {text}");
                let window = json!({
                    "publishes_per_s": f64::from(PUBLISHES) / elapsed_s,
                    "server_cpu_us": cpu_s * 1e6 / f64::from(PUBLISHES),
                });
                let key = format!("{name}_{in_flight}");
                let of_key = windows.entry(key).or_insert_with(|| json!([]));
                of_key.as_array_mut().expect("an array").push(window);
            }
        }
    }
    let mut row = Map::new();
    for (key, windows) in windows {
        let values = |field: &str| -> Vec<f64> {
            let windows = windows.as_array().into_iter().flatten();
            windows
                .filter_map(|window| window[field].as_f64())
                .collect()
        };
        let (cpu_us, rate) = (
            median(&values("server_cpu_us")),
            median(&values("publishes_per_s")),
        );
        report::say(&format!(
            "publish, {key} in flight: {cpu_us:.2} us a publish, {rate:.0}/s"
        ));
        row.insert(
            key,
            json!({ "server_cpu_us_median": cpu_us, "publishes_per_s_median": rate, "windows": windows }),
        );
    }
    row.insert("size".into(), json!(size));
    Ok(row.into())
}

fn publish_url(server: SocketAddr) -> String {
    format!("http://{server}/pub/t/published")
}
