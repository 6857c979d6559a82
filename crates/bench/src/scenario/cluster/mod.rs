//! `cluster`: two nodes of a cluster and three servers of NATS, as processes of this run. Clients of all transports and publishers that retry with
//! their keys, as in chaos but without a proxy, connect to any node that takes them. A node is killed, a server of NATS is
//! killed, a node is cut off from NATS (with `--long-cuts` for up to a minute too), and all are killed, in random order.
//!
//! In the end every subscriber must have every answered message of its topics once, in order, and at the place that the publisher and all other
//! subscribers were told; a gap may be told only where the topic's log is too short. Then each node's logs are read from their beginnings.

mod course;
mod logs;
mod pauses;
mod testbed;

use anyhow::Result;
use serde_json::{Value, json};

use super::chaos::{self, Outcome, World, play};
use crate::report;
use crate::rig::{Kind, RunArgs, Setting};
use course::FaultRecord;
use testbed::{Fault, NODES};
pub use testbed::{SERVERS, Testbed};

/// Subscribers, unless told otherwise.
const CONNECTIONS: u32 = 20_000;
/// Requests to publish a second, unless told otherwise: a message of 60 kB in one of seven of them goes to 130 of 20,000 subscribers.
const RATE: f64 = 40.0;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    // Any node must have room for all of them.
    let setting = Setting::new(Kind::Crore, args.shards_for(connections, 1, 2), 0);
    let mut testbed = Testbed::make(args, setting, &chaos::settings(args.accepts()))?;
    let version = testbed.nats.version();
    let skipped = testbed.why_no_cut().map(String::from);
    if let Some(why) = &skipped {
        report::say(&format!("SKIPPED: no node is cut off from NATS: {why}"));
    }
    let times = |fault: Fault| match fault {
        _ if fault.is_cut() && skipped.is_some() => 0,
        Fault::LongCutOff => args.long_cuts,
        _ => args.rounds,
    };
    let planned = course::plan(times, args.seed);
    let world = World::new(args.seed, connections);
    let addresses = testbed.addresses();
    let course = || {
        let happened = course::run(&world, &mut testbed, &planned, args.seed, connections)?;
        let read = logs::read(&world, &addresses)?;
        Ok((happened, read))
    };
    let rate = args.rate.unwrap_or(RATE);
    let (mut outcome, (happened, read)) = play(&world, &addresses, connections, rate, course)?;
    outcome.seen.met.merge(&read);
    say(&outcome, &happened, &world);
    let of_this_run = json!({
        "nodes": NODES,
        "nats_servers": SERVERS,
        "nats_version": version,
        "connections": connections,
        "requests_per_s": rate,
        "history_mib": args.history_mib,
        "shards": setting.shards,
        "seed": args.seed,
        "no_cuts_because": skipped,
        "read_again_from_the_beginning": read.counts.messages,
        "faults": pauses::by_fault(&happened, &outcome.fed.answers),
    });
    Ok(report::with(outcome.json(&world), of_this_run))
}

fn say(outcome: &Outcome, happened: &[FaultRecord], world: &World) {
    let (met, counts) = (&outcome.seen.met, &outcome.seen.met.counts);
    report::say(&format!(
        "{} faults: {} of {} publishes answered; {} messages to subscribers that came back {} times: {} lost in silence, {} doubled, \
         {} out of order, {} at another place, {} corrupt, {} misdelivered; {} gaps told for {} messages, {} of them none",
        happened.len(),
        outcome.fed.acknowledged,
        outcome.published(world),
        counts.messages,
        met.resumed,
        counts.silent_losses,
        counts.doubles,
        counts.disorders,
        met.moved,
        met.corrupt,
        met.misdelivered,
        counts.told_gaps,
        counts.told_losses,
        counts.false_gaps,
    ));
    for (name, fault) in pauses::by_fault(happened, &outcome.fed.answers)
        .as_object()
        .into_iter()
        .flatten()
    {
        let of = |what: &str| format!("{} s ({} s)", fault[what]["p50"], fault[what]["max"]);
        report::say(&format!(
            "{name}, {} times: nobody was answered for {}, the slowest publish took {}, all were back after {}: median and longest",
            fault["times"],
            of("nobody_answered_s"),
            of("slowest_publish_s"),
            of("all_back_after_s"),
        ));
    }
    outcome.say_why();
}
