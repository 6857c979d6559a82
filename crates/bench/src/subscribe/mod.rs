//! `crore bench subscribe`: holds connections and checks every message that comes.
//!
//! The connections are divided among threads, since one descriptor table holds only
//! `RLIMIT_NOFILE` of them; each thread is a `worker::Worker`. The main thread opens no socket: it
//! prints, and obeys the scenario that started it (`--control`).

mod args;
pub mod connection;
mod control;
pub(crate) mod grid;
pub(crate) mod parse;
pub mod plan;
mod worker;

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::report::{self, Progress};
use crate::sys;
pub use args::{Assign, Protocol, SubscribeArgs};
use connection::Tally;
use plan::Plan;
use worker::Worker;

/// Seconds between two reports, as in 2013.
const REPORT_S: u64 = 5;
/// Stack of a worker; it keeps its tables on the heap.
const STACK_BYTES: usize = 128 << 10;
/// How often the main thread looks around.
const LOOK: Duration = Duration::from_millis(20);

/// What the threads of one subscriber share.
pub struct Shared {
    /// Each worker's counters, locked for a batch of events at a time.
    pub tallies: Vec<Mutex<Tally>>,
    /// The workers end.
    pub stop: AtomicBool,
    /// Connections may be opened; a scenario first looks at the server while nobody is connected.
    pub go: AtomicBool,
    /// Raised by one to drop all connections at once; they come back.
    pub drops: AtomicU32,
    /// All connections part from the server and stay away.
    pub part: AtomicBool,
    /// Workers that have obeyed, summed over all such orders.
    pub obeyed: AtomicU32,
    /// Connections to close and open again a second.
    pub churn_per_s: AtomicU32,
    /// When the churn began.
    pub churn_since_ns: AtomicU64,
    /// From one request of a client in a grid to its next; 0 is silence.
    pub talk_every_us: AtomicU64,
    /// When that was ordered.
    pub talk_since_ns: AtomicU64,
    /// Requests of clients that are under way.
    pub speaking: AtomicU64,
    /// Connections that may receive messages now.
    pub live: AtomicU64,
    /// The most that there were at once.
    pub live_max: AtomicU64,
    /// Connections that are not tried any more.
    pub given_up: AtomicU64,
}

/// A subscriber that runs.
pub struct Subscriber {
    shared: Arc<Shared>,
    connections: u64,
    /// Whether the connections stand in a grid and can be told to talk.
    talks: bool,
    threads: Vec<std::thread::JoinHandle<()>>,
    started: Instant,
}

impl Subscriber {
    /// Starts the workers, which begin to connect at once, or when a scenario says so.
    pub fn start(args: &SubscribeArgs) -> Result<Subscriber> {
        let plan = Arc::new(Plan::new(args)?);
        let shared = Arc::new(Shared {
            tallies: (0..plan.threads)
                .map(|_| Mutex::new(Tally::default()))
                .collect(),
            stop: false.into(),
            go: (!args.control).into(),
            drops: 0.into(),
            part: false.into(),
            obeyed: 0.into(),
            churn_per_s: 0.into(),
            churn_since_ns: 0.into(),
            talk_every_us: 0.into(),
            talk_since_ns: 0.into(),
            speaking: 0.into(),
            live: 0.into(),
            live_max: 0.into(),
            given_up: 0.into(),
        });
        let mut threads = Vec::new();
        for index in 0..plan.threads {
            let bound = |index| (plan.connections as usize * index / plan.threads) as u32;
            let (first, end) = (bound(index), bound(index + 1));
            let (plan, shared) = (plan.clone(), shared.clone());
            let body = move || {
                let result = Worker::new(plan, shared.clone(), index, first, end - first)
                    .and_then(|mut worker| worker.run());
                if let Err(error) = result {
                    report::note(&format!("subscriber thread {index}: {error:#}"));
                    shared.stop.store(true, Relaxed);
                }
            };
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            threads.push(builder.spawn(body).context("cannot start a thread")?);
        }
        let connections = u64::from(plan.connections);
        Ok(Subscriber {
            shared,
            connections,
            talks: plan.talk.is_some(),
            threads,
            started: Instant::now(),
        })
    }

    /// All counters together.
    pub fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        for tally in &self.shared.tallies {
            sum.merge(&tally.lock().expect("no worker panics"));
        }
        sum
    }

    /// Begins a new window of measurement.
    pub fn restart(&self) {
        for tally in &self.shared.tallies {
            tally.lock().expect("no worker panics").restart();
        }
    }

    /// Whether everything that can be open is.
    pub fn is_settled(&self) -> bool {
        let out = self.shared.given_up.load(Relaxed);
        self.shared.live.load(Relaxed) + out >= self.connections
    }

    fn is_over(&self) -> bool {
        self.shared.stop.load(Relaxed) || sys::interrupted()
    }

    /// Closes everything.
    pub fn stop(self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    /// Everything that is known now, as the JSON report has it.
    pub fn json(&self) -> Value {
        let tally = self.tally();
        let life = &tally.life;
        json!({
            "now_ns": sys::now_ns(),
            "uptime_s": self.started.elapsed().as_secs_f64(),
            "latency_ms": tally.latency.summary().json(),
            "messages": tally.messages,
            "unmeasured": tally.unmeasured,
            "lost": tally.lost,
            "doubled": tally.doubled,
            "misdelivered": tally.misdelivered,
            "missed_away": tally.missed_away,
            "told_lost": tally.told_lost,
            "said": tally.said.json(),
            "first_arrival_ns": tally.first_ns,
            "last_arrival_ns": tally.last_ns,
            "connections": {
                "wanted": self.connections,
                "live": self.shared.live.load(Relaxed),
                "opened": life.opened,
                "bytes": life.bytes,
                "chunks": life.chunks,
                "closed": life.closed,
                "completed": life.completed,
                "failed": life.failed,
                "given_up": life.given_up,
                "max_concurrency": self.shared.live_max.load(Relaxed),
                "first_failure": life.first_failure,
            },
            "tool_cpu_s": sys::process_cpu_ns() as f64 / 1e9,
        })
    }
}

/// Runs the tool.
pub fn run(args: &SubscribeArgs) -> Result<ExitCode> {
    let subscriber = Subscriber::start(args)?;
    if args.control {
        control::obey(&subscriber)?;
        subscriber.stop();
        return Ok(ExitCode::SUCCESS);
    }
    sys::catch_interrupt();
    let opening_s = open(&subscriber, args.quiet);
    let reports = hold(&subscriber, args);
    let mut last = subscriber.json();
    last["opening_s"] = json!(opening_s);
    last["reports"] = json!(reports);
    let tally = subscriber.tally();
    let live_max = subscriber.shared.live_max.load(Relaxed);
    subscriber.stop();
    if !args.quiet {
        report::say(&report::comet(&tally.life, live_max));
        if let Some(why) = &tally.life.first_failure {
            report::note(&format!("the first failure: {why}"));
        }
    }
    if let Some(path) = &args.json {
        report::keep(path, &last)?;
    }
    let clean = tally.lost + tally.doubled + tally.misdelivered + tally.life.given_up == 0;
    Ok(if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Waits until everything is open and returns how long it took, in seconds.
fn open(subscriber: &Subscriber, quiet: bool) -> f64 {
    let mut progress = Progress::new(quiet);
    while !subscriber.is_over() {
        let elapsed_s = subscriber.started.elapsed().as_secs_f64();
        let (live, settled) = (
            subscriber.shared.live.load(Relaxed),
            subscriber.is_settled(),
        );
        progress.show(
            live,
            subscriber.connections,
            subscriber.tally().life.failed,
            elapsed_s,
        );
        if settled {
            break;
        }
        // Slow enough that a terminal and 54 workers' locks do not notice.
        std::thread::sleep(LOOK * 10);
    }
    subscriber.started.elapsed().as_secs_f64()
}

/// Reports every five seconds until the time is up; returns the reports.
fn hold(subscriber: &Subscriber, args: &SubscribeArgs) -> Vec<Value> {
    let begin = Instant::now();
    let mut reports = Vec::new();
    let (mut messages, mut opened) = (0, subscriber.tally().life.opened);
    let mut told = begin;
    loop {
        std::thread::sleep(LOOK);
        let over = subscriber.is_over()
            || args
                .duration
                .is_some_and(|s| begin.elapsed() >= Duration::from_secs(s));
        if over || told.elapsed() >= Duration::from_secs(REPORT_S) {
            let last_s = told.elapsed().as_secs_f64();
            told = Instant::now();
            let tally = subscriber.tally();
            let opened_per_s = (tally.life.opened - opened) as f64 / last_s;
            let last_messages = tally.messages - messages;
            if !args.quiet {
                let (uptime_s, summary) = (
                    subscriber.started.elapsed().as_secs_f64(),
                    tally.latency.summary(),
                );
                let text = report::interval(
                    uptime_s,
                    &summary,
                    &tally,
                    last_s,
                    last_messages,
                    opened_per_s,
                );
                report::say(&text);
            }
            let mut value = subscriber.json();
            value["messages_per_s"] = json!(last_messages as f64 / last_s);
            value["connects_per_s"] = json!(opened_per_s);
            reports.push(value);
            (messages, opened) = (tally.messages, tally.life.opened);
        }
        if over {
            return reports;
        }
    }
}
