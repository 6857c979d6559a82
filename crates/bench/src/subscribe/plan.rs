//! The configuration of a subscriber's connections: servers, topics and requests. Addresses and topics of a connection are computed from
//! the connection's number.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Result, ensure};
use rustls::ClientConfig;

use super::args::{Protocol, SubscribeArgs};
use super::connection::Assignment;
use crate::client::mqtt::{self, Dialect};
use crate::client::{request, tls};
use crate::measure::pattern::{self, Pattern};
use crate::sys::{self, DialOptions};

/// The maximum number of requests of a worker's grid clients at the same time. Each request has a connection of its own.
pub const GRID_REQUESTS_MAX: usize = 32;
/// The number of descriptors that a worker needs besides its connections: the three standard ones, the epoll set, the descriptors that the
/// process had open when the worker's table was created, and the descriptors of grid requests.
const OTHER_DESCRIPTORS: usize = 64 + GRID_REQUESTS_MAX;

/// The configuration of the connections.
pub struct Plan {
    /// How the connections subscribe.
    pub protocol: Protocol,
    /// The MQTT version and options.
    pub dialect: Dialect,
    /// The number of connections.
    pub connections: u32,
    /// The topics of each connection.
    pub assignment: Assignment,
    /// The number of threads.
    pub threads: usize,
    /// Connects a second, of all threads together. `None` means as fast as possible.
    pub connect_rate: Option<f64>,
    /// Size of a message from a client to its neighbours in the grid, if the clients publish.
    pub grid_message_bytes: Option<usize>,
    /// Whether the server is `crore-bench floor`, which answers every upgrade with the same bytes.
    pub is_floor: bool,
    topics: Pattern,
    servers: Vec<SocketAddr>,
    local_addresses: Vec<IpAddr>,
    receive_buffer: Option<u32>,
    /// The TLS configuration, if TLS is used.
    pub tls: Option<Arc<ClientConfig>>,
}

impl Plan {
    /// Builds the configuration from the arguments. Fails if they are wrong or contradict each other.
    pub fn new(args: &SubscribeArgs) -> Result<Plan> {
        let topics = Pattern::parse(&args.topics)?;
        let servers = pattern::servers(&args.server)?;
        let local_addresses = pattern::addresses(&args.local)?;
        let connections_per_thread_max = sys::raise_descriptor_limit()
            .saturating_sub(OTHER_DESCRIPTORS)
            .max(1);
        let threads = (args.connections as usize)
            .div_ceil(connections_per_thread_max)
            .max(1);
        let threads = args.threads.unwrap_or(threads);
        ensure!(
            threads > 0 && args.connections > 0,
            "at least one thread and one connection"
        );
        ensure!(
            (args.connections as usize).div_ceil(threads) <= connections_per_thread_max,
            "{threads} threads cannot hold {} connections: {connections_per_thread_max} each",
            args.connections
        );
        let per_connection = args.topics_per_connection;
        let is_mqtt = matches!(args.protocol, Protocol::Mqtt | Protocol::MqttWs);
        ensure!(
            per_connection >= 1 || is_mqtt,
            "at least one topic for each connection"
        );
        ensure!(
            args.talk.is_none()
                || (args.tls.is_none() && per_connection == 1 && args.connections > 1),
            "clients that talk have a topic each, neighbours, and no TLS"
        );
        Ok(Plan {
            protocol: args.protocol,
            dialect: Dialect::new(&args.mqtt, args.protocol == Protocol::MqttWs),
            connections: args.connections,
            assignment: Assignment {
                topics: topics.count(),
                per_connection,
            },
            threads,
            connect_rate: args.connect_rate,
            grid_message_bytes: args.talk,
            is_floor: args.floor,
            topics,
            servers,
            local_addresses,
            receive_buffer: args.receive_buffer,
            tls: args
                .tls
                .as_ref()
                .map(|roots| tls::client(roots, true))
                .transpose()?,
        })
    }

    /// The addresses of connection `number`. Consecutive connections use the servers in turn. After each round of the servers they use the next
    /// local address.
    pub fn dial_options(&self, number: u32) -> DialOptions {
        let number = number as usize;
        let round = number / self.servers.len();
        let local = (!self.local_addresses.is_empty())
            .then(|| self.local_addresses[round % self.local_addresses.len()]);
        DialOptions {
            remote: self.servers[number % self.servers.len()],
            local: local.map(|address| SocketAddr::new(address, 0)),
            receive_buffer: self.receive_buffer,
        }
    }

    /// The first bytes of connection `number`. `position` contains the header lines with which a long-poll continues after its last answer.
    pub fn request(&self, number: u32, remote: SocketAddr, position: Option<&str>) -> Vec<u8> {
        let lines = match self.protocol {
            Protocol::Mqtt => return self.mqtt_connect(number),
            Protocol::MqttWs => return request::mqtt_upgrade(&remote.to_string()),
            Protocol::Ws => {
                let mut target = String::new();
                self.write_target(number, &mut target);
                return request::upgrade(&remote.to_string(), &target, None);
            }
            Protocol::Sse => "Accept: text/event-stream\r\n",
            Protocol::Poll => position.unwrap_or(""),
        };
        let mut out = String::with_capacity(256);
        out.push_str("GET ");
        self.write_target(number, &mut out);
        write!(out, " HTTP/1.1\r\nHost: {remote}\r\n{lines}\r\n").expect("a String takes all");
        out.into_bytes()
    }

    /// CONNECT and SUBSCRIBE in one write, so that MQTT opens in one round trip like the other protocols.
    pub fn mqtt_connect(&self, number: u32) -> Vec<u8> {
        let filters: Vec<String> = self.topic_names(number).collect();
        let mut out = Vec::with_capacity(96);
        let client = mqtt::client_id(std::process::id(), 's', number);
        self.dialect.write_connect(&client, &filters, &mut out);
        out
    }

    /// A topic's name.
    pub fn topic(&self, index: u32) -> String {
        self.topics.name(index)
    }

    /// The topics of a connection, each once.
    fn topic_names(&self, number: u32) -> impl Iterator<Item = String> {
        let assignment = &self.assignment;
        (0..assignment.per_connection).filter_map(move |topic_place| {
            let topic = assignment.topic(number, topic_place);
            (assignment.index_of(number, topic) == Some(topic_place))
                .then(|| self.topics.name(topic))
        })
    }

    fn write_target(&self, number: u32, out: &mut String) {
        let assignment = &self.assignment;
        if assignment.per_connection == 1 {
            let name = self.topics.name(assignment.topic(number, 0));
            return request::target("/sub", &name, out);
        }
        let mut separator = '?';
        out.push_str("/sub");
        for name in self.topic_names(number) {
            write!(out, "{separator}topic=").expect("a String takes all");
            request::escape(&name, out);
            separator = '&';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_local_addresses_are_used_equally() {
        let args = SubscribeArgs {
            server: vec!["127.0.0.1:9000-9001".into()],
            local: vec!["127.0.1.{1..3}".into()],
            connections: 30,
            topics_per_connection: 1,
            ..SubscribeArgs::default()
        };
        let plan = Plan::new(&args).unwrap();
        let mut pairs = std::collections::BTreeMap::new();
        for dial in (0..30).map(|n| plan.dial_options(n)) {
            *pairs.entry((dial.remote, dial.local.unwrap())).or_insert(0) += 1;
        }
        assert_eq!(pairs.into_values().collect::<Vec<_>>(), [5; 6]);
    }
}
