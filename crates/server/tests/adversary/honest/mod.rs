//! Honest clients of every protocol, which run beside the attackers. They publish at a calm rate, and check that each message reaches each
//! reader once, in order and soon, and that the server refuses nothing that they send.

mod mqtt;
mod newcomer;
mod publishers;
mod readers;
mod stream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use crate::tally::Tally;

/// Timeout until all readers are connected and subscribed.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout until the last message has reached all readers, and timeout of an answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The server to which the clients connect.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    pub tls: Arc<ClientConfig>,
}

/// Runs a client from its start to its end. The error says what went wrong.
type Client = fn(&Server, &Tally) -> Result<(), String>;

/// The readers. All must be subscribed before anything is published.
const READERS: &[(&str, Client)] = &[
    ("long-poll", readers::long_poll),
    ("event stream", readers::event_stream),
    (
        "event stream of a filter, over TLS",
        readers::filter_over_tls,
    ),
    ("WebSocket", readers::web_socket),
    (
        "WebSocket with JSON of two topics",
        readers::web_socket_of_two,
    ),
    ("MQTT 3.1.1, QoS 0, shared/#", mqtt::reads_all_shared),
    ("MQTT 5, QoS 1", mqtt::reads_at_least_once),
    ("MQTT 5, QoS 2, over TLS", mqtt::reads_exactly_once),
];

const PUBLISHERS: &[(&str, Client)] = &[
    ("HTTP publisher", publishers::http),
    (
        "HTTP publisher of new connections",
        publishers::http_new_connections,
    ),
    ("WebSocket publisher", publishers::web_socket),
    ("MQTT 5 publisher, QoS 1", mqtt::publishes_at_least_once),
    ("MQTT 3.1.1 publisher, QoS 2", mqtt::publishes_exactly_once),
    ("newcomer", newcomer::connect_repeatedly),
];

/// The topics. Each has one publisher.
pub mod topics {
    pub const HTTP: &str = "shared/http";
    pub const ANEW: &str = "own/anew";
    pub const SOCKET: &str = "own/socket";
    pub const MQTT: &str = "shared/mqtt";
    pub const EXACTLY: &str = "own/exactly";
}

/// Number of connections of the honest clients. It is not exact, since one publisher opens new connections.
pub const CONNECTIONS: usize = READERS.len() + PUBLISHERS.len();

/// Starts all honest clients, the publishers when all readers are subscribed.
pub fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope Server,
    tally: &'scope Tally,
) -> Vec<ScopedJoinHandle<'scope, ()>> {
    let spawn = |(name, run): &(&'static str, Client)| {
        let (name, run) = (*name, *run);
        scope.spawn(move || {
            if let Err(fault) = run(server, tally) {
                tally.record_fault(format!("{name}: {fault}"));
            }
        })
    };
    let mut threads: Vec<_> = READERS.iter().map(spawn).collect();
    let began = Instant::now();
    while tally.ready_readers.load(Ordering::Relaxed) < READERS.len() as u64 {
        if began.elapsed() > READY_TIMEOUT || !tally.faults().is_empty() {
            tally.record_fault("not all readers could subscribe".to_string());
            return threads;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    threads.extend(PUBLISHERS.iter().map(spawn));
    threads
}
