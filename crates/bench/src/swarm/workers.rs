//! A running swarm: starts the workers, passes them commands, and collects their counts.
//!
//! The publisher is a thread of this process. So a worker knows how many messages had been published to a topic when the topic's client
//! opened. For every message it can therefore tell whether it has arrived, was missed because its client was away, or is lost.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow, ensure};

use super::churn::Pace;
use super::client_row::ClientAddresses;
use super::counts::Counts;
use super::namespace::{self, Namespace};
use super::plan::{Plan, SharedState};
use super::wire::Wire;
use super::worker::{SEND_BYTES, Worker};

/// The maximum number of clients of one device. Its /16 has room for more: it has 65,280 client addresses with 60,000 ports each.
const CLIENTS_MAX: u32 = 16 << 20;

/// A running swarm.
pub struct Swarm {
    workers: Vec<(Arc<SharedState>, JoinHandle<()>)>,
    connections: u32,
}

impl Swarm {
    /// Starts a worker for each device of the namespace. The clients do not connect yet.
    pub fn start(namespace: &mut Namespace, mut plan: Plan) -> Result<Swarm> {
        let connections = plan.topics.count();
        let pace = Pace::for_queue(namespace.queue_packets());
        let devices = namespace.devices();
        let clients_per_device = connections.div_ceil(devices.len() as u32);
        ensure!(
            clients_per_device <= CLIENTS_MAX,
            "more than {CLIENTS_MAX} clients for a device: give --threads"
        );
        let mut request = String::new();
        plan.write_request(connections - 1, &mut request);
        ensure!(
            request.len() <= SEND_BYTES as usize,
            "a request has {SEND_BYTES} bytes at most"
        );
        plan.connect_rate = plan.connect_rate.map(|rate| rate / devices.len() as f64);
        let plan = Arc::new(plan);
        let mut workers = Vec::new();
        for (device, client_device) in devices.into_iter().enumerate() {
            let shared_state = Arc::new(SharedState::default());
            let first = device as u32 * clients_per_device;
            let addresses = ClientAddresses {
                first: namespace::clients(device as u8),
                count: clients_per_device.min(connections.saturating_sub(first)),
            };
            let (plan, shared) = (plan.clone(), shared_state.clone());
            let (tell_opened, opened) = mpsc::channel();
            let work = move || match Wire::open(client_device, plan.faults, first.into()) {
                Ok(wire) => {
                    let _ = tell_opened.send(Ok(()));
                    Worker::new(plan, shared, first, addresses, wire, pace).run();
                }
                Err(error) => {
                    let _ = tell_opened.send(Err(error));
                }
            };
            let thread = std::thread::Builder::new().name(format!("swarm-{device}"));
            workers.push((shared_state, thread.spawn(work)?));
            opened.recv().context("a worker ended")??;
        }
        Ok(Swarm {
            workers,
            connections,
        })
    }

    fn shared_states(&self) -> impl Iterator<Item = &SharedState> {
        self.workers.iter().map(|(shared_state, _)| &**shared_state)
    }

    /// The number of clients.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Lets the clients connect.
    pub fn connect(&self) {
        self.shared_states()
            .for_each(|shared_state| shared_state.may_connect.store(true, Relaxed));
    }

    /// The number of open clients.
    pub fn open_count(&self) -> u32 {
        self.shared_states()
            .map(|shared_state| shared_state.open_clients.load(Relaxed))
            .sum()
    }

    /// The number of clients that have given up.
    pub fn given_up_count(&self) -> u32 {
        self.shared_states()
            .map(|shared_state| shared_state.given_up.load(Relaxed))
            .sum()
    }

    /// Whether every client is open or has given up.
    pub fn is_settled(&self) -> bool {
        self.open_count() + self.given_up_count() >= self.connections
    }

    /// The largest number of clients whose connection was not idle at the same time.
    pub fn active_max(&self) -> u64 {
        self.shared_states()
            .map(|shared_state| shared_state.active_max.load(Relaxed))
            .sum()
    }

    /// Makes `rate` clients a second close their connections with a FIN and reconnect.
    pub fn set_drop_rate(&self, rate: f64) {
        let bits = (rate / self.workers.len() as f64).to_bits();
        self.shared_states()
            .for_each(|shared_state| shared_state.drop_per_s.store(bits, Relaxed));
    }

    /// Makes the workers send `rate` forged SYNs a second.
    pub fn set_flood_rate(&self, rate: f64) {
        let bits = (rate / self.workers.len() as f64).to_bits();
        self.shared_states()
            .for_each(|shared_state| shared_state.flood_per_s.store(bits, Relaxed));
    }

    /// Makes this many clients reset their connections now and reconnect.
    pub fn reset_clients(&self, clients: u32) {
        let clients_per_worker = clients.div_ceil(self.workers.len() as u32);
        self.shared_states().for_each(|shared_state| {
            shared_state
                .requested_resets
                .store(clients_per_worker, Relaxed)
        });
    }

    /// Takes the counts since the last call.
    pub fn take_counts(&self) -> Counts {
        let mut sum = Counts::default();
        for shared_state in self.shared_states() {
            sum.merge(&std::mem::take(&mut *shared_state.counts()));
        }
        sum
    }

    /// Ends the workers and returns their last counts. A message that was published while its client was open counts as lost if it has not
    /// arrived by now.
    pub fn stop(&mut self) -> Result<Counts> {
        self.shared_states()
            .for_each(|shared_state| shared_state.must_stop.store(true, Relaxed));
        let mut sum = Counts::default();
        for (shared_state, thread) in self.workers.drain(..) {
            thread.join().map_err(|_| anyhow!("a worker panicked"))?;
            sum.merge(&shared_state.counts());
        }
        Ok(sum)
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
