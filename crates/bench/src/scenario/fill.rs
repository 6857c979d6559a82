//! `fill`: connects clients to a server until the kernel kills it. The server is in a control group (cgroup) with little memory. The number of
//! clients is compared with the estimate of `crore doctor`.
//!
//! The doctor runs in the server's control group before the server. The clients run outside the group, so that the group is charged only
//! for the server's end of each connection. Needs root, and a host on which control groups can be created.

mod group;

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::report;
use crate::rig::{
    Directory, RunArgs, Server, ServerKind, ServerOptions, Subscriber, in_control_group,
    local_address_pattern, pause, server_program, topic_pattern,
};
use crate::subscribe::Protocol;
use group::Group;

/// The number of connects a second. At this rate the default memory is full after some ten seconds.
const RATE_PER_S: f64 = 10_000.0;
/// The number of clients that try to connect, as a multiple of the estimate. It shows even a large error of the estimate.
const CLIENTS_FACTOR: f64 = 1.4;
/// Seconds between two polls.
const POLL_S: f64 = 0.05;
/// Polls between two recorded samples.
const POLLS_PER_SAMPLE: usize = 20;
/// After this many polls without a new connection the server counts as full, even if the kernel has not killed it.
const QUIET_POLLS_MAX: usize = 200;
/// The largest accepted relative error of the estimate.
const ERROR_MAX: f64 = 0.1;
/// The minimum memory of a connection. The number of shards is computed from this.
const CONNECTION_BYTES_MIN: u64 = 3_500;

/// Runs the doctor, fills the group, and compares.
pub fn run(args: &RunArgs) -> Result<Value> {
    let protocol = args.protocol.unwrap_or(Protocol::Ws);
    let limit_bytes = u64::from(args.memory_mib) << 20;
    let connections_max = u32::try_from(limit_bytes / CONNECTION_BYTES_MIN)?;
    let options = ServerOptions::new(ServerKind::Crore, args.shards_for(connections_max, 1, 2), 0);
    let settings = format!(
        "[limits]\naccepts_per_s = {}\nconnections_max = {}\nlog_bytes = \"1 MiB\"\n\n[heartbeat]\ninterval_s = {}\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 0\npoll_timeout_s = 0\n",
        args.accepts(),
        u32::MAX - 1,
        args.heartbeat,
    );
    let group = Group::new(limit_bytes)?;
    let doctor = run_doctor(args, &group, options, &settings, protocol)?;
    let estimate = doctor["holds"].as_u64().context("the doctor's estimate")?;
    let first_bound = &doctor["binds_first"];
    ensure!(
        first_bound
            .as_str()
            .is_some_and(|name| name.contains("control group")),
        "something else than the group's memory binds first: {first_bound}"
    );
    report::note(&format!(
        "the doctor says {estimate}, and that {first_bound} binds first"
    ));

    let mut server = Server::start_with(args, options, &settings, Some(&group.members_file()))?;
    let fill_result = fill(args, &mut server, &group, protocol, estimate)?;
    drop(server);
    let is_killed = group.kill_count()? > 0;
    let connections = fill_result.connections;
    let relative_error = estimate as f64 / connections as f64 - 1.0;
    let is_clean = is_killed && relative_error.abs() <= ERROR_MAX;
    report::say(&format!(
        "{} in {} MiB: the doctor says {estimate}, {connections} were reached ({:+.1} %); {}",
        protocol.name(),
        args.memory_mib,
        relative_error * 100.0,
        if is_killed {
            "then the kernel ended the server"
        } else {
            "NOT ended by the limit"
        },
    ));
    Ok(json!({
        "clean": is_clean,
        "protocol": protocol.name(),
        "shards": options.shards,
        "limit_bytes": limit_bytes,
        "control_groups": group.version(),
        "estimate": estimate,
        "reached": connections,
        "error": relative_error,
        "killed_by_limit": is_killed,
        "binds_first": first_bound,
        "bounds": doctor["bounds"],
        "samples": fill_result.samples,
    }))
}

/// The result of a fill.
struct FillResult {
    connections: u64,
    samples: Vec<Value>,
}

/// Connects clients until the server has ended or accepts no more.
fn fill(
    args: &RunArgs,
    server: &mut Server,
    group: &Group,
    protocol: Protocol,
    estimate: u64,
) -> Result<FillResult> {
    let clients = (estimate as f64 * CLIENTS_FACTOR) as u32;
    let args = &RunArgs {
        connect_rate: args.connect_rate.or(Some(RATE_PER_S)),
        ..args.clone()
    };
    let addresses = local_address_pattern(clients);
    let flags = ["--protocol", protocol.name(), "--local", &addresses];
    let mut subscriber = Subscriber::start(args, server, clients, &topic_pattern(clients), &flags)?;
    subscriber.ask("open")?;
    let (mut connections, mut quiet_polls, mut samples) = (0, 0, Vec::new());
    for poll in 0.. {
        let used_bytes = group.used_bytes()?;
        let report = subscriber.ask("report")?;
        let open = report["connections"]["max_concurrency"]
            .as_u64()
            .context("the subscriber's report")?;
        // `max_concurrency` still counts connections whose server end is closed. So the number is right even if it is read after the server has ended.
        quiet_polls = if open > connections {
            0
        } else {
            quiet_polls + 1
        };
        connections = connections.max(open);
        if poll % POLLS_PER_SAMPLE == 0 || used_bytes > group.limit_bytes() / 100 * 98 {
            samples.push(json!({ "open": open, "used_bytes": used_bytes }));
        }
        if server.has_ended()? || quiet_polls > QUIET_POLLS_MAX {
            break;
        }
        pause(POLL_S);
    }
    Ok(FillResult {
        connections,
        samples,
    })
}

/// Runs the doctor in the group, with the server's settings. Returns its report.
fn run_doctor(
    args: &RunArgs,
    group: &Group,
    options: ServerOptions,
    settings: &str,
    protocol: Protocol,
) -> Result<Value> {
    let directory = Directory::make(format_args!("doctor-{}", std::process::id()))?;
    let file = directory.write("crore.toml", settings)?;
    let mut command = Command::new(server_program(args.server_binary.as_deref())?);
    command
        .args(["doctor", "--json", "--shards", &options.shards.to_string()])
        .args(["--protocol", doctor_protocol_name(protocol)])
        .arg("--config")
        .arg(&file);
    let output = in_control_group(&command, &group.members_file())
        .stderr(Stdio::inherit())
        .output();
    serde_json::from_slice(&output?.stdout).context("the doctor's findings")
}

/// The doctor's name of a protocol. It has one name for both kinds of MQTT.
fn doctor_protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::MqttWs => Protocol::Mqtt.name(),
        other => other.name(),
    }
}
