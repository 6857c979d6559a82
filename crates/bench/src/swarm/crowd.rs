//! A swarm that runs: its workers.
//!
//! The publisher is a thread of the same process, so that the workers know how many messages were published to each topic when a client
//! opened. So every message is accounted for, also those of clients that come and go: it has come, or its client was away, or it is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use anyhow::{Result, anyhow, ensure};

use super::counts::Counts;
use super::ground::{self, Ground};
use super::packet::SEGMENT_BYTES;
use super::plan::{Plan, Shared};
use super::row::Places;
use super::turnover::Pace;
use super::wire::Wire;
use super::worker::Worker;

/// Clients that a device has addresses for: a /16 less its first 256 addresses, with 60,000 ports each, is more.
const CLIENTS_MAX: u32 = 16 << 20;

/// A swarm.
pub struct Swarm {
    workers: Vec<(Arc<Shared>, JoinHandle<()>)>,
    connections: u32,
}

impl Swarm {
    /// Makes the clients on the devices of this ground; they do not connect yet.
    pub fn start(ground: &mut Ground, mut plan: Plan) -> Result<Swarm> {
        let connections = plan.topics.count();
        let pace = Pace::of(ground.queue_packets());
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
            let worker = Worker::new(plan.clone(), shared.clone(), first, places, wire, pace);
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
