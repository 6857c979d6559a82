//! The plan of a swarm's clients, and the state that its workers share with the scenario.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::args::Protocol;
use super::counts::Counts;
use super::ground::SERVER;
use super::packet::End;
use super::wire::Weather;
use crate::client::request;
use crate::measure::pattern::Pattern;

/// The plan of the clients.
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

/// The orders to a worker, and its counts.
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
