//! `cluster-instructions`: counts the processor instructions of a delivery and of a publish at a cluster node, and compares them with a
//! server that keeps everything in memory. valgrind (`--tool=callgrind`) counts the instructions of all threads, without those of system
//! calls. So other load on the machine does not change the result.
//!
//! In a round each of the two servers runs four times: with few and with many subscribers, and each with few and with many messages in the
//! same time. With the same subscribers, the run with many messages minus the run with few messages gives the cost of a message with all
//! its deliveries. The start, the connections and periodic work cancel out. This cost with many subscribers minus the cost with few
//! subscribers gives the cost of a delivery. The cost of a message minus its deliveries is the cost of a publish without subscribers.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster::SERVERS;
use crate::measure::stats::median;
use crate::report;
use crate::rig::{
    Directory, Nats, Publisher, RunArgs, Server, ServerKind, ServerOptions, Subscriber, count_at,
    is_clean, local_address_pattern, pause, program, server_program,
};

/// Default size of a message, in bytes.
const DEFAULT_MESSAGE_BYTES: usize = 512;
/// The numbers of subscribers of the topic: few and many.
const SUBSCRIBERS: [u32; 2] = [50, 250];
/// The numbers of messages: few and many. In the default time, the interval between two messages is less than 100 ms in both cases. A shard
/// that is idle for 100 ms takes an additional turn, in which it publishes its counters (2,500 instructions). If only some intervals had
/// such a turn, the cost of a publish would vary from run to run.
const MESSAGES: [u32; 2] = [500, 1_000];
/// Default duration of publishing, in seconds.
const DEFAULT_DURATION_S: f64 = 20.0;
/// The number of times that the scenario asks for the number of delivered messages before it fails.
const POLLS_MAX: u32 = 240;
/// Seconds between two such requests.
const POLL_S: f64 = 0.5;
const TOPIC: &str = "/p/one";
/// Callgrind's output file, in the directory of the run.
const OUTPUT_FILE: &str = "callgrind.out";
/// The beginning of the line in callgrind's output file that has the total number of instructions.
const TOTAL_PREFIX: &str = "totals: ";

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let nats = Nats::start(SERVERS, Ipv4Addr::LOCALHOST, args.nats_server.as_deref())?;
    let urls = nats
        .ports()
        .iter()
        .map(|port| format!("nats://127.0.0.1:{port}"));
    let urls: Vec<String> = urls.collect();
    let cluster = |round: usize| format!("[cluster]\nname = \"round{round}\"\nurls = {urls:?}\n");
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        let in_memory = InstructionCounts::measure(args, "").context("in memory")?;
        let node = InstructionCounts::measure(args, &cluster(round)).context("a node")?;
        report::say(&format!(
            "instructions of a delivery: {:.0} in memory, {:.0} at a node, {:.3}; of a publish without subscribers: {:.0} and {:.0}",
            in_memory.delivery,
            node.delivery,
            node.delivery / in_memory.delivery,
            in_memory.publish,
            node.publish,
        ));
        rounds.push((in_memory, node));
    }
    let median_of = |value: fn(&(InstructionCounts, InstructionCounts)) -> f64| {
        median(&rounds.iter().map(value).collect::<Vec<_>>())
    };
    let rounds_json = rounds
        .iter()
        .map(|(in_memory, node)| json!({ "memory": in_memory, "node": node }));
    Ok(json!({
        "delivery": {
            "memory": median_of(|(in_memory, _)| in_memory.delivery),
            "node": median_of(|(_, node)| node.delivery),
            "ratio": median_of(|(in_memory, node)| node.delivery / in_memory.delivery),
        },
        "publish": {
            "memory": median_of(|(in_memory, _)| in_memory.publish),
            "node": median_of(|(_, node)| node.publish),
        },
        "rounds": rounds_json.collect::<Vec<_>>(),
        "subscribers": SUBSCRIBERS,
        "messages": MESSAGES,
        "window_s": args.duration.unwrap_or(DEFAULT_DURATION_S),
        "size": args.size.unwrap_or(DEFAULT_MESSAGE_BYTES),
        "nats_version": nats.version(),
    }))
}

/// The instructions of one kind of server.
#[derive(serde::Serialize)]
struct InstructionCounts {
    /// Instructions of a delivery.
    delivery: f64,
    /// Instructions of a publish without subscribers.
    publish: f64,
    /// Instructions of each whole run. The first index is few or many subscribers, the second is few or many messages.
    runs: [[u64; 2]; 2],
}

impl InstructionCounts {
    /// Measures a server with these settings.
    fn measure(args: &RunArgs, settings: &str) -> Result<InstructionCounts> {
        let mut runs = [[0; 2]; 2];
        for (runs_of_subscribers, subscribers) in runs.iter_mut().zip(SUBSCRIBERS) {
            for (total, messages) in runs_of_subscribers.iter_mut().zip(MESSAGES) {
                *total = count_instructions(args, settings, subscribers, messages)?;
            }
        }
        let [few, many] = SUBSCRIBERS.map(f64::from);
        let messages = f64::from(MESSAGES[1] - MESSAGES[0]);
        // The instructions of a message with all its deliveries, with few and with many subscribers.
        let [per_message_few, per_message_many] =
            runs.map(|[few, many]| (many as f64 - few as f64) / messages);
        let delivery = (per_message_many - per_message_few) / (many - few);
        Ok(InstructionCounts {
            delivery,
            publish: per_message_few - few * delivery,
            runs,
        })
    }
}

/// Runs a server with this many subscribers and messages, and returns its instructions from its start to its end.
fn count_instructions(
    args: &RunArgs,
    settings: &str,
    subscribers: u32,
    messages: u32,
) -> Result<u64> {
    let (size, seconds) = (
        args.size.unwrap_or(DEFAULT_MESSAGE_BYTES),
        args.duration.unwrap_or(DEFAULT_DURATION_S),
    );
    let directory = Directory::make(format_args!("callgrind-{}", std::process::id()))?;
    let server = server_program(args.server_binary.as_deref())?;
    let args = RunArgs {
        server_binary: Some(write_callgrind_script(&directory, &server)?),
        ..args.clone()
    };
    let options = ServerOptions::new(ServerKind::Crore, args.shards.unwrap_or(1), 0);
    let text = format!(
        "[limits]\naccepts_per_s = {}\n\n{settings}\n[[rule]]\nmatch = \"#\"\nlog_messages = 10\n",
        args.accepts()
    );
    let mut server = Server::start_with(&args, options, &text, None)?;
    let flags = [
        "--protocol",
        "ws",
        "--threads",
        "1",
        "--local",
        &local_address_pattern(subscribers),
    ];
    let mut subscriber = Subscriber::start(&args, &server, subscribers, TOPIC, &flags)?;
    subscriber.open()?;
    let rate = (f64::from(messages) / seconds).to_string();
    let flags = [
        "--single",
        "--rate",
        &rate,
        "--messages",
        &messages.to_string(),
    ];
    let published =
        Publisher::start_with(&args, &server, TOPIC, size, &flags)?.wait_for_result()?;
    ensure!(
        published["accepted"] == messages,
        "refused publishes: {published}"
    );
    let message_count = u64::from(subscribers) * u64::from(messages);
    let mut poll_count = 0;
    let report = loop {
        let report = subscriber.ask("report")?;
        poll_count += 1;
        if count_at(&report, "/messages") >= message_count || poll_count == POLLS_MAX {
            break report;
        }
        pause(POLL_S);
    };
    ensure!(
        is_clean(&report) && count_at(&report, "/messages") == message_count,
        "{message_count} messages were due: {report}"
    );
    drop(subscriber);
    server.terminate();
    while !server.has_ended()? {
        pause(POLL_S);
    }
    let output =
        std::fs::read_to_string(directory.path().join(OUTPUT_FILE)).context("callgrind's sum")?;
    let total = output
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(TOTAL_PREFIX));
    Ok(total.context("callgrind's sum")?.trim().parse()?)
}

/// Writes a script that runs the server under callgrind. Returns the path of the script.
fn write_callgrind_script(directory: &Directory, server: &Path) -> Result<std::path::PathBuf> {
    let valgrind = program("valgrind")
        .map_err(|_| anyhow::anyhow!("valgrind is not there; the package valgrind has it"))?;
    let output = directory.path().join(OUTPUT_FILE);
    let text = format!(
        "#!/bin/sh\nexec {valgrind:?} --quiet --tool=callgrind --callgrind-out-file={output:?} {server:?} \"$@\"\n"
    );
    let path = directory.write("counted", &text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}
