//! `chaos`: clients and publishers over a network that fails, and a checker of everything that was promised.
//!
//! A server of its own, clients of all transports with one or several topics, publishers that retry, and between them
//! and the server a proxy that cuts, stalls, tears and delays. Then the network is mended, a last message goes to every
//! topic, and each client must have every message of its topics once and in order, or have been told that some are lost.
//! A failure is a message lost in silence, doubled or out of order, a gap told that was none, a message that is not what
//! was published, or an answer that no client may get.

mod client;
mod crowd;
mod feed;
mod outcome;
mod proxy;
mod track;
mod world;

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{OnceLock, mpsc};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::rig::{Kind, Server, Setting, shards_for};
use super::{Moment, RunArgs, pause, watch};
use crate::{report, sys};
pub use crowd::Crowd;
pub use feed::Feed;
pub use outcome::Outcome;
use proxy::{Done, Proxy};
pub use world::World;

/// Clients, unless told otherwise.
const CONNECTIONS: u32 = 5_000;
/// Seconds of faults, unless told otherwise.
const SECONDS: f64 = 300.0;
/// Publishes a second, unless told otherwise.
const RATE: f64 = 100.0;
/// Clients of one proxy thread, which has two descriptors for each, some of them those of ghosts.
const PER_PROXY: u32 = 8_000;
/// Clients of one thread.
pub const PER_CROWD: u32 = 15_000;
/// How long the opening, the last acknowledgements and the last messages may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Seconds that all clients are connected before the last messages: a request may still be on its way to the home.
const REST_S: f64 = 2.0;
/// How often the main thread looks around.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let seconds = args.duration.unwrap_or(SECONDS);
    let rate = args.rate.unwrap_or(RATE);
    let setting = Setting {
        kind: Kind::Crore,
        shards: args.shards.unwrap_or(shards_for(connections, 1, 2)),
        ports: 1,
        keep: 0,
    };
    let mut server = Server::start_with(args, setting, &world::settings(args.accepts()))?;
    let world = World::new(args.seed, connections);
    let address = server.addresses[0];
    let ports = OnceLock::<Vec<SocketAddr>>::new();
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
        let ports = ports.get_or_init(|| told.iter().take(count as usize).collect());
        ensure!(ports.len() == count as usize, "a proxy did not start");
        let shared = &world;
        let crowds: Vec<_> = (0..connections)
            .step_by(PER_CROWD as usize)
            .map(|first| {
                let count = PER_CROWD.min(connections - first);
                scope
                    .spawn(move || whole(shared, || Crowd::new(shared, ports, first, count)?.run()))
            })
            .collect();
        let feed = scope.spawn(move || whole(shared, || Feed::new(shared, ports)?.run(rate)));
        let samples = phases(&world, &mut server, connections, seconds);
        drop(guard);
        let mut outcome = Outcome::default();
        for proxy in proxies {
            outcome.done.merge(&joined(proxy)?);
        }
        for crowd in crowds {
            outcome.seen.merge(joined(crowd)?);
        }
        outcome.fed = joined(feed)?;
        Ok::<_, anyhow::Error>((outcome, samples?))
    })?;
    let after = Moment::of(&mut server)?;
    say(&outcome);
    let busy_s = (after.at_ns - before.at_ns) as f64 / 1e9;
    let mut result = outcome.json(&world);
    let of_this_run = [
        ("connections", json!(connections)),
        ("shards", json!(setting.shards)),
        ("seed", json!(args.seed)),
        ("faults_s", json!(seconds)),
        ("whole_s", json!(busy_s)),
        ("topics", topics(&world)),
        ("network", outcome.done.json()),
        (
            "server_cores_busy",
            json!((after.process.cpu_s - before.process.cpu_s) / busy_s),
        ),
        ("tool_cpu_s", json!(sys::process_cpu_ns() as f64 / 1e9)),
        ("before", before.json()),
        ("after", after.json()),
        ("samples", json!(samples)),
    ];
    result.extend(of_this_run.map(|(name, value)| (name.into(), value)));
    Ok(Value::Object(result))
}

/// Ends the threads, whatever ends the run.
pub struct Guard<'a>(pub &'a World);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

/// Runs a thread's body; an error ends the others too.
pub fn whole<T>(world: &World, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = body();
    if result.is_err() {
        world.stop.store(true, Relaxed);
    }
    result
}

/// What a thread brought back.
pub fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
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

/// Opens, lets the network fail, mends it, and waits until everybody has the last message.
fn phases(
    world: &World,
    server: &mut Server,
    connections: u32,
    seconds: f64,
) -> Result<Vec<Value>> {
    let all_live = || world.live.load(Relaxed) == connections;
    ensure!(
        until(world, all_live)?,
        "only {} clients opened",
        world.live.load(Relaxed)
    );
    report::note(&format!(
        "{connections} clients are connected; faults for {seconds} s"
    ));
    world.faults.store(true, Relaxed);
    world.feeding.store(true, Relaxed);
    let samples = watch(server, seconds)?;
    world.feeding.store(false, Relaxed);
    world.faults.store(false, Relaxed);
    let settled = until(world, || all_live() && Feed::all_idle(world))?;
    ensure!(
        settled,
        "long after the last fault {} of {connections} clients are connected, publishers idle: {}",
        world.live.load(Relaxed),
        Feed::all_idle(world)
    );
    pause(REST_S);
    world.closing.store(true, Relaxed);
    pause(REST_S);
    until(world, || Feed::all_idle(world))?;
    // Whoever is not complete in time has lost something, which the tracks will say.
    until(world, || world.complete.load(Relaxed) == connections)?;
    pause(REST_S);
    Ok(samples)
}

/// Waits for something, and says whether it came in time.
pub fn until(world: &World, there: impl Fn() -> bool) -> Result<bool> {
    let begin = Instant::now();
    while !there() {
        ensure!(!world.stop.load(Relaxed), "a thread ended");
        if begin.elapsed() > PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
    Ok(true)
}

/// How many topics there are of each kind, with what their logs keep.
fn topics(world: &World) -> Value {
    let count = |kind| {
        world
            .topics
            .iter()
            .filter(|topic| topic.kind == kind)
            .count()
    };
    let all = world::Kind::ALL.into_iter().map(|kind| {
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
