//! `chaos`: clients and publishers over a network that fails, and a checker of everything that was promised.
//!
//! A server of its own, clients of all transports with one or several topics, publishers that retry, and between them
//! and the server a proxy that cuts, stalls, tears and delays. Then the network is mended, a last message goes to every
//! topic, and each client must have every message of its topics once and in order, or have been told that some are lost.
//! A failure is a message lost in silence, doubled or out of order, a gap told that was none, a message that differs from the one
//! that was published, or an answer that no client may get.

mod client;
mod crowd;
mod feed;
mod outcome;
mod play;
mod proxy;
mod track;
mod world;

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::rig::{Kind, Moment, RunArgs, Server, Setting, watch};
use crate::{report, sys};
pub use client::{Client, Met};
pub use feed::{Answer, Feed};
pub use outcome::Outcome;
use play::{Guard, joined, whole};
pub use play::{finish, opened, play, until};
use proxy::{Done, Proxy};
pub use world::{Kind as Kept, Part, Transport, World, read_payload, settings, write_payload};

/// Clients, unless told otherwise.
const CONNECTIONS: u32 = 5_000;
/// Seconds of faults, unless told otherwise.
const SECONDS: f64 = 300.0;
/// Publishes a second, unless told otherwise.
const RATE: f64 = 100.0;
/// Clients of one proxy thread, which has two descriptors for each, some of them those of ghosts.
const PER_PROXY: u32 = 8_000;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let seconds = args.duration.unwrap_or(SECONDS);
    let rate = args.rate.unwrap_or(RATE);
    let setting = Setting::new(Kind::Crore, args.shards_for(connections, 1, 2), 0);
    let mut server = Server::start_with(args, setting, &settings(args.accepts()), None)?;
    let world = World::new(args.seed, connections);
    let address = server.addresses[0];
    let before = Moment::of(&mut server)?;
    let (outcome, samples) = std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let count = connections.div_ceil(PER_PROXY);
        let guard = Guard(&world);
        let proxies: Vec<_> = (0..count)
            .map(|index| {
                let (tell, guard) = (tell.clone(), &world);
                scope.spawn(move || whole(guard, || relay(guard, address, index, &tell)))
            })
            .collect();
        drop(tell);
        let ports: Vec<SocketAddr> = told.iter().take(count as usize).collect();
        ensure!(ports.len() == count as usize, "a proxy did not start");
        let played = play(&world, &ports, connections, rate, || {
            phases(&world, &mut server, connections, seconds)
        });
        drop(guard);
        let mut done = Done::default();
        for proxy in proxies {
            done += joined(proxy)?;
        }
        let (outcome, samples) = played?;
        Ok::<_, anyhow::Error>((Outcome { done, ..outcome }, samples))
    })?;
    let after = Moment::of(&mut server)?;
    say(&outcome);
    let of_this_run = json!({
        "connections": connections,
        "shards": setting.shards,
        "seed": args.seed,
        "faults_s": seconds,
        "whole_s": after.seconds_since(&before),
        "topics": topics(&world),
        "network": outcome.done.json(),
        "server_cores_busy": after.cores_since(&before),
        "tool_cpu_s": sys::process_cpu_ns() as f64 / 1e9,
        "before": before.json(),
        "after": after.json(),
        "samples": samples,
    });
    Ok(report::with(outcome.json(&world), of_this_run))
}

fn relay(
    world: &World,
    server: SocketAddr,
    index: u32,
    tell: &mpsc::Sender<SocketAddr>,
) -> Result<Done> {
    let (proxy, address) = Proxy::new(world, server, index.into())?;
    tell.send(address).context("the run is over")?;
    proxy.run()
}

/// Opens, lets the network fail, mends it, and waits until all clients have the last message.
fn phases(
    world: &World,
    server: &mut Server,
    connections: u32,
    seconds: f64,
) -> Result<Vec<Value>> {
    opened(world, connections)?;
    report::note(&format!(
        "{connections} clients are connected; faults for {seconds} s"
    ));
    world.faults.store(true, Relaxed);
    world.feeding.store(true, Relaxed);
    let samples = watch(server, seconds)?;
    world.feeding.store(false, Relaxed);
    world.faults.store(false, Relaxed);
    let settled = until(world, || {
        world.live.load(Relaxed) == connections && Feed::all_idle(world)
    })?;
    ensure!(
        settled,
        "long after the last fault {} of {connections} clients are connected, publishers idle: {}",
        world.live.load(Relaxed),
        Feed::all_idle(world)
    );
    finish(world, connections)?;
    Ok(samples)
}

/// The number of topics of each kind, with the length of their logs.
fn topics(world: &World) -> Value {
    let count = |kind| {
        world
            .topics
            .iter()
            .filter(|topic| topic.kind == kind)
            .count()
    };
    let all = world::Kind::ALL.iter().map(|&kind| {
        let value = json!({ "topics": count(kind), "log_messages": kind.log_messages() });
        (kind.name().to_string(), value)
    });
    Value::Object(all.collect())
}

fn say(outcome: &Outcome) {
    let (met, counts) = (&outcome.seen.met, &outcome.seen.met.counts);
    report::say(&format!(
        "{} messages to clients that came back {} times after {} cuts: \
         {} lost in silence, {} doubled, {} out of order, {} corrupt, {} misdelivered\n\
         {} gaps told for {} messages, {} of them none; {} publishes acknowledged",
        counts.messages,
        met.resumed,
        outcome.done.cuts(),
        counts.silent_losses,
        counts.doubles,
        counts.disorders,
        met.corrupt,
        met.misdelivered,
        counts.told_gaps,
        counts.told_losses,
        counts.false_gaps,
        outcome.fed.acknowledged,
    ));
    outcome.say_why();
}
