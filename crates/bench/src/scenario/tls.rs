//! `tls`: measures the memory of an idle connection with TLS, the cost of a handshake, and the effect of many handshakes on deliveries. The
//! peers (other servers) do the same with the same certificate and the same client.
//!
//! The cost of a handshake is the server's processor time. It cannot be measured as handshakes a second: the client needs about as much
//! processor time as the server, so on two cores the client would limit that number. The servers take turns within each round.

mod handshakes;

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use self::handshakes::{BackgroundHandshakes, Handshakes, do_handshakes};
use crate::report;
use crate::rig::{
    Audience, Certificate, Directory, Publisher, RunArgs, Sample, Server, ServerKind,
    ServerOptions, Subscriber, is_clean, local_address_pattern, number_at, pause, topic_pattern,
    versions,
};
use crate::subscribe::Protocol;

/// Default number of idle connections.
const CONNECTIONS: u32 = 10_000;
/// Handshakes of each kind in a round.
const HANDSHAKES: u32 = 1_000;
/// The number of subscribers during a storm of handshakes. The next two constants are the messages a second, and the message size.
const STORM_SUBSCRIBERS: u32 = 1_000;
const MESSAGES_PER_S: &str = "1000";
const MESSAGE_BYTES: usize = 128;
/// How many handshakes a second the storm attempts.
const STORM_PER_S: u32 = 1_000;
/// Default duration of a window, in seconds.
const WINDOW_S: f64 = 10.0;
/// Seconds of rest after connections have opened.
const SETTLE_S: f64 = 2.0;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    args.pin_tool()?;
    let directory = Directory::make(format_args!("tls-{}", std::process::id()))?;
    let args = &RunArgs {
        certificate: Some(Certificate::make(directory.path())?),
        ..args.clone()
    };
    let is_chosen = |row: &str| args.rows.is_empty() || args.rows.iter().any(|other| other == row);
    let (mut rows, mut is_clean_run) = (Map::new(), true);
    if is_chosen("idle") {
        rows.insert("idle".into(), measure_idle(args)?);
    }
    if is_chosen("handshakes") {
        rows.insert("handshakes".into(), measure_all_handshakes(args)?);
    }
    if is_chosen("storm") {
        let storm = measure_storm(args)?;
        is_clean_run = storm["clean"] == true;
        rows.insert("storm".into(), storm);
    }
    Ok(json!({ "clean": is_clean_run, "packages": versions(), "rows": rows }))
}

/// The measured servers, with their protocols.
fn measured_servers(args: &RunArgs) -> Vec<(ServerKind, Protocol)> {
    let mut servers = vec![
        (ServerKind::Crore, Protocol::Ws),
        (ServerKind::Crore, Protocol::Mqtt),
    ];
    for (kind, protocol) in [
        (ServerKind::Nchan, Protocol::Ws),
        (ServerKind::Mosquitto, Protocol::Mqtt),
    ] {
        if args.peer.contains(&kind) {
            servers.push((kind, protocol));
        }
    }
    servers
}

/// Measures the memory of idle connections with TLS and without.
fn measure_idle(args: &RunArgs) -> Result<Value> {
    let mut rows = Vec::new();
    for (kind, protocol) in measured_servers(args) {
        let with_tls = idle_cost(args, kind, protocol)?;
        let plain_args = RunArgs {
            certificate: None,
            ..args.clone()
        };
        let without_tls = idle_cost(&plain_args, kind, protocol)?;
        let bytes = |cost: &Value| number_at(cost, "/server_pss_bytes");
        report::say(&format!(
            "{} {}: PSS {:.0} B a connection with TLS, {:.0} B without",
            kind.name(),
            protocol.name(),
            bytes(&with_tls),
            bytes(&without_tls)
        ));
        rows.push(json!({
            "server": kind.name(), "protocol": protocol.name(),
            "with_tls": with_tls, "without": without_tls,
        }));
    }
    Ok(rows.into())
}

fn idle_cost(args: &RunArgs, kind: ServerKind, protocol: Protocol) -> Result<Value> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let server = Server::start(args, ServerOptions::new(kind, 1, 0))?;
    let (topics, addresses) = (
        topic_pattern(connections),
        local_address_pattern(connections),
    );
    let flags = ["--protocol", protocol.name(), "--local", &addresses];
    let audience = Audience::open(args, server, connections, &topics, &flags, SETTLE_S)?;
    let mut cost = audience.cost_open();
    cost["connections"] = json!(connections);
    cost["opening_s"] = json!(audience.opening_s);
    Ok(cost)
}

/// Measures the server's processor time of a handshake.
fn measure_all_handshakes(args: &RunArgs) -> Result<Value> {
    let kinds: Vec<ServerKind> = [ServerKind::Crore, ServerKind::Nchan, ServerKind::Mosquitto]
        .into_iter()
        .filter(|kind| *kind == ServerKind::Crore || args.peer.contains(kind))
        .collect();
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        for kind in &kinds {
            let mut server = Server::start(args, ServerOptions::new(*kind, 1, 0))?;
            let full_handshakes = measure_handshakes(args, &mut server, false)?;
            let resumed = measure_handshakes(args, &mut server, true)?;
            report::say(&format!(
                "round {}: {}: {:.0} us of a core for a full handshake, {:.0} us for a resumed one ({} of {} resumed)",
                round + 1,
                kind.name(),
                number_at(&full_handshakes, "/server_us"),
                number_at(&resumed, "/server_us"),
                resumed["resumed"],
                resumed["handshakes"],
            ));
            rounds.push(
                json!({ "server": kind.name(), "full": full_handshakes, "resumed": resumed }),
            );
        }
    }
    Ok(rounds.into())
}

fn measure_handshakes(args: &RunArgs, server: &mut Server, resumes: bool) -> Result<Value> {
    let certificate = args.certificate.as_ref().context("a certificate")?;
    let address = server.addresses[0];
    // These handshakes are not measured: the first ones allocate memory, and the client gets its first ticket by them.
    do_handshakes(address, certificate, resumes, 50)?;
    let before = server.sample()?;
    let Handshakes {
        handshakes,
        resumed,
        elapsed_s,
    } = do_handshakes(address, certificate, resumes, HANDSHAKES)?;
    pause(0.2);
    let cpu_s = server.sample()?.cpu_s - before.cpu_s;
    Ok(json!({
        "handshakes": handshakes,
        "resumed": resumed,
        "elapsed_s": elapsed_s,
        "server_us": cpu_s * 1e6 / f64::from(handshakes),
        "per_core_s": f64::from(handshakes) / cpu_s,
    }))
}

/// Measures deliveries without handshakes, then during handshakes, and without them again.
fn measure_storm(args: &RunArgs) -> Result<Value> {
    let certificate = args.certificate.clone().context("a certificate")?;
    let mut server = Server::start(args, ServerOptions::new(ServerKind::Crore, 1, 0))?;
    let topics = topic_pattern(STORM_SUBSCRIBERS);
    let flags = ["--protocol", "ws"];
    let mut subscriber = Subscriber::start(args, &server, STORM_SUBSCRIBERS, &topics, &flags)?;
    subscriber.open()?;
    let publisher_flags = ["--rate", MESSAGES_PER_S];
    let publisher = Publisher::start(args, &server, &topics, MESSAGE_BYTES, &publisher_flags)?;
    pause(SETTLE_S);
    let window_s = args.duration.unwrap_or(WINDOW_S);
    let (mut windows, mut is_clean_run) = (Map::new(), true);
    for (name, with_handshakes) in [("before", false), ("during", true), ("after", false)] {
        let storm = with_handshakes
            .then(|| BackgroundHandshakes::start(server.addresses[0], &certificate, STORM_PER_S));
        let storm = storm.transpose()?;
        std::thread::sleep(Duration::from_millis(500));
        subscriber.ask("restart")?;
        let (before, count_before) = (
            Sample::of(&mut server)?,
            storm.as_ref().map(BackgroundHandshakes::count),
        );
        pause(window_s);
        let after = Sample::of(&mut server)?;
        let count_after = storm.as_ref().map(BackgroundHandshakes::count);
        let mut report = subscriber.ask("report")?;
        drop(storm);
        let rate = count_before
            .zip(count_after)
            .map(|(count_before, count_after)| {
                (count_after - count_before) as f64 / after.seconds_since(&before)
            });
        report["server_cores_busy"] = json!(after.cores_since(&before));
        report["handshakes_per_s"] = json!(rate);
        report::say(&format!(
            "{name}: {:.0} handshakes/s, {} messages, latency p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms; server {:.2} cores",
            rate.unwrap_or(0.0),
            report["messages"],
            number_at(&report, "/latency_ms/p50"),
            number_at(&report, "/latency_ms/p99"),
            number_at(&report, "/latency_ms/max"),
            number_at(&report, "/server_cores_busy"),
        ));
        is_clean_run &= is_clean(&report) && report["connections"]["closed"] == 0;
        windows.insert(name.into(), report);
    }
    let published = publisher.stop()?;
    Ok(json!({
        "clean": is_clean_run, "subscribers": STORM_SUBSCRIBERS, "size_bytes": MESSAGE_BYTES,
        "windows": windows, "published": published,
    }))
}
