//! The configuration of a swarm's clients, and the state that each worker shares with the scenario.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crore_tcp::End;

use super::args::Protocol;
use super::counts::Counts;
use super::namespace::SERVER;
use super::wire::NetworkFaults;
use crate::client::request;
use crate::measure::pattern::Pattern;

/// The configuration of the clients.
pub struct Plan {
    /// How the clients subscribe.
    pub protocol: Protocol,
    /// The server.
    pub server: End,
    /// The topics. Client `i` subscribes to topic `i`.
    pub topics: Pattern,
    /// The request target to subscribe at, with a `{topic}` placeholder. `None` means Crore's.
    pub target: Option<String>,
    /// Bytes of a message.
    pub size: usize,
    /// The share of slow readers.
    pub slow_share: f64,
    /// Connects a second, for each worker.
    pub connect_rate: Option<f64>,
    /// The simulated network faults.
    pub faults: NetworkFaults,
    /// The server must close its end within this time after the client has closed its own.
    pub close_within_ns: u64,
    /// The sequence number of the last message published to each topic.
    pub published: Arc<[AtomicU32]>,
}

impl Plan {
    /// Appends the request with which a client subscribes to `topic`.
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

/// Commands to a worker, and its counters.
#[derive(Default)]
pub struct Shared {
    counts: Mutex<Counts>,
    /// Clients whose subscription is open.
    pub open: AtomicU32,
    /// Clients that failed too often.
    pub given_up: AtomicU32,
    /// Whether no client has to connect or waits for an answer.
    pub all_dialed: AtomicBool,
    /// Clients may connect.
    pub may_open: AtomicBool,
    /// The worker must end.
    pub stop: AtomicBool,
    /// Clients a second that close and reconnect, as the bits of an `f64`.
    pub drop_per_s: AtomicU64,
    /// Clients that are to reset their connections now.
    pub to_reset: AtomicU32,
    /// The largest number of clients whose connection was not idle at the same time.
    pub active_max: AtomicU64,
}

impl Shared {
    /// The counters since the scenario last took them.
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
