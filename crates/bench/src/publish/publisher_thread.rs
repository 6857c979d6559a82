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
const POLL_NS: u64 = 50_000_000;
/// Timeout for the last answers.
pub const DRAIN_NS: u64 = 10_000_000_000;

#[derive(Default)]
struct Control {
    rate: AtomicU64,
    stop: AtomicBool,
    late_ns: AtomicU64,
}

/// A publisher on its own thread.
pub struct PublisherThread {
    control: Arc<Control>,
    thread: JoinHandle<Result<Value>>,
}

impl PublisherThread {
    /// Connects to the server and publishes at `rate`. Keeps the last sequence number of each topic in `published`.
    pub fn start(
        args: &PublishArgs,
        rate: f64,
        published: Arc<[AtomicU32]>,
    ) -> Result<PublisherThread> {
        let control = Arc::new(Control::default());
        control.rate.store(rate.to_bits(), Relaxed);
        let (shared_control, args) = (control.clone(), args.clone());
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new().name("feed".into());
        let thread = thread.spawn(move || {
            let mut publisher = Publisher::open(&args).context("the publisher")?;
            publisher.share_sequences(published);
            let _ = tell.send(());
            publish_until_stopped(publisher, &shared_control)
        })?;
        // If the sender is dropped, the thread has failed. Its result says why.
        let _ = told.recv();
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

    /// The largest delay of a message behind its schedule at the present rate, in milliseconds.
    pub fn late_ms(&self) -> f64 {
        self.control.late_ns.load(Relaxed) as f64 / 1e6
    }

    /// Stops publishing, waits for the last answers, and returns the result.
    pub fn stop(self) -> Result<Value> {
        self.control.stop.store(true, Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the publisher panicked"))?
    }
}

fn publish_until_stopped(mut publisher: Publisher, control: &Control) -> Result<Value> {
    let begun_ns = sys::now_ns();
    let mut rate = 0.0;
    while !control.stop.load(Relaxed) {
        let now_ns = sys::now_ns();
        let wanted = f64::from_bits(control.rate.load(Relaxed));
        if wanted != rate {
            rate = wanted;
            publisher.set_rate(rate, now_ns);
        }
        publisher.turn(now_ns, now_ns + POLL_NS)?;
        control.late_ns.store(publisher.late_ns_max(), Relaxed);
    }
    let seconds = (sys::now_ns() - begun_ns) as f64 / 1e9;
    publisher.drain(DRAIN_NS)?;
    Ok(publisher.json(seconds))
}
