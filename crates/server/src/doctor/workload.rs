//! The workload that the doctor plans for: the number of connections, their protocol, and the server's settings.

use clap::ValueEnum;

use super::formula;
use super::host::Host;
use crore_broker::Placement;

use crate::config::{KERNEL_BYTES, Resources};
use crate::settings::file::File;
use crate::xdp;

/// The clients' protocol.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Protocol {
    /// WebSocket
    #[value(aliases = ["websocket", "websockets"])]
    Ws,
    /// Server-Sent Events
    #[value(aliases = ["eventsource", "events"])]
    Sse,
    /// HTTP long-poll
    #[value(aliases = ["longpoll", "long-poll"])]
    Poll,
    /// MQTT, over TCP or WebSocket
    Mqtt,
}

impl Protocol {
    /// Process memory of an idle connection that has its own topic, in bytes: the measured PSS of a million such connections, divided by
    /// their number (docs/internals/MEMORY.md, docs/benchmarks).
    pub fn process_bytes(self) -> u64 {
        match self {
            Protocol::Ws => 164,
            Protocol::Sse => 160,
            Protocol::Poll => 165,
            Protocol::Mqtt => 238,
        }
    }

    /// The protocol's name in a sentence.
    pub fn title(self) -> &'static str {
        match self {
            Protocol::Ws => "WebSocket",
            Protocol::Sse => "event stream (SSE)",
            Protocol::Poll => "long-poll",
            Protocol::Mqtt => "MQTT",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Connections at the same time.
    pub connections: u64,
    pub protocol: Protocol,
    pub shards: u64,
    /// All threads of the server, the shards included.
    pub threads: u64,
    /// Number of homes: shards that keep topics.
    pub homes: u64,
    pub cores: u64,
    /// Length of each listening socket's queue.
    pub backlog: u64,
    /// The number of addresses that the server listens on.
    pub addresses: u64,
    /// The interface of `xdp.listen`.
    pub xdp: Option<XdpInterface>,
    /// Whether the server is behind proxies.
    pub has_proxies: bool,
    /// Whether the server has TLS. Then all connections are assumed to use it.
    pub has_tls: bool,
    /// `limits.log_bytes`.
    pub log_bytes: u64,
    /// `limits.memory_bytes`.
    pub memory_bytes_max: u64,
    /// The lowest valid `limits.memory_bytes`.
    pub memory_bytes_min: u64,
    /// `limits.connections_max`.
    pub connections_max: u64,
    /// `limits.connections_per_shard`.
    pub connections_per_shard: u64,
    /// The maximum number of topics in all homes together.
    pub topics_max: u64,
    /// `limits.accepts_per_s`.
    pub accepts_per_s: u64,
    /// `limits.send_buffer_bytes`; 0: the kernel chooses.
    pub send_buffer_bytes: u64,
}

/// The interface of `xdp.listen`.
#[derive(Clone, Debug, PartialEq)]
pub struct XdpInterface {
    pub interface: String,
    /// The number of its queues, or why it cannot be used.
    pub queues: Result<u64, String>,
    /// `xdp.connections_max`.
    pub connections_max: u64,
    /// `xdp.buffer_bytes`.
    pub buffer_bytes: u64,
    /// Bytes of the frames and rings of a queue.
    pub queue_bytes: u64,
}

impl XdpInterface {
    fn of(file: &File) -> Option<XdpInterface> {
        let (interface, _) = file.xdp.place()?;
        let found = xdp::find(&file.xdp);
        Some(XdpInterface {
            interface: interface.to_string(),
            queues: found
                .map(|found| found.queues.into())
                .map_err(|fault| format!("{fault:#}")),
            connections_max: file.xdp.connections_max.into(),
            buffer_bytes: file.xdp.buffer_bytes as u64,
            queue_bytes: xdp::frames(&file.xdp).queue_bytes(),
        })
    }
}

impl Workload {
    pub fn new(connections: u64, protocol: Protocol, cores: usize, file: &File) -> Workload {
        let limits = &file.limits;
        let partitions = match file.partitions {
            0 => crore_nats::PARTITIONS,
            chosen => chosen,
        };
        let placement = Placement::for_server(partitions, file.shards, cores);
        let homes = usize::from(placement.homes());
        // The default for a host with 0 bytes of memory is the lowest valid value.
        let no_memory = Resources {
            cores,
            memory_bytes: 0,
        };
        let threads = file.shards + verifier_threads(cores, file);
        Workload {
            connections,
            protocol,
            shards: file.shards as u64,
            threads: threads as u64 + formula::OTHER_THREADS,
            homes: homes as u64,
            cores: cores as u64,
            backlog: file.backlog.into(),
            addresses: file.listen.len() as u64,
            xdp: XdpInterface::of(file),
            has_proxies: !file.http.trusted_proxies.is_empty(),
            has_tls: file.tls.is_on(),
            log_bytes: limits.log_bytes as u64,
            memory_bytes_max: limits.memory_bytes as u64,
            memory_bytes_min: no_memory.memory_bytes_default(limits) as u64,
            connections_max: limits.connections_max as u64,
            connections_per_shard: limits.connections_per_shard as u64,
            topics_max: limits.topics_per_home(homes) as u64 * homes as u64,
            accepts_per_s: limits.accepts_per_s.into(),
            send_buffer_bytes: limits.send_buffer_bytes as u64,
        }
    }

    /// Memory of the process without connections, with full logs.
    pub fn fixed_bytes(&self) -> u64 {
        formula::server_bytes(self.shards) + self.log_bytes
    }

    /// Memory of the process for one connection.
    pub fn process_bytes(&self) -> u64 {
        let tls = if self.has_tls { formula::TLS_BYTES } else { 0 };
        self.protocol.process_bytes() + tls
    }

    /// Memory of the process and of the kernel for one connection.
    pub fn connection_bytes(&self, host: &Host) -> u64 {
        let tracked = if host.tracks_connections() {
            formula::TRACKED_BYTES
        } else {
            0
        };
        self.process_bytes() + KERNEL_BYTES + tracked
    }

    /// All memory: that of the server without connections, and that of all connections.
    pub fn memory_bytes(&self, host: &Host) -> u64 {
        self.fixed_bytes() + self.connections * self.connection_bytes(host)
    }
}

/// The number of threads that verify passwords and send requests to the callback.
fn verifier_threads(cores: usize, file: &File) -> usize {
    let Some(access) = &file.access else {
        return 0;
    };
    let passwords = match access.password_threads {
        0 => cores.div_ceil(4),
        some => some,
    };
    let callback = access.callback.as_ref();
    passwords + callback.map_or(0, |callback| callback.concurrency)
}
