//! `drain`: restarts the server as planned while clients are connected. Clients of all transports, and publishers that retry, run as in
//! `chaos` but without a proxy. While they run, the server gets the signal to stop. The server disconnects its clients at the configured
//! rate while publishing continues, and saves its logs. A new process continues with these logs. In the end every client must have received
//! every message of its topics once and in order, and no client may have received a gap (the notice that messages are lost).

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::chaos::{
    Publishers, SharedState, deliver_last_messages, run_clients, wait_until, wait_until_open,
};
use crate::rig::{Directory, RunArgs, Sample, Server, ServerKind, ServerOptions, pause};
use crate::{report, sys};

/// Default number of clients.
const CONNECTIONS: u32 = 100_000;
/// Default number of requests to publish a second.
const RATE: f64 = 100.0;
/// Default number of clients that the server disconnects a second (`--connect-rate`).
const DISCONNECTED_PER_S: u32 = 10_000;
/// The maximum time before a disconnected client reconnects, in seconds.
const AWAY_MAX_S: u32 = 10;
/// Default duration of publishing before the stop, in seconds.
const SECONDS: f64 = 10.0;
/// Timeout for all reconnects, in multiples of the usual timeout. It is longer because all clients return at about the same time.
const TIMEOUT_FACTOR: u32 = 4;
/// Seconds from the second sample of the server to the last ordinary publish.
const SETTLE_S: f64 = 2.0;

fn settings(args: &RunArgs, rate: u32, directory: &std::path::Path) -> String {
    format!(
        "[limits]\naccepts_per_s = {}\n\n[publish]\nidempotency_keys = 1000000\n\n[drain]\nrate_per_s = {rate}\ndeadline_s = 120\n\n[state]\ndirectory = \"{}\"\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 1000000\nlog_bytes = \"256 MiB\"\npoll_timeout_s = 5\n",
        args.accepts(),
        directory.display()
    )
}

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let rate = args
        .connect_rate
        .map_or(DISCONNECTED_PER_S, |rate| rate as u32);
    let options = ServerOptions::new(ServerKind::Crore, args.shards_for(connections, 1, 2), 0);
    let state = Directory::make(format_args!("state-{}", std::process::id()))?;
    let settings = settings(args, rate, state.path());
    let mut server = Server::start_with(args, options, &settings, None)?;
    let shared = SharedState::new(args.seed, connections);
    let address = [server.addresses[0]];
    let cause_events = || run_phases(args, &shared, &mut server, connections);
    let publish_rate = args.rate.unwrap_or(RATE);
    let (outcome, phases) =
        run_clients(&shared, &address, connections, publish_rate, cause_events)?;
    let counts = &outcome.clients.totals.counts;
    report::say(&format!(
        "{} messages to {connections} clients, {} of them resumed: {} lost in silence, {} doubled, {} out of order, {} gaps told; \
         {} of {} publishes acknowledged",
        counts.messages,
        outcome.clients.totals.resumed,
        counts.silent_losses,
        counts.doubles,
        counts.disorders,
        counts.told_gaps,
        outcome.publishers.acknowledged,
        outcome.begun_publishes(&shared),
    ));
    outcome.print_faults();
    let of_this_run = json!({
        // The logs keep everything, so there must be no gap.
        "clean": outcome.is_clean(&shared) && counts.told_gaps == 0,
        "connections": connections,
        "shards": options.shards,
        "shards_after": args.shards_after,
        "rate_per_s": rate,
        "phases": phases,
    });
    Ok(report::merge(outcome.json(&shared), of_this_run))
}

/// Waits until the clients are connected, publishes, restarts the server, and waits until all clients have the last message.
fn run_phases(
    args: &RunArgs,
    shared: &SharedState,
    server: &mut Server,
    connections: u32,
) -> Result<Value> {
    wait_until_open(shared, connections)?;
    let before = Sample::of(server)?;
    shared.away_max_s.store(AWAY_MAX_S, Relaxed);
    shared.may_publish.store(true, Relaxed);
    pause(args.duration.unwrap_or(SECONDS));
    report::note(&format!("{connections} clients are moved off"));
    let start = Instant::now();
    server.terminate();
    let mut live_by_time = Vec::new();
    while !server.has_ended()? {
        ensure!(!shared.must_stop.load(Relaxed), "a thread ended");
        live_by_time.push(json!([
            start.elapsed().as_secs_f64(),
            shared.open_clients.load(Relaxed)
        ]));
        pause(0.5);
    }
    let drained_s = start.elapsed().as_secs_f64();
    match args.shards_after {
        Some(shards) => server.restart_with_shards(shards)?,
        None => server.restart()?,
    }
    let started_s = start.elapsed().as_secs_f64() - drained_s;
    report::note(&format!(
        "stopped after {drained_s:.1} s, the next one serves after {started_s:.1} s more"
    ));
    let are_clients_live = || shared.open_clients.load(Relaxed) == connections;
    // A client that finds the port closed waits before it tries again. That may happen several times.
    let mut are_all_live = false;
    for _ in 0..TIMEOUT_FACTOR {
        are_all_live = are_all_live || wait_until(shared, are_clients_live)?;
    }
    ensure!(
        are_all_live,
        "long after the restart {} of {connections} clients are connected",
        shared.open_clients.load(Relaxed)
    );
    let back_s = start.elapsed().as_secs_f64();
    let after = Sample::of(server)?;
    pause(SETTLE_S);
    shared.may_publish.store(false, Relaxed);
    ensure!(
        wait_until(shared, || Publishers::are_all_idle(shared))?,
        "publishers wait for answers"
    );
    deliver_last_messages(shared, connections)?;
    Ok(json!({
        "drained_s": drained_s,
        "next_serves_s": started_s,
        "all_back_s": back_s,
        "clients_left": live_by_time,
        "tool_cpu_s": sys::process_cpu_ns() as f64 / 1e9,
        "before": before.json(),
        "after": after.json(),
    }))
}
