//! `million`: holds a swarm of subscribers with a topic each. The scenario finds the highest rate of messages at which the latency stays
//! low, then publishes at a part of that rate for minutes while clients come and go.
//!
//! The measured memory is that of the server's end of each connection. For clients with long-poll and MQTT there is `hold`.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::rig::{RunArgs, Sample, number_at, pause, wait_for_freed_sockets};
use crate::subscribe::Protocol;
use crate::swarm::{self, Outcome, SwarmArgs, SwarmRun};
use crate::{report, sys};

/// Seconds after the opening before memory is read, so that the last handshakes are over.
const REST_S: f64 = 5.0;
/// Seconds between two messages to one client at the first rate, as in 2013.
const EVERY_S: f64 = 60.0;
/// A rate counts as kept if the 99th percentile of the latency is at most this. In 2013 the highest mean was 268 ms.
const P99_MS_MAX: f64 = 250.0;
/// The factor between two rates of the search.
const STEP: f64 = 1.25;
/// How long a rate is tried, as a share of the whole duration. The next constant is the minimum in seconds.
const TRY: f64 = 1.0 / 60.0;
const TRY_S: f64 = 3.0;
/// The share of the highest rate at which messages are then published. The highest rate was kept only for some seconds. In ten minutes
/// clients come and go, and other programs use the processor.
const SERVED: f64 = 0.7;
/// Timeout for the late messages of a rate that was not kept.
const SETTLE_NS: u64 = 120_000_000_000;
/// The windows and their shares of the duration: without disturbance; with clients that close and reconnect; with many clients that reset
/// their connections at once and reconnect.
const WINDOWS: [(&str, f64); 3] = [("calm", 0.6), ("churn", 0.2), ("tsunami", 0.2)];
/// How many clients a second close their connection, among a million clients or more. The next constant is the number of clients that reset
/// it at once. With fewer clients both numbers are smaller in proportion.
const CHURN: u32 = 1_000;
const CROWD: u32 = 100_000;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let swarm = swarm_of(args)?;
    let (connections, protocol) = (swarm.connections, swarm.protocol);
    wait_for_freed_sockets()?;
    let mut run = SwarmRun::start(&swarm)?;
    let empty = sample(&mut run)?;
    let opening_s = run.connect()?;
    pause(REST_S);
    let open = sample(&mut run)?;
    let cost = swarm::cost(connections, &empty, &open);
    let opened = connections - run.swarm.given_up_count();
    report::say(&format!(
        "{opened} of {connections} open after {opening_s:.1} s, {:.0} a second; each costs the server {:.0} B and its kernel {:.0} B",
        f64::from(opened) / opening_s,
        number_at(&cost, "/server_pss_bytes"),
        number_at(&cost, "/kernel_slab_bytes") + number_at(&cost, "/kernel_buffer_bytes"),
    ));
    let duration_s = args.duration.unwrap_or(600.0);
    let (rate, tried) = match args.rate {
        Some(rate) => (rate, Vec::new()),
        None => {
            let (first, try_s) = (f64::from(connections) / EVERY_S, duration_s * TRY);
            let (rate, tried) = highest(&mut run, first, try_s.max(TRY_S))?;
            report::say(&format!("{rate:.0} messages a second are the highest rate"));
            (rate * SERVED, tried)
        }
    };
    run.set_publish_rate(rate)?;
    let windows = windows(&mut run, connections, duration_s)?;
    let after = sample(&mut run)?;
    let outcome = run.finish()?;
    let of_this_run = json!({
        "clean": outcome.faults.is_empty(),
        "clients": "swarm",
        "transport": swarm.transport.name(),
        "shards": swarm.shards(),
        "log_messages": swarm.log_messages,
        "connections": connections,
        "protocol": protocol.name(),
        "size_bytes": swarm.message_bytes,
        "duration_s": duration_s,
        "opening_s": opening_s,
        "connects_per_s": f64::from(opened) / opening_s,
        "per_connection_open": cost,
        "per_connection_after": swarm::cost(connections, &empty, &after),
        "rate_per_s": rate,
        "rates_tried": tried,
        "windows": windows,
        "empty": empty.json(),
        "open": open.json(),
        "after": after.json(),
    });
    let result = report::merge(outcome.json.clone(), of_this_run);
    print_summary(&result, &outcome);
    Ok(result)
}

/// The options of the swarm: by default a million WebSockets.
pub fn swarm_of(args: &RunArgs) -> Result<SwarmArgs> {
    let protocol = match args.subscribe_protocol() {
        Protocol::Ws => swarm::Protocol::Ws,
        Protocol::Sse => swarm::Protocol::Sse,
        other => bail!("a swarm does not speak {}: run `hold`", other.name()),
    };
    Ok(SwarmArgs {
        server_binary: args.server_binary.clone(),
        transport: args.transport.unwrap_or_default(),
        threads: args.threads,
        shards: args.shards,
        heartbeat_s: args.heartbeat,
        log_messages: args.keep.unwrap_or(0),
        message_bytes: args.size.unwrap_or(512),
        connect_rate: args.connect_rate,
        ..SwarmArgs::with_defaults(args.connections.unwrap_or(1_000_000), protocol)
    })
}

/// Clients a second that close and reconnect, among `connections`.
pub fn churn_of(connections: u32) -> u32 {
    share(connections, CHURN)
}

/// Scales `of`, a number for a million clients, down in proportion to `connections`. Returns at most `of`.
fn share(connections: u32, of: u32) -> u32 {
    of.min((u64::from(connections) * u64::from(of) / 1_000_000) as u32)
}

/// Samples the server.
pub fn sample(run: &mut SwarmRun) -> Result<Sample> {
    run.sample()?.context("the server was started here")
}

/// Finds the highest rate that is kept: raises the rate from `first` until a rate is not kept, then lowers it until one is kept.
fn highest(run: &mut SwarmRun, first: f64, try_s: f64) -> Result<(f64, Vec<Value>)> {
    let (mut rate, mut tried, mut is_falling) = (first, Vec::new(), false);
    loop {
        if is_falling {
            // This waits until the backlog of the last rate is gone. TCP may retransmit after as much as a minute.
            run.set_publish_rate(first)?;
            let begin_ns = sys::now_ns();
            let is_late =
                |counts: &swarm::Counts| counts.tally.latency.summary().p99_ms > P99_MS_MAX;
            while is_late(&run.run_window(try_s)?) && sys::now_ns() - begin_ns < SETTLE_NS {}
        }
        run.set_publish_rate(rate)?;
        let counts = run.run_window(try_s)?;
        let p99_ms = counts.tally.latency.summary().p99_ms;
        let late_ms = run.late_ms();
        let is_kept = p99_ms <= P99_MS_MAX && (is_falling || late_ms <= P99_MS_MAX);
        tried.push(json!({
            "rate_per_s": rate, "p99_ms": p99_ms, "late_ms_max": late_ms, "kept": is_kept,
        }));
        if is_falling && (is_kept || rate < 1.0) {
            return Ok((rate, tried));
        }
        is_falling |= !is_kept;
        rate = if is_falling { rate / STEP } else { rate * STEP };
    }
}

/// Serves for the duration, and returns the results of each window.
fn windows(run: &mut SwarmRun, connections: u32, duration_s: f64) -> Result<Value> {
    let mut all = json!({});
    for (name, part) in WINDOWS {
        let before = sample(run)?;
        run.swarm.set_drop_rate(if name == "churn" {
            churn_of(connections).into()
        } else {
            0.0
        });
        if name == "tsunami" {
            run.swarm.reset_clients(share(connections, CROWD));
        }
        let counts = run.run_window(duration_s * part)?;
        let after = sample(run)?;
        let mut value = counts.json();
        value["server_cores"] = json!(after.cores_since(&before));
        value["window_s"] = json!(after.seconds_since(&before));
        value["late_ms_max"] = json!(run.late_ms());
        all[name] = value;
    }
    run.swarm.set_drop_rate(0.0);
    Ok(all)
}

/// Prints the main figures.
fn print_summary(result: &Value, outcome: &Outcome) {
    report::say(&format!(
        "{:.0} messages a second",
        number_at(result, "/rate_per_s")
    ));
    for (name, _) in WINDOWS {
        let window = &result["windows"][name];
        report::say(&format!(
            "{name}: {} messages, ms mean {:.2}, p50 {:.2}, p99 {:.2}, p99.9 {:.2}, max {:.1}; opened {}, set-up p99 {:.1} ms; server {:.2} cores",
            window["messages"],
            number_at(window, "/latency_ms/mean"),
            number_at(window, "/latency_ms/p50"),
            number_at(window, "/latency_ms/p99"),
            number_at(window, "/latency_ms/p99_9"),
            number_at(window, "/latency_ms/max"),
            window["connections"]["opened"],
            number_at(window, "/connections/setup_ms/p99"),
            number_at(window, "/server_cores"),
        ));
    }
    report::say(&outcome.verdict());
}
