//! Runs a publisher on its own thread. Other threads can change its rate and read the sequence numbers of its messages.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use super::args::PublishArgs;
use super::publisher::Publisher;
use crate::sys;

/// The maximum time until the thread notices a new rate.
const WAIT_MAX_NS: u64 = 50_000_000;
/// Timeout for the last answers.
pub const DRAIN_TIMEOUT_NS: u64 = 10_000_000_000;

#[derive(Default)]
struct Control {
    rate: AtomicU64,
    must_stop: AtomicBool,
    lateness_ns: AtomicU64,
}

/// A publisher on its own thread.
pub struct PublisherThread {
    control: Arc<Control>,
    thread: JoinHandle<Result<Value>>,
}

impl PublisherThread {
    /// Connects to the server and publishes at `rate`. `sequences` contains the last sequence number of each topic.
    pub fn start(
        args: &PublishArgs,
        rate: f64,
        sequences: Arc<[AtomicU32]>,
    ) -> Result<PublisherThread> {
        let control = Arc::new(Control::default());
        control.rate.store(rate.to_bits(), Relaxed);
        let (shared_control, args) = (control.clone(), args.clone());
        let (start_sender, start_receiver) = mpsc::channel();
        let thread = std::thread::Builder::new().name("feed".into());
        let thread = thread.spawn(move || {
            let mut publisher = Publisher::open(&args).context("the publisher")?;
            publisher.share_sequences(sequences);
            let _ = start_sender.send(());
            publish_until_stopped(publisher, &shared_control)
        })?;
        // If the sender is dropped, the thread has failed, and its result has the reason.
        let _ = start_receiver.recv();
        Ok(PublisherThread { control, thread })
    }

    /// Changes the rate.
    pub fn set_rate(&self, rate: f64) {
        self.control.rate.store(rate.to_bits(), Relaxed);
    }

    /// Whether the thread has ended by itself, which is an error.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// The longest time by which a message was composed too late at the present rate, in milliseconds.
    pub fn lateness_ms(&self) -> f64 {
        self.control.lateness_ns.load(Relaxed) as f64 / 1e6
    }

    /// Stops publishing, waits for the last answers, and returns the result.
    pub fn stop(self) -> Result<Value> {
        self.control.must_stop.store(true, Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the publisher panicked"))?
    }
}

fn publish_until_stopped(mut publisher: Publisher, control: &Control) -> Result<Value> {
    let start_ns = sys::now_ns();
    let mut rate = 0.0;
    while !control.must_stop.load(Relaxed) {
        let now_ns = sys::now_ns();
        let new_rate = f64::from_bits(control.rate.load(Relaxed));
        if new_rate != rate {
            rate = new_rate;
            publisher.set_rate(rate, now_ns);
        }
        publisher.run_turn(now_ns, now_ns + WAIT_MAX_NS)?;
        control
            .lateness_ns
            .store(publisher.lateness_ns_max(), Relaxed);
    }
    let seconds = (sys::now_ns() - start_ns) as f64 / 1e9;
    publisher.wait_for_answers(DRAIN_TIMEOUT_NS)?;
    Ok(publisher.json(seconds))
}
