//! `durable-soak`: measures the highest rate of durable publishes, then publishes at half of it, always to new topics, and kills the server every
//! minute. After each minute it records disk usage, memory and the time of the next start; a reader must see that none of the three grows. The
//! messages that were answered last before a kill must still exist after it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::crash::topic_info;
use super::recovery::{post, size_of_all};
use crate::client::link::Link;
use crate::report;
use crate::rig::{Directory, RunArgs, Server, ServerKind, ServerOptions};

/// Default duration of the run, in seconds.
const DURATION_S: f64 = 900.0;
/// Seconds between two kills.
const KILL_INTERVAL_S: f64 = 60.0;
/// Seconds of full-speed publishing that measure the highest rate.
const MAX_RATE_PROBE_S: f64 = 10.0;
/// Default size of a message, in bytes.
const MESSAGE_BYTES: usize = 512;
/// Messages in a batch.
const BATCH: u64 = 64;
/// The number of messages that are sent to a topic before the next topic is used.
const MESSAGES_PER_TOPIC: u64 = 8;
/// Number of publishing connections. Each has one batch in flight.
const WRITERS: u64 = 4;
/// Default number of shards.
const SHARDS: u32 = 2;
/// Timeout for an answer, and for a start.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The rules. Messages are dropped when space runs out, or by age. The age limit is longer than a start takes, so that messages from before
/// a kill can be checked after the start. The topics of dropped messages are deleted soon afterwards.
const RULES: &str =
    "[[rule]]\nmatch = \"#\"\nlog_messages = 16\nlog_age_s = 90\nposition_age_s = 5\n";

/// The counts of a publisher.
#[derive(Clone, Copy, Default)]
struct WriterCounts {
    /// Batches that were started.
    started: u64,
    /// Batches of which every message was accepted.
    accepted: u64,
    /// The number of the last such batch.
    last_accepted: Option<u64>,
    /// Messages (lines of batches) that were refused.
    refused: u64,
}

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let directory = Directory::make(format_args!("durable-soak-{}", std::process::id()))?;
    let state = directory.path().join("state");
    let settings = format!(
        "[limits]\naccepts_per_s = {}\nlog_bytes = \"64 MiB\"\ntopics_per_address_per_s = 0\n\n[state]\ndirectory = \"{}\"\nbytes_max = \"1 GiB\"\n\n{RULES}",
        args.accepts(),
        state.display()
    );
    let shards = args.shards.unwrap_or(SHARDS);
    let options = ServerOptions::new(ServerKind::Crore, shards, 0);
    let mut server = Server::start_with(args, options, &settings, None)?;
    let size = args.size.unwrap_or(MESSAGE_BYTES);
    let mut writers = [WriterCounts::default(); WRITERS as usize];
    let max_rate = run_load(
        &mut server,
        &mut writers,
        size,
        MAX_RATE_PROBE_S,
        0.0,
        |_| Ok(()),
    )?
    .0;
    let pause_s = (WRITERS * BATCH) as f64 / (max_rate / 2.0);
    let duration_s = args.duration.unwrap_or(DURATION_S);
    let rounds = (duration_s / KILL_INTERVAL_S).ceil().max(1.0) as u32;
    let (mut rows, mut incomplete) = (Vec::new(), 0);
    for round in 1..=rounds {
        let measure = |server: &mut Server| {
            let measured = (server.sample()?.rss_bytes, size_of_all(&state)?);
            server.kill();
            Ok(measured)
        };
        let (rate, (memory, disk)) = run_load(
            &mut server,
            &mut writers,
            size,
            KILL_INTERVAL_S,
            pause_s,
            measure,
        )?;
        let start_s = server.timed_restart(shards, TIMEOUT)?;
        incomplete += count_incomplete_topics(server.addresses[0], &writers)?;
        report::note(&format!(
            "minute {round} of {rounds}: {rate:.0} messages/s, {:.0} MB on disk, {:.0} MB of memory, the next start took {start_s:.2} s",
            disk as f64 / 1e6,
            memory as f64 / 1e6,
        ));
        rows.push(json!({
            "rate_per_s": rate, "disk_bytes": disk, "memory_bytes": memory, "start_s": start_s,
        }));
    }
    Ok(report_result(
        &rows, &writers, max_rate, incomplete, size, &state,
    ))
}

/// Prints and returns the result.
fn report_result(
    rows: &[Value],
    writers: &[WriterCounts],
    max_rate: f64,
    incomplete: u64,
    size: usize,
    state: &Path,
) -> Value {
    let refused: u64 = writers.iter().map(|it| it.refused).sum();
    let answered: u64 = writers.iter().map(|it| it.accepted * BATCH).sum();
    report::say(&format!(
        "{} kills: {answered} messages answered, {refused} refused, {incomplete} topics without their last messages; {max_rate:.0}/s would be possible",
        rows.len(),
    ));
    for name in ["rate_per_s", "disk_bytes", "memory_bytes", "start_s"] {
        let third = rows.len().div_ceil(3);
        let mean = |rows: &[Value]| {
            let sum: f64 = rows.iter().filter_map(|row| row[name].as_f64()).sum();
            sum / rows.len() as f64
        };
        let (first, last) = (mean(&rows[..third]), mean(&rows[rows.len() - third..]));
        report::say(&format!(
            "{name}: {first:.2} in the first third, {last:.2} in the last"
        ));
    }
    json!({
        "clean": incomplete == 0 && refused == 0,
        "lives": rows,
        "life_s": KILL_INTERVAL_S,
        "possible_per_s": max_rate,
        "answered": answered,
        "refused": refused,
        "topics_without_their_last_messages": incomplete,
        "disk_bytes_at_the_end": size_of_all(state).unwrap_or(0),
        "size": size,
    })
}

/// Publishes for `seconds`, then calls `at_end` while publishing continues. Each connection begins a batch every `pause_s` seconds, or later if the
/// answer takes longer. Returns answered messages a second, and the result of `at_end`.
fn run_load<T>(
    server: &mut Server,
    writers: &mut [WriterCounts],
    size: usize,
    seconds: f64,
    pause_s: f64,
    at_end: impl FnOnce(&mut Server) -> Result<T>,
) -> Result<(f64, T)> {
    let (address, stop) = (server.addresses[0], AtomicBool::new(false));
    let count = |writers: &[WriterCounts]| writers.iter().map(|it| it.accepted).sum::<u64>();
    let (before, begin) = (count(writers), Instant::now());
    let pause = Duration::from_secs_f64(pause_s);
    let at_end_result = std::thread::scope(|scope| {
        for (writer, counts) in (0..).zip(&mut *writers) {
            let stop = &stop;
            scope.spawn(move || publish(address, writer, size, pause, counts, stop));
        }
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let at_end_result = at_end(server);
        stop.store(true, Relaxed);
        at_end_result
    })?;
    let batches = count(writers) - before;
    let rate = (batches * BATCH) as f64 / begin.elapsed().as_secs_f64();
    Ok((rate, at_end_result))
}

/// Publishes batches to new topics until `stop` is set or the server is gone.
fn publish(
    address: SocketAddr,
    writer: u64,
    size: usize,
    pause: Duration,
    counts: &mut WriterCounts,
    stop: &AtomicBool,
) {
    let Ok(mut link) = Link::open(address, TIMEOUT) else {
        return;
    };
    let mut next = Instant::now();
    let mut body = String::new();
    while !stop.load(Relaxed) {
        let number = counts.started;
        counts.started += 1;
        body.clear();
        for message in number * BATCH..(number + 1) * BATCH {
            let topic = topic(writer, message);
            let _ = writeln!(
                body,
                "{{\"topic\":\"{topic}\",\"data\":\"{message:0size$}\"}}"
            );
        }
        match post(&mut link, address, &body) {
            Ok(0) => {
                counts.accepted += 1;
                counts.last_accepted = Some(number);
            }
            Ok(refused) => counts.refused += refused,
            Err(_) => return,
        }
        next += pause;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn topic(writer: u64, message: u64) -> String {
    format!("s/{writer}/{}", message / MESSAGES_PER_TOPIC)
}

/// Counts the topics of each writer's last accepted batch that do not have all their messages.
fn count_incomplete_topics(address: SocketAddr, writers: &[WriterCounts]) -> Result<u64> {
    let mut incomplete = 0;
    for (writer, counts) in (0..).zip(writers) {
        let Some(last) = counts.last_accepted else {
            continue;
        };
        for message in (last * BATCH..(last + 1) * BATCH).step_by(MESSAGES_PER_TOPIC as usize) {
            let info = topic_info(address, &topic(writer, message))?;
            incomplete += u64::from(info["messages"] != MESSAGES_PER_TOPIC);
        }
    }
    Ok(incomplete)
}
