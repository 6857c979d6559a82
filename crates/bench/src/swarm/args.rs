//! Defines the flags of `crore-bench swarm`, which simulates many clients of one server.

use std::path::PathBuf;

use crate::measure::units;
use crate::rig::{ServerKind, Transport};

/// How a client subscribes and receives messages.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// A WebSocket: each message is a frame
    #[default]
    #[value(aliases = ["websocket", "websockets"])]
    Ws,
    /// Server-Sent Events: each message is an event
    #[value(aliases = ["eventsource", "events"])]
    Sse,
    /// Plain TCP: the client sends the topic in a line, the server answers with a line, and each message is a line
    Tcp,
}

impl Protocol {
    /// The protocol's name in flags and results.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Ws => "ws",
            Protocol::Sse => "sse",
            Protocol::Tcp => "tcp",
        }
    }
}

/// The flags of `crore-bench swarm`.
#[derive(clap::Args, Clone, Debug)]
pub struct SwarmArgs {
    /// Number of clients, each with its own topic
    #[arg(long, default_value_t = 10_000)]
    pub connections: u32,
    /// Protocol of the clients
    #[arg(long, value_enum, default_value_t)]
    pub protocol: Protocol,
    /// What carries the packets, and what the server's TCP is
    #[arg(long, value_enum, default_value_t)]
    pub transport: Transport,
    /// The server to measure, without `--server-command`.
    #[arg(skip = ServerKind::Crore)]
    pub kind: ServerKind,
    /// A shell command that starts the server to measure. It runs in the network namespace of this tool and must listen on 10.64.0.1
    /// [default: Crore]
    #[arg(long, value_name = "COMMAND")]
    pub server_command: Option<String>,
    /// Port of the server that --server-command starts
    #[arg(long, default_value_t = 8800, requires = "server_command")]
    pub server_port: u16,
    /// The `crore` binary to measure [default: the one in the directory of this program, or in PATH]
    #[arg(long, value_name = "PATH", conflicts_with = "server_command")]
    pub server_binary: Option<PathBuf>,
    /// Shards of Crore [default: as many as the descriptor limit requires]
    #[arg(long, conflicts_with = "server_command")]
    pub shards: Option<u32>,
    /// Time without a message after which Crore sends a heartbeat; 0 for no heartbeats
    #[arg(
        long = "heartbeat",
        default_value_t = 0,
        value_name = "TIME",
        value_parser = units::whole_seconds::<u32>,
        conflicts_with = "server_command"
    )]
    pub heartbeat_s: u32,
    /// Number of messages that the log of each topic keeps in Crore
    #[arg(
        long = "keep",
        value_name = "KEEP",
        default_value_t = 0,
        conflicts_with = "server_command"
    )]
    pub log_messages: u32,
    /// The request target of subscriptions, in which {topic} stands for the topic [default: that of Crore]
    #[arg(long, value_name = "PATH")]
    pub target: Option<String>,
    /// Pattern of the topics, such as /news/{1..10000}: it must give one topic for each client [default: topics of 13 bytes]
    #[arg(long, value_name = "PATTERN")]
    pub topics: Option<String>,
    /// Messages a second, to random topics; 0 for none [default: one a minute for each client]
    #[arg(long = "rate", value_name = "RATE")]
    pub publish_rate: Option<f64>,
    /// Publish each message in its own request (POST /pub/TOPIC) instead of in batches of NDJSON
    #[arg(long = "single")]
    pub publishes_singly: bool,
    /// Bytes of a message
    #[arg(long = "size", value_name = "SIZE", default_value_t = 512)]
    pub message_bytes: usize,
    /// How long to measure, after all clients have connected
    #[arg(long = "duration", default_value = "60s", value_name = "TIME", value_parser = units::seconds)]
    pub duration_s: f64,
    /// Connections to open a second [default: as fast as possible]
    #[arg(long, value_name = "PER_SECOND")]
    pub connect_rate: Option<f64>,
    /// Clients a second that close their connection with FIN and reconnect
    #[arg(long = "drop-rate", default_value_t = 0.0, value_name = "PER_SECOND")]
    pub reconnect_rate: f64,
    /// Number of clients that reset their connections at the same time, in the middle of the run, and reconnect
    #[arg(long = "tsunami", default_value_t = 0, value_name = "CLIENTS")]
    pub reset_clients: u32,
    /// SYNs a second from addresses that nobody has, in the second half of the run
    #[arg(long = "syn-flood", default_value_t = 0.0, value_name = "PER_SECOND")]
    pub syn_flood: f64,
    /// The share of clients (0 to 1) that read at most 1,024 bytes a second. Messages that these clients do not receive are counted
    /// separately
    #[arg(long = "slow", default_value_t = 0.0, value_name = "SHARE")]
    pub slow_share: f64,
    /// The share of packets (0 to 1) that are lost, in each direction
    #[arg(long = "loss", default_value_t = 0.0, value_name = "SHARE")]
    pub loss_share: f64,
    /// The longest delay of a packet, such as 5ms. Each packet is delayed for a random time, so packets may overtake one another
    #[arg(long = "delay", default_value = "0ms", value_name = "TIME", value_parser = units::milliseconds)]
    pub delay_max_ms: f64,
    /// The time within which the server must close its end of a connection after the client has closed its own
    #[arg(long = "close-within", default_value = "5s", value_name = "TIME", value_parser = units::seconds)]
    pub close_within_s: f64,
    /// Number of threads; each simulates a part of the clients, over its own TUN device
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub threads: u8,
    /// Write the result to a file; - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print nothing during the run
    #[arg(long)]
    pub quiet: bool,
}
