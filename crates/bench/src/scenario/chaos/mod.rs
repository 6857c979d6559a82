//! `chaos`: runs clients and publishers over a failing network, and checks that the server keeps every promise.
//!
//! Clients of all transports with one or several topics, and publishers that retry, connect through a proxy. The proxy cuts, stalls and
//! delays connections, and passes bytes in small pieces. Then the faults end, and a last message is published to every topic. Each client
//! must have received every message of its topics once and in order, or a gap (a notice that messages are lost) in place of the missing
//! messages. The run fails if a message is lost without a gap, duplicated, out of order or altered, if a gap is false, or if an answer
//! violates the protocol.

mod client;
mod client_thread;
mod proxy;
mod publishers;
mod run_result;
mod sequence_check;
mod shared_state;
mod threads;

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::rig::{RunArgs, Sample, Server, ServerKind, ServerOptions, watch};
use crate::{report, sys};
pub use client::{Client, ClientTotals};
use proxy::{Proxy, ProxyCounts};
pub use publishers::{Answer, Publishers};
pub use run_result::RunResult;
pub use shared_state::{
    ClientPlan, Retention, SharedState, Transport, read_payload, settings, write_payload,
};
use threads::{StopOnDrop, join, stop_all_on_error};
pub use threads::{deliver_last_messages, run_clients, wait_until, wait_until_open};

/// Default number of clients.
const CONNECTIONS: u32 = 5_000;
/// Default duration of the faults, in seconds.
const SECONDS: f64 = 300.0;
/// Default number of requests to publish a second.
const RATE: f64 = 100.0;
/// The maximum number of clients of one proxy thread. Each client needs two descriptors, and more while half-cut connections remain.
const PER_PROXY: u32 = 8_000;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let seconds = args.duration.unwrap_or(SECONDS);
    let rate = args.rate.unwrap_or(RATE);
    let setting = ServerOptions::new(ServerKind::Crore, args.shards_for(connections, 1, 2), 0);
    let mut server = Server::start_with(args, setting, &settings(args.accepts()), None)?;
    let shared = SharedState::new(args.seed, connections);
    let address = server.addresses[0];
    let before = Sample::of(&mut server)?;
    let (outcome, samples) = std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let count = connections.div_ceil(PER_PROXY);
        let guard = StopOnDrop(&shared);
        let proxies: Vec<_> = (0..count)
            .map(|index| {
                let (tell, guard) = (tell.clone(), &shared);
                scope
                    .spawn(move || stop_all_on_error(guard, || relay(guard, address, index, &tell)))
            })
            .collect();
        drop(tell);
        let ports: Vec<SocketAddr> = told.iter().take(count as usize).collect();
        ensure!(ports.len() == count as usize, "a proxy did not start");
        let played = run_clients(&shared, &ports, connections, rate, || {
            phases(&shared, &mut server, connections, seconds)
        });
        drop(guard);
        let mut done = ProxyCounts::default();
        for proxy in proxies {
            done += join(proxy)?;
        }
        let (outcome, samples) = played?;
        Ok::<_, anyhow::Error>((
            RunResult {
                proxies: done,
                ..outcome
            },
            samples,
        ))
    })?;
    let after = Sample::of(&mut server)?;
    say(&outcome);
    let of_this_run = json!({
        "connections": connections,
        "shards": setting.shards,
        "seed": args.seed,
        "faults_s": seconds,
        "whole_s": after.seconds_since(&before),
        "topics": topics(&shared),
        "network": outcome.proxies.json(),
        "server_cores_busy": after.cores_since(&before),
        "tool_cpu_s": sys::process_cpu_ns() as f64 / 1e9,
        "before": before.json(),
        "after": after.json(),
        "samples": samples,
    });
    Ok(report::with(outcome.json(&shared), of_this_run))
}

fn relay(
    shared: &SharedState,
    server: SocketAddr,
    index: u32,
    tell: &mpsc::Sender<SocketAddr>,
) -> Result<ProxyCounts> {
    let (proxy, address) = Proxy::new(shared, server, index.into())?;
    tell.send(address).context("the run is over")?;
    proxy.run()
}

/// Opens the clients, enables and disables the faults, and waits until all clients have the last messages.
fn phases(
    shared: &SharedState,
    server: &mut Server,
    connections: u32,
    seconds: f64,
) -> Result<Vec<Value>> {
    wait_until_open(shared, connections)?;
    report::note(&format!(
        "{connections} clients are connected; faults for {seconds} s"
    ));
    shared.faults.store(true, Relaxed);
    shared.publishing.store(true, Relaxed);
    let samples = watch(server, seconds)?;
    shared.publishing.store(false, Relaxed);
    shared.faults.store(false, Relaxed);
    let settled = wait_until(shared, || {
        shared.live.load(Relaxed) == connections && Publishers::all_idle(shared)
    })?;
    ensure!(
        settled,
        "long after the last fault {} of {connections} clients are connected, publishers idle: {}",
        shared.live.load(Relaxed),
        Publishers::all_idle(shared)
    );
    deliver_last_messages(shared, connections)?;
    Ok(samples)
}

/// The number of topics of each kind and the length of their logs, for the result.
fn topics(shared: &SharedState) -> Value {
    let count = |kind| {
        shared
            .topics
            .iter()
            .filter(|topic| topic.kind == kind)
            .count()
    };
    let all = Retention::ALL.iter().map(|&kind| {
        let value = json!({ "topics": count(kind), "log_messages": kind.log_messages() });
        (kind.name().to_string(), value)
    });
    Value::Object(all.collect())
}

fn say(outcome: &RunResult) {
    let (totals, counts) = (&outcome.clients.totals, &outcome.clients.totals.counts);
    report::say(&format!(
        "{} messages to clients that came back {} times after {} cuts: \
         {} lost in silence, {} doubled, {} out of order, {} corrupt, {} misdelivered\n\
         {} gaps told for {} messages, {} of them none; {} publishes acknowledged",
        counts.messages,
        totals.resumed,
        outcome.proxies.cuts(),
        counts.silent_losses,
        counts.doubles,
        counts.disorders,
        totals.corrupt,
        totals.misdelivered,
        counts.told_gaps,
        counts.told_losses,
        counts.false_gaps,
        outcome.publishers.acknowledged,
    ));
    outcome.print_faults();
}
