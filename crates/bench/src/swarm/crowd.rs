//! A swarm that runs: its workers, what they are told, and the publisher that feeds the server.
//!
//! The publisher is a thread of the same process, so that the workers know what was published to each topic when a client
//! opened. So every message is accounted for, also those of clients that come and go: it has come, or its client was away, or it is lost.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::args::Protocol;
use super::counts::Counts;
use super::ground::{self, Ground, SERVER};
use super::packet::{End, SEGMENT_BYTES};
use super::row::Places;
use super::wire::{Weather, Wire};
use super::worker::Worker;
use crate::client::request;
use crate::measure::pattern::Pattern;
use crate::publish::{self, PublishArgs, Publisher};
use crate::sys;

/// Clients that a device has addresses for: a /16 less its first 256 addresses, with 60,000 ports each, is more.
const CLIENTS_MAX: u32 = 16 << 20;
/// Longest time in which the publisher does not look whether the rate has changed.
const LOOK_NS: u64 = 50_000_000;

/// What the clients do.
pub struct Plan {
    /// How they subscribe.
    pub protocol: Protocol,
    /// The server.
    pub server: End,
    /// Topic `i` is that of client `i`.
    pub topics: Pattern,
    /// The target to subscribe at, with `{topic}`; Crore's when there is none.
    pub target: Option<String>,
    /// Bytes of a message.
    pub size: usize,
    /// The share of slow readers.
    pub slow_share: f64,
    /// Connects a second of each worker.
    pub connect_rate: Option<f64>,
    /// The network.
    pub weather: Weather,
    /// Longest time for the server to close its end.
    pub close_within_ns: u64,
    /// The number of the last message that was published to each topic.
    pub published: Arc<[AtomicU32]>,
}

impl Plan {
    /// Writes the request of the client of this topic.
    pub fn request(&self, topic: u32, out: &mut String) {
        let name = self.topics.name(topic);
        if self.protocol == Protocol::Tcp {
            out.push_str(&name);
            return out.push('\n');
        }
        let mut target = String::new();
        match &self.target {
            None => request::target("/sub", &name, &mut target),
            Some(text) => {
                let mut escaped = String::new();
                request::escape(&name, &mut escaped);
                target = text.replace("{topic}", &escaped);
            }
        }
        let host = format!("{SERVER}:{}", self.server.port);
        if self.protocol == Protocol::Ws {
            let bytes = request::upgrade(&host, &target, None);
            return out.push_str(&String::from_utf8_lossy(&bytes));
        }
        out.push_str(&format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n"
        ));
    }
}

/// What a worker is told and tells.
#[derive(Default)]
pub struct Shared {
    counts: Mutex<Counts>,
    /// Clients that are open.
    pub open: AtomicU32,
    /// Clients that failed too often.
    pub given_up: AtomicU32,
    /// No client waits to connect, or for an answer.
    pub all_dialed: AtomicBool,
    /// Clients may connect.
    pub may_open: AtomicBool,
    /// The worker ends.
    pub stop: AtomicBool,
    /// Clients a second that close and return: the bits of a floating-point number.
    pub drop_per_s: AtomicU64,
    /// Clients that reset their connections now.
    pub to_reset: AtomicU32,
    /// Side rows that there are.
    pub sides: AtomicU64,
}

impl Shared {
    /// The counters since they were last taken.
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A swarm.
pub struct Swarm {
    workers: Vec<(Arc<Shared>, JoinHandle<()>)>,
    connections: u32,
}

impl Swarm {
    /// Makes the clients on the devices of this ground; they do not connect yet.
    pub fn start(ground: &mut Ground, mut plan: Plan) -> Result<Swarm> {
        let connections = plan.topics.count();
        let devices = ground.devices();
        let each = connections.div_ceil(devices.len() as u32);
        ensure!(
            each <= CLIENTS_MAX,
            "more than {CLIENTS_MAX} clients for a device: give --threads"
        );
        let mut request = String::new();
        plan.request(connections - 1, &mut request);
        ensure!(
            request.len() <= SEGMENT_BYTES,
            "a request has {SEGMENT_BYTES} bytes at most"
        );
        plan.connect_rate = plan.connect_rate.map(|rate| rate / devices.len() as f64);
        let plan = Arc::new(plan);
        let mut workers = Vec::new();
        for (device, tun) in devices.into_iter().enumerate() {
            let shared = Arc::new(Shared::default());
            let first = device as u32 * each;
            let places = Places {
                first: ground::clients(device as u8),
                count: each.min(connections.saturating_sub(first)),
            };
            let wire = Wire::new(tun, plan.weather, first.into());
            let worker = Worker::new(plan.clone(), shared.clone(), first, places, wire);
            let thread = std::thread::Builder::new().name(format!("swarm-{device}"));
            workers.push((shared, thread.spawn(|| worker.run())?));
        }
        Ok(Swarm {
            workers,
            connections,
        })
    }

    fn each(&self) -> impl Iterator<Item = &Shared> {
        self.workers.iter().map(|(shared, _)| &**shared)
    }

    /// How many clients there are.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Lets the clients connect.
    pub fn open(&self) {
        self.each()
            .for_each(|shared| shared.may_open.store(true, Relaxed));
    }

    /// How many are open.
    pub fn live(&self) -> u32 {
        self.each().map(|shared| shared.open.load(Relaxed)).sum()
    }

    /// How many have given up.
    pub fn given_up(&self) -> u32 {
        self.each()
            .map(|shared| shared.given_up.load(Relaxed))
            .sum()
    }

    /// Whether every client is open or has given up.
    pub fn is_settled(&self) -> bool {
        self.live() + self.given_up() >= self.connections
    }

    /// Side rows that there are.
    pub fn sides(&self) -> u64 {
        self.each().map(|shared| shared.sides.load(Relaxed)).sum()
    }

    /// Lets so many clients a second close their connections in order and return.
    pub fn drop_per_s(&self, rate: f64) {
        let bits = (rate / self.workers.len() as f64).to_bits();
        self.each()
            .for_each(|shared| shared.drop_per_s.store(bits, Relaxed));
    }

    /// Lets so many clients reset their connections now, and return.
    pub fn reset(&self, clients: u32) {
        let each = clients.div_ceil(self.workers.len() as u32);
        self.each()
            .for_each(|shared| shared.to_reset.store(each, Relaxed));
    }

    /// All that was counted since the last look.
    pub fn take(&self) -> Counts {
        let mut sum = Counts::default();
        for shared in self.each() {
            sum.merge(&std::mem::take(&mut *shared.counts()));
        }
        sum
    }

    /// Ends the workers and returns what they have counted since the last look. Whatever was published while a client was
    /// open must have come by now.
    pub fn stop(&mut self) -> Result<Counts> {
        self.each()
            .for_each(|shared| shared.stop.store(true, Relaxed));
        let mut sum = Counts::default();
        for (shared, thread) in self.workers.drain(..) {
            thread.join().map_err(|_| anyhow!("a worker panicked"))?;
            sum.merge(&shared.counts());
        }
        Ok(sum)
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

#[derive(Default)]
struct Said {
    rate: AtomicU64,
    stop: AtomicBool,
    late_ns: AtomicU64,
}

/// A publisher on a thread of its own.
pub struct Feed {
    said: Arc<Said>,
    thread: JoinHandle<Result<Value>>,
}

impl Feed {
    /// Connects to the server and publishes at `rate` from now on, counting in `published`.
    pub fn start(args: &PublishArgs, rate: f64, published: Arc<[AtomicU32]>) -> Result<Feed> {
        let said = Arc::new(Said::default());
        said.rate.store(rate.to_bits(), Relaxed);
        let (heard, args) = (said.clone(), args.clone());
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new().name("feed".into());
        let thread = thread.spawn(move || {
            let mut publisher = Publisher::open(&args).context("the publisher")?;
            publisher.count_in(published);
            let _ = tell.send(());
            feed(publisher, &heard)
        })?;
        // A sender that is gone has failed, which the thread's result tells.
        let _ = told.recv();
        Ok(Feed { said, thread })
    }

    /// Publishes at another rate.
    pub fn set_rate(&self, rate: f64) {
        self.said.rate.store(rate.to_bits(), Relaxed);
    }

    /// Whether it has ended by itself, which is an error.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// The longest that a message was late at the present rate, in milliseconds.
    pub fn late_ms(&self) -> f64 {
        self.said.late_ns.load(Relaxed) as f64 / 1e6
    }

    /// Waits for the last answers, and returns the result.
    pub fn stop(self) -> Result<Value> {
        self.said.stop.store(true, Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the publisher panicked"))?
    }
}

fn feed(mut publisher: Publisher, said: &Said) -> Result<Value> {
    let begun_ns = sys::now_ns();
    let mut rate = 0.0;
    while !said.stop.load(Relaxed) {
        let now_ns = sys::now_ns();
        let wanted = f64::from_bits(said.rate.load(Relaxed));
        if wanted != rate {
            rate = wanted;
            publisher.set_rate(rate, now_ns);
        }
        publisher.turn(now_ns, now_ns + LOOK_NS)?;
        said.late_ns.store(publisher.late_ns_max(), Relaxed);
    }
    let seconds = (sys::now_ns() - begun_ns) as f64 / 1e9;
    publisher.drain(publish::DRAIN_NS)?;
    Ok(publisher.json(seconds))
}
