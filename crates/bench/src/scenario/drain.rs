//! `drain`: a planned restart while clients are connected. Clients of all transports and publishers that retry, as in chaos but
//! without a proxy; in the middle the server is told to stop. It moves its clients off at the set rate while publishing
//! goes on, leaves its logs, and another process goes on with them. In the end every client must have every message of its
//! topics once and in order, and no client may have been told of a loss.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::chaos::{Feed, World, finish, opened, play, until};
use crate::rig::{Directory, Kind, Moment, RunArgs, Server, Setting, pause};
use crate::{report, sys};

/// Clients, unless told otherwise.
const CONNECTIONS: u32 = 100_000;
/// Publishes a second, unless told otherwise.
const RATE: f64 = 100.0;
/// Clients moved off in a second, unless `--connect-rate` says another rate.
const MOVED_PER_S: u32 = 10_000;
/// Seconds that a client which was moved off stays away at most.
const AWAY_S: u32 = 10;
/// Seconds of publishing before the stop, unless told otherwise.
const SECONDS: f64 = 10.0;
/// How many times the usual patience all may take to come back: they are as many as in a storm.
const PATIENCES: u32 = 4;
/// Seconds from the second look at the server to the last ordinary publish.
const REST_S: f64 = 2.0;

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
    let rate = args.connect_rate.map_or(MOVED_PER_S, |rate| rate as u32);
    let setting = Setting::new(Kind::Crore, args.shards_for(connections, 1, 2), 0);
    let state = Directory::make(format_args!("state-{}", std::process::id()))?;
    let settings = settings(args, rate, state.path());
    let mut server = Server::start_with(args, setting, &settings, None)?;
    let world = World::new(args.seed, connections);
    let address = [server.addresses[0]];
    let course = || phases(args, &world, &mut server, connections);
    let publishes = args.rate.unwrap_or(RATE);
    let (outcome, phases) = play(&world, &address, connections, publishes, course)?;
    let counts = &outcome.seen.met.counts;
    report::say(&format!(
        "{} messages to {connections} clients, {} of them resumed: {} lost in silence, {} doubled, {} out of order, {} gaps told; \
         {} of {} publishes acknowledged",
        counts.messages,
        outcome.seen.met.resumed,
        counts.silent_losses,
        counts.doubles,
        counts.disorders,
        counts.told_gaps,
        outcome.fed.acknowledged,
        outcome.published(&world),
    ));
    outcome.say_why();
    let of_this_run = json!({
        // The logs keep all, so that no client may be told of a gap.
        "clean": outcome.is_clean(&world) && counts.told_gaps == 0,
        "connections": connections,
        "shards": setting.shards,
        "shards_after": args.shards_after,
        "rate_per_s": rate,
        "phases": phases,
    });
    Ok(report::with(outcome.json(&world), of_this_run))
}

/// Opens, publishes, restarts the server, and waits until all clients have the last message.
fn phases(args: &RunArgs, world: &World, server: &mut Server, connections: u32) -> Result<Value> {
    opened(world, connections)?;
    let before = Moment::of(server)?;
    world.away_s.store(AWAY_S, Relaxed);
    world.feeding.store(true, Relaxed);
    pause(args.duration.unwrap_or(SECONDS));
    report::note(&format!("{connections} clients are moved off"));
    let began = Instant::now();
    server.terminate();
    let mut left = Vec::new();
    while !server.has_ended()? {
        ensure!(!world.stop.load(Relaxed), "a thread ended");
        left.push(json!([
            began.elapsed().as_secs_f64(),
            world.live.load(Relaxed)
        ]));
        pause(0.5);
    }
    let drained_s = began.elapsed().as_secs_f64();
    match args.shards_after {
        Some(shards) => server.start_again_with(shards)?,
        None => server.start_again()?,
    }
    let started_s = began.elapsed().as_secs_f64() - drained_s;
    report::note(&format!(
        "stopped after {drained_s:.1} s, the next one serves after {started_s:.1} s more"
    ));
    let all_live = || world.live.load(Relaxed) == connections;
    // A client that found the port closed stays away once more, and perhaps again after that.
    let mut all = false;
    for _ in 0..PATIENCES {
        all = all || until(world, all_live)?;
    }
    ensure!(
        all,
        "long after the restart {} of {connections} clients are connected",
        world.live.load(Relaxed)
    );
    let back_s = began.elapsed().as_secs_f64();
    let after = Moment::of(server)?;
    pause(REST_S);
    world.feeding.store(false, Relaxed);
    ensure!(
        until(world, || Feed::all_idle(world))?,
        "publishers wait for answers"
    );
    finish(world, connections)?;
    Ok(json!({
        "drained_s": drained_s,
        "next_serves_s": started_s,
        "all_back_s": back_s,
        "clients_left": left,
        "tool_cpu_s": sys::process_cpu_ns() as f64 / 1e9,
        "before": before.json(),
        "after": after.json(),
    }))
}
