//! `recovery`: measures how long a start after a kill takes, with a large log and with many topics that have a latest value each. The time
//! is compared with a sequential read of the same files. Page caches are empty before each measurement, if this process may drop them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::client::link::Link;
use crate::client::request;
use crate::report;
use crate::rig::{Directory, RunArgs, Server, ServerKind, ServerOptions};

/// Default size of a message, in bytes.
const SIZE: usize = 512;
/// Default size of the directory in the first row, in MiB.
const DISK_MIB: u32 = 5_000;
/// Default number of topics in the second row.
const TOPICS: u32 = 1_000_000;
/// Number of topics in the first row.
const TOPICS_OF_LOG: u32 = 1_000;
/// The number of lines in a batch, and of batches in flight.
const BATCH: u32 = 1_000;
const WRITERS: u32 = 4;
/// Default number of shards.
const SHARDS: u32 = 2;
/// Timeout for an answer, and for a start.
const TIMEOUT: Duration = Duration::from_secs(60);
const START: Duration = Duration::from_secs(600);

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let bytes = u64::from(args.disk_mib.unwrap_or(DISK_MIB)) << 20;
    let size = args.size.unwrap_or(SIZE);
    let log = row(args, "messages", |server, state, round| {
        let from = round * BATCH * WRITERS;
        publish(server, |n| {
            let topic = (from + n) % TOPICS_OF_LOG;
            format!(
                "{{\"topic\":\"t/{topic}\",\"data\":\"{:0size$}\"}}\n",
                from + n
            )
        })?;
        Ok(size_of_all(state)? >= bytes)
    })?;
    let topics = args.topics.unwrap_or(TOPICS);
    let latest = row(args, "latest values", |server, _, round| {
        let from = round * BATCH * WRITERS;
        publish(server, |n| {
            let n = from + n;
            format!("{{\"topic\":\"r/{n}\",\"data\":\"{n:064}\"}}\n")
        })?;
        Ok(from + BATCH * WRITERS >= topics)
    })?;
    Ok(json!({
        "messages": log,
        "latest": latest,
        "size": size,
        "topics": topics,
        "shards": args.shards.unwrap_or(SHARDS),
    }))
}

/// Fills a directory in rounds until it is full, then kills the server and starts it again.
fn row(
    args: &RunArgs,
    name: &str,
    mut fill: impl FnMut(SocketAddr, &Path, u32) -> Result<bool>,
) -> Result<Value> {
    let directory = Directory::make(format_args!("recovery-{}", std::process::id()))?;
    let state = directory.path().join("state");
    let settings = format!(
        "[limits]\naccepts_per_s = {}\nlog_bytes = \"64 GiB\"\ntopics_per_address_per_s = 0\ntopics_max = 4000000\ntopics_per_shard = 4000000\n\n\
         [state]\ndirectory = \"{}\"\nbytes_max = \"64 GiB\"\n\n[[rule]]\nmatch = \"r/#\"\nkeep = \"latest\"\nkeys_max = 1\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 1000000\nlog_bytes = \"1 GiB\"\n",
        args.accepts(),
        state.display()
    );
    let shards = args.shards.unwrap_or(SHARDS);
    let mut server = Server::start_with(
        args,
        ServerOptions::new(ServerKind::Crore, shards, 0),
        &settings,
        None,
    )?;
    let began = Instant::now();
    let mut round = 0;
    while !fill(server.addresses[0], &state, round)? {
        round += 1;
    }
    let filled_s = began.elapsed().as_secs_f64();
    server.kill();
    let bytes = size_of_all(&state)?;
    let is_cold = drop_caches();
    let began = Instant::now();
    read_all(&state)?;
    let read_s = began.elapsed().as_secs_f64();
    drop_caches();
    let start_s = server.timed_restart(shards, START)?;
    let memory = server.sample()?;
    let mb = bytes as f64 / 1e6;
    report::say(&format!(
        "{name}: {mb:.0} MB: start {start_s:.2} s ({:.0} MB/s), one sequential read {read_s:.2} s ({:.0} MB/s)",
        mb / start_s,
        mb / read_s
    ));
    Ok(json!({
        "bytes": bytes, "published": (round + 1) * BATCH * WRITERS, "filled_s": filled_s,
        "start_s": start_s, "read_s": read_s, "is_cold": is_cold, "memory_bytes": memory.rss_bytes,
    }))
}

/// Publishes a round of concurrent batches. `line` returns the line with a given number.
fn publish(server: SocketAddr, line: impl Fn(u32) -> String + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let line = &line;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || batch(server, writer, line)))
            .collect();
        let mut results = writers.into_iter().map(|writer| writer.join());
        results.try_for_each(|end| end.expect("no writer panics"))
    })
}

fn batch(server: SocketAddr, writer: u32, line: impl Fn(u32) -> String) -> Result<()> {
    let mut body = String::new();
    for n in 0..BATCH {
        let _ = write!(body, "{}", line(writer * BATCH + n));
    }
    let mut link = Link::open(server, TIMEOUT)?;
    let failed = post(&mut link, server, &body)?;
    ensure!(failed == 0, "{failed} lines of a batch failed");
    Ok(())
}

/// Publishes a batch. Returns the number of failed lines.
pub fn post(link: &mut Link, server: SocketAddr, body: &str) -> Result<u64> {
    let head = request::batch_head(&server.to_string(), body.len());
    let (status, answer) = link.request((head + body).as_bytes())?;
    ensure!(status < 300, "a batch was answered with {status}");
    Ok(request::count_failed(&answer))
}

/// All files in a directory, recursively.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => found.extend(files(&entry.path()).unwrap_or_default()),
            false => found.push(entry.path()),
        }
    }
    found.sort();
    Ok(found)
}

/// The size of all files in a directory. Files that are deleted meanwhile do not count.
pub fn size_of_all(directory: &Path) -> Result<u64> {
    let bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |it| it.len());
    Ok(files(directory)?.iter().map(bytes).sum())
}

fn read_all(directory: &Path) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    for path in files(directory)? {
        let mut file = File::open(&path).with_context(|| path.display().to_string())?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(())
}

/// Drops the page caches, which only root may do. Returns whether that worked.
fn drop_caches() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "1").is_ok()
}
