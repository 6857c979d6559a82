//! A running subscriber: starts its workers, adds up their counters, and ends them.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::args::SubscribeArgs;
use super::plan::Plan;
use super::shared::Shared;
use super::worker::Worker;
use crate::measure::tally::Tally;
use crate::{report, sys};

/// Stack size of a worker's thread, in bytes. The worker's tables are on the heap.
const STACK_BYTES: usize = 128 << 10;

/// A running subscriber.
pub struct Subscriber {
    /// Commands to the workers, and counters.
    pub shared: Arc<Shared>,
    /// The number of connections to open.
    pub connections: u64,
    /// Whether the clients are a grid that can publish.
    pub can_publish: bool,
    threads: Vec<JoinHandle<()>>,
    /// When the subscriber was started.
    pub started_at: Instant,
}

impl Subscriber {
    /// Starts the workers. They connect at once, or on a scenario's command.
    pub fn start(args: &SubscribeArgs) -> Result<Subscriber> {
        let plan = Arc::new(Plan::new(args)?);
        let shared = Arc::new(Shared {
            tallies: (0..plan.threads)
                .map(|_| Mutex::new(Tally::default()))
                .collect(),
            may_connect: (!args.control).into(),
            ..Shared::default()
        });
        let mut threads = Vec::new();
        for index in 0..plan.threads {
            let thread_start = |index| (plan.connections as usize * index / plan.threads) as u32;
            let (first, end) = (thread_start(index), thread_start(index + 1));
            let (plan, shared) = (plan.clone(), shared.clone());
            let run_worker = move || {
                let result = Worker::new(plan, shared.clone(), index, first, end - first)
                    .and_then(|mut worker| worker.run());
                if let Err(error) = result {
                    report::note(&format!("subscriber thread {index}: {error:#}"));
                    shared.must_stop.store(true, Relaxed);
                }
            };
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            threads.push(builder.spawn(run_worker).context("cannot start a thread")?);
        }
        let connections = u64::from(plan.connections);
        Ok(Subscriber {
            shared,
            connections,
            can_publish: plan.grid_message_bytes.is_some(),
            threads,
            started_at: Instant::now(),
        })
    }

    /// The sum of all workers' counters.
    pub fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        for tally in &self.shared.tallies {
            sum.merge(&tally.lock().expect("no worker panics"));
        }
        sum
    }

    /// Starts a new window of measurement.
    pub fn start_window(&self) {
        for tally in &self.shared.tallies {
            tally.lock().expect("no worker panics").start_window();
        }
    }

    /// Whether every connection is open or given up.
    pub fn is_settled(&self) -> bool {
        let given_up = self.shared.given_up.load(Relaxed);
        self.shared.live.load(Relaxed) + given_up >= self.connections
    }

    /// Whether a worker or Ctrl-C has ended the subscriber.
    pub fn has_ended(&self) -> bool {
        self.shared.must_stop.load(Relaxed) || sys::interrupted()
    }

    /// Ends the workers and closes everything.
    pub fn stop(self) {
        self.shared.must_stop.store(true, Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    /// The present report as JSON.
    pub fn json(&self) -> Value {
        let tally = self.tally();
        let connections = json!({
            "wanted": self.connections,
            "live": self.shared.live.load(Relaxed),
            "max_concurrency": self.shared.live_max.load(Relaxed),
        });
        json!({
            "now_ns": sys::now_ns(),
            "uptime_s": self.started_at.elapsed().as_secs_f64(),
            "latency_ms": tally.latency.summary().json(),
            "messages": tally.messages,
            "unmeasured": tally.unmeasured,
            "lost": tally.lost,
            "doubled": tally.doubled,
            "misdelivered": tally.misdelivered,
            "missed_away": tally.missed_away,
            "told_lost": tally.announced_lost,
            "said": tally.grid_requests.json(),
            "first_arrival_ns": tally.first_arrival_ns,
            "last_arrival_ns": tally.last_arrival_ns,
            "connections": report::merge(json!(tally.connections), connections),
            "tool_cpu_s": sys::process_cpu_ns() as f64 / 1e9,
        })
    }
}
