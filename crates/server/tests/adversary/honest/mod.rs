//! Honest clients of every door. They publish at a calm rate and check that each message comes to each of them once,
//! in order and soon, and that nothing of theirs is refused.

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

/// How long all of them may take to be connected and subscribed.
const READY: Duration = Duration::from_secs(20);
/// How long a message that was published last may take to all readers, and an answer that is due.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Where a client connects to.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    pub tls: Arc<ClientConfig>,
}

/// A client's whole life, from its beginning to its end; an error says what went wrong.
type Life = fn(&Server, &Tally) -> Result<(), String>;

/// The readers; all must be there before anything is published.
const READERS: &[(&str, Life)] = &[
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

const PUBLISHERS: &[(&str, Life)] = &[
    ("HTTP publisher", publishers::http),
    ("HTTP publisher of new connections", publishers::http_anew),
    ("WebSocket publisher", publishers::web_socket),
    ("MQTT 5 publisher, QoS 1", mqtt::publishes_at_least_once),
    ("MQTT 3.1.1 publisher, QoS 2", mqtt::publishes_exactly_once),
    ("newcomer", newcomer::comes_anew),
];

/// Topics and their publishers: one each.
pub mod topics {
    pub const HTTP: &str = "shared/http";
    pub const ANEW: &str = "own/anew";
    pub const SOCKET: &str = "own/socket";
    pub const MQTT: &str = "shared/mqtt";
    pub const EXACTLY: &str = "own/exactly";
}

/// How many connections they have, more or less: one of them begins new ones.
pub const CONNECTIONS: usize = READERS.len() + PUBLISHERS.len();

/// Starts all of them, and waits until the readers are there.
pub fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope Server,
    tally: &'scope Tally,
) -> Vec<ScopedJoinHandle<'scope, ()>> {
    let live = |(name, life): &(&'static str, Life)| {
        let (name, life) = (*name, *life);
        scope.spawn(move || {
            if let Err(fault) = life(server, tally) {
                tally.fault(format!("{name}: {fault}"));
            }
        })
    };
    let mut all: Vec<_> = READERS.iter().map(live).collect();
    let began = Instant::now();
    while tally.ready.load(Ordering::Relaxed) < READERS.len() as u64 {
        if began.elapsed() > READY || !tally.faults().is_empty() {
            tally.fault("not all readers could subscribe".to_string());
            return all;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    all.extend(PUBLISHERS.iter().map(live));
    all
}
