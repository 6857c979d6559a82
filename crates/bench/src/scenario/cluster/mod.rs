//! `cluster`: causes faults in a cluster of two nodes and three NATS servers, all started by this run. The clients are those of `chaos`:
//! subscribers on all transports, and publishers that retry with idempotency keys. They connect to the nodes in turn, without a proxy. The
//! faults come in random order: a node is killed, a NATS server is killed, a node is cut off from NATS (with `--long-cuts` also for up to a
//! minute), or all processes are killed.
//!
//! In the end every subscriber must have received every answered message of its topics once, in order, and with the same position as the
//! publisher and all other subscribers. A subscriber may get a gap (a notice that messages are lost) only if the topic's log dropped the
//! messages before the subscriber came back. Then the run reads each node's logs from the beginning, and checks them in the same way.
//! Further publishers do not retry, but publish a newer value at the other node (`newest_value`): each topic's last value must be the one that
//! was answered last.
//!
//! With `--sessions` some MQTT clients have durable sessions, which they continue at any node (`session_load`).

mod fault_schedule;
mod logs;
mod newest_value;
mod pauses;
mod session_load;
mod testbed;

use anyhow::Result;
use serde_json::{Value, json};

use super::chaos::{self, RunResult, SharedState, run_clients};
use super::crash::Course;
use crate::report;
use crate::rig::{RunArgs, ServerKind, ServerOptions};
use fault_schedule::FaultRecord;
use session_load::SessionLoad;
use testbed::{Fault, NODES};
pub use testbed::{SERVERS, Testbed};

/// Default number of subscribers.
const SUBSCRIBERS: u32 = 20_000;
/// Default rate of publish requests, per second. One in seven has a message of 60 kB, which 130 of 20,000 subscribers receive.
const PUBLISHES_PER_S: f64 = 40.0;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let connections = args.connections.unwrap_or(SUBSCRIBERS);
    // Each node must have room for all clients, which move to this node when the other one fails.
    let options = ServerOptions::new(ServerKind::Crore, args.shards_for(connections, 1, 2), 0);
    let settings = chaos::settings(args.accepts()) + session_load::RULES;
    let mut testbed = Testbed::make(args, options, &settings)?;
    let version = testbed.nats.version();
    let no_cut_reason = testbed.why_no_cut().map(String::from);
    if let Some(reason) = &no_cut_reason {
        report::say(&format!("SKIPPED: no node is cut off from NATS: {reason}"));
    }
    let times = |fault: Fault| match fault {
        _ if fault.is_cut() && no_cut_reason.is_some() => 0,
        Fault::LongCutOff => args.long_cuts,
        _ => args.rounds,
    };
    let planned_faults = fault_schedule::plan(times, args.seed);
    let shared = SharedState::new(args.seed, connections);
    let addresses = testbed.addresses();
    let mut session_load = SessionLoad::new(args);
    let course = Course::default();
    let cause_events = || {
        let (fault_records, newest_values) = newest_value::run(&addresses, args.seed, || {
            session_load.run(&addresses, &course, || {
                fault_schedule::run(
                    &shared,
                    &mut testbed,
                    &planned_faults,
                    args.seed,
                    connections,
                    &course.fault_changes,
                )
            })
        })?;
        session_load.check(&addresses, &fault_records);
        let reread_totals = logs::read(&shared, &addresses)?;
        Ok((fault_records, newest_values, reread_totals))
    };
    let rate = args.rate.unwrap_or(PUBLISHES_PER_S);
    let (mut outcome, (fault_records, newest_values, reread_totals)) =
        run_clients(&shared, &addresses, connections, rate, cause_events)?;
    outcome.clients.totals.merge(&reread_totals);
    print_summary(&outcome, &fault_records, &shared);
    newest_values.print();
    let sessions = session_load.result();
    sessions.print();
    let of_this_run = json!({
        "nodes": NODES,
        "nats_servers": SERVERS,
        "nats_version": version,
        "connections": connections,
        "requests_per_s": rate,
        "history_mib": args.history_mib,
        "shards": options.shards,
        "seed": args.seed,
        "no_cuts_because": no_cut_reason,
        "read_again_from_the_beginning": reread_totals.counts.messages,
        "newest_values": newest_values,
        "sessions": sessions,
        "faults": pauses::by_fault(&fault_records, &outcome.publishers.answers),
    });
    let mut result = report::merge(outcome.json(&shared), of_this_run);
    result["clean"] =
        json!(outcome.is_clean(&shared) && newest_values.is_clean() && sessions.is_clean());
    Ok(result)
}

fn print_summary(outcome: &RunResult, fault_records: &[FaultRecord], shared: &SharedState) {
    let (totals, counts) = (&outcome.clients.totals, &outcome.clients.totals.counts);
    report::say(&format!(
        "{} faults: {} of {} publishes answered; {} messages to subscribers that came back {} times: {} lost in silence, {} doubled, \
         {} out of order, {} at another place, {} corrupt, {} misdelivered; {} gaps announced, for {} lost messages; {} gaps were false",
        fault_records.len(),
        outcome.publishers.acknowledged,
        outcome.begun_publishes(shared),
        counts.messages,
        totals.resumed,
        counts.silent_losses,
        counts.doubles,
        counts.disorders,
        totals.moved,
        totals.corrupt,
        totals.misdelivered,
        counts.told_gaps,
        counts.told_losses,
        counts.false_gaps,
    ));
    for (name, fault) in pauses::by_fault(fault_records, &outcome.publishers.answers)
        .as_object()
        .into_iter()
        .flatten()
    {
        let p50_and_max =
            |field: &str| format!("{} s ({} s)", fault[field]["p50"], fault[field]["max"]);
        report::say(&format!(
            "{name}, {} times (median, and longest): nobody was answered for {}, the slowest publish took {}, all were back after {}",
            fault["times"],
            p50_and_max("nobody_answered_s"),
            p50_and_max("slowest_publish_s"),
            p50_and_max("all_back_after_s"),
        ));
    }
    outcome.print_faults();
}
