//! `chaos`: runs clients and publishers over a failing network, and checks that the server keeps every promise.
//!
//! Clients of all transports with one or several topics, clients of Centrifugo's protocol that also subscribe and unsubscribe at random, and publishers
//! that retry, connect through a proxy. The proxy cuts, stalls and delays connections, and passes bytes in small pieces. When the faults end, the
//! publishers publish a last message to every topic. Each client must have received every message of its topics once and in order, or a gap (a notice
//! that messages are lost) in place of missing messages. The run fails if a message is lost without a gap, duplicated, out of order or altered, if a gap
//! is false, or if an answer violates the protocol.

mod centrifugo;
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
    ClientPlan, Protocol, Retention, SharedState, Transport, read_payload, settings, write_payload,
};
use threads::{StopOnDrop, join, stop_all_on_error};
pub use threads::{deliver_last_messages, run_clients, wait_until, wait_until_open};

/// Default number of clients.
const CONNECTIONS: u32 = 5_000;
/// Default duration of the faults, in seconds.
const SECONDS: f64 = 300.0;
/// Default number of requests to publish a second.
const RATE: f64 = 100.0;
/// One in this many clients speaks Centrifugo's protocol.
const CENTRIFUGO_EVERY: u32 = 4;
/// The maximum number of clients of one proxy thread. Each client needs two descriptors, and more while connections remain of which only one
/// side is closed.
const CLIENTS_PER_PROXY_MAX: u32 = 8_000;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let seconds = args.duration.unwrap_or(SECONDS);
    let rate = args.rate.unwrap_or(RATE);
    let options = ServerOptions::new(ServerKind::Crore, args.shards_for(connections, 1, 2), 0);
    let settings = settings(args.accepts()) + "\n[centrifugo]\nenabled = true\n";
    let mut server = Server::start_with(args, options, &settings, None)?;
    let mut shared = SharedState::new(args.seed, connections);
    shared.first_centrifugo = Some(connections - connections / CENTRIFUGO_EVERY);
    let address = server.addresses[0];
    let before = Sample::of(&mut server)?;
    let (outcome, samples) = std::thread::scope(|scope| {
        let (address_sender, addresses) = mpsc::channel();
        let count = connections.div_ceil(CLIENTS_PER_PROXY_MAX);
        let guard = StopOnDrop(&shared);
        let proxies: Vec<_> = (0..count)
            .map(|index| {
                let (address_sender, guard) = (address_sender.clone(), &shared);
                scope.spawn(move || {
                    stop_all_on_error(guard, || run_proxy(guard, address, index, &address_sender))
                })
            })
            .collect();
        drop(address_sender);
        let proxy_addresses: Vec<SocketAddr> = addresses.iter().take(count as usize).collect();
        ensure!(
            proxy_addresses.len() == count as usize,
            "a proxy did not start"
        );
        let result = run_clients(&shared, &proxy_addresses, connections, rate, || {
            run_phases(&shared, &mut server, connections, seconds)
        });
        drop(guard);
        let mut proxy_counts = ProxyCounts::default();
        for proxy in proxies {
            proxy_counts += join(proxy)?;
        }
        let (outcome, samples) = result?;
        Ok::<_, anyhow::Error>((
            RunResult {
                proxies: proxy_counts,
                ..outcome
            },
            samples,
        ))
    })?;
    let after = Sample::of(&mut server)?;
    print_summary(&outcome);
    let of_this_run = json!({
        "connections": connections,
        "centrifugo_connections": connections / CENTRIFUGO_EVERY,
        "shards": options.shards,
        "seed": args.seed,
        "faults_s": seconds,
        "whole_s": after.seconds_since(&before),
        "topics": topics_json(&shared),
        "network": outcome.proxies.json(),
        "server_cores_busy": after.cores_since(&before),
        "tool_cpu_s": sys::process_cpu_ns() as f64 / 1e9,
        "before": before.json(),
        "after": after.json(),
        "samples": samples,
    });
    Ok(report::merge(outcome.json(&shared), of_this_run))
}

fn run_proxy(
    shared: &SharedState,
    server: SocketAddr,
    index: u32,
    address_sender: &mpsc::Sender<SocketAddr>,
) -> Result<ProxyCounts> {
    let (proxy, address) = Proxy::new(shared, server, index.into())?;
    address_sender.send(address).context("the run is over")?;
    proxy.run()
}

/// Opens the clients, enables and disables the faults, and waits until all clients have the last messages.
fn run_phases(
    shared: &SharedState,
    server: &mut Server,
    connections: u32,
    seconds: f64,
) -> Result<Vec<Value>> {
    wait_until_open(shared, connections)?;
    report::note(&format!(
        "{connections} clients are connected; faults for {seconds} s"
    ));
    shared.has_faults.store(true, Relaxed);
    shared.may_publish.store(true, Relaxed);
    let samples = watch(server, seconds)?;
    shared.may_publish.store(false, Relaxed);
    shared.has_faults.store(false, Relaxed);
    let are_all_ready = wait_until(shared, || {
        shared.open_clients.load(Relaxed) == connections && Publishers::are_all_idle(shared)
    })?;
    ensure!(
        are_all_ready,
        "long after the last fault {} of {connections} clients are connected, publishers idle: {}",
        shared.open_clients.load(Relaxed),
        Publishers::are_all_idle(shared)
    );
    deliver_last_messages(shared, connections)?;
    Ok(samples)
}

/// The number of topics of each kind and the length of their logs, for the result.
fn topics_json(shared: &SharedState) -> Value {
    let count = |retention| {
        shared
            .topics
            .iter()
            .filter(|topic| topic.retention == retention)
            .count()
    };
    let all = Retention::ALL.iter().map(|&retention| {
        let value = json!({ "topics": count(retention), "log_messages": retention.log_messages() });
        (retention.name().to_string(), value)
    });
    Value::Object(all.collect())
}

fn print_summary(outcome: &RunResult) {
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
