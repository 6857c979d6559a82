//! A client that publishes to its own topic and waits for each message. It measures how long the server delays other clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::measure::stats::Latency;
use crate::scenario::centrifugo::clients::open_all;
use crate::scenario::centrifugo::frames::Format;

/// The topic, which has no presence.
const TOPIC: &str = "probe";
/// The time between two messages.
const PAUSE: Duration = Duration::from_millis(5);

/// A client that measures until [`Probe::finish`] is called.
pub struct Probe {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Latency>>,
}

impl Probe {
    /// Connects, and begins to measure.
    pub fn start(server: SocketAddr) -> Result<Probe> {
        let channels = std::iter::once(vec![TOPIC.to_string()]);
        let mut open = open_all(server, Format::Json, channels)?;
        let mut client = open.pop().context("a client")?;
        let is_over = Arc::<AtomicBool>::default();
        let end = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut latency = Latency::default();
            while !end.load(Ordering::Relaxed) {
                let start = Instant::now();
                client.publish_and_receive(TOPIC)?;
                latency.add(start.elapsed().as_nanos() as u64);
                std::thread::sleep(PAUSE);
            }
            Ok(latency)
        });
        Ok(Probe { is_over, thread })
    }

    /// Ends the measurement. Returns the times from publish to delivery.
    pub fn finish(self) -> Result<Latency> {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        ended.map_err(|_| anyhow!("the probe ended with a panic"))?
    }
}
