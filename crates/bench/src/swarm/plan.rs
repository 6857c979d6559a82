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
    pub message_bytes: usize,
    /// The share of slow readers.
    pub slow_share: f64,
    /// Connects a second, for each worker.
    pub connect_rate: Option<f64>,
    /// The simulated network faults.
    pub faults: NetworkFaults,
    /// The maximum time from the FIN of a client to that of the server.
    pub close_within_ns: u64,
    /// The sequence number of the newest message published to each topic.
    pub published: Arc<[AtomicU32]>,
}

impl Plan {
    /// Appends the request with which a client subscribes to `topic`.
    pub fn write_request(&self, topic: u32, out: &mut String) {
        let topic_name = self.topics.name(topic);
        if self.protocol == Protocol::Tcp {
            out.push_str(&topic_name);
            return out.push('\n');
        }
        let mut target = String::new();
        match &self.target {
            None => request::target("/sub", &topic_name, &mut target),
            Some(text) => {
                let mut escaped = String::new();
                request::escape(&topic_name, &mut escaped);
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
pub struct SharedState {
    counts: Mutex<Counts>,
    /// The number of clients whose subscription is open.
    pub open_clients: AtomicU32,
    /// The number of clients that have given up.
    pub given_up: AtomicU32,
    /// Whether clients may connect.
    pub may_connect: AtomicBool,
    /// Whether the worker must end.
    pub must_stop: AtomicBool,
    /// The number of clients a second that close and reconnect, as the bits of an `f64`.
    pub drop_per_s: AtomicU64,
    /// The number of forged SYNs a second, as the bits of an `f64`.
    pub flood_per_s: AtomicU64,
    /// The number of clients that must reset their connections now.
    pub requested_resets: AtomicU32,
    /// The largest number of clients whose connection was not idle at the same time.
    pub active_max: AtomicU64,
}

impl SharedState {
    /// The counts since the scenario last took them.
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
