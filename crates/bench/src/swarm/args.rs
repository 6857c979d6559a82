//! The flags of `crore-bench swarm`.

use std::path::PathBuf;

use crate::measure::units;

/// How a client is subscribed.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// A WebSocket; a message is a frame
    #[default]
    #[value(aliases = ["websocket", "websockets"])]
    Ws,
    /// Server-Sent Events; a message is an event
    #[value(aliases = ["eventsource", "events"])]
    Sse,
    /// A line with the topic, which a line answers; then a message is a line
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

/// `crore-bench swarm`
#[derive(clap::Args, Clone, Debug)]
pub struct SwarmArgs {
    /// Clients, each with a topic of its own
    #[arg(long, default_value_t = 10_000)]
    pub connections: u32,
    /// How clients subscribe
    #[arg(long, value_enum, default_value_t)]
    pub protocol: Protocol,
    /// A shell command that starts the server to measure, in the namespace of the run: it listens on 10.64.0.1 [default: Crore]
    #[arg(long, value_name = "COMMAND")]
    pub server_command: Option<String>,
    /// The port of that server
    #[arg(long, default_value_t = 8800, requires = "server_command")]
    pub server_port: u16,
    /// The Crore to measure [default: the one beside this program, or in PATH]
    #[arg(long, value_name = "PATH", conflicts_with = "server_command")]
    pub server_binary: Option<PathBuf>,
    /// Shards of Crore [default: as many as the descriptor limit demands]
    #[arg(long, conflicts_with = "server_command")]
    pub shards: Option<u32>,
    /// Silence before Crore's heartbeat; 0 is none
    #[arg(
        long,
        default_value_t = 0,
        value_name = "TIME",
        value_parser = units::whole_seconds::<u32>,
        conflicts_with = "server_command"
    )]
    pub heartbeat: u32,
    /// Messages that each topic's log of Crore keeps
    #[arg(long, default_value_t = 0, conflicts_with = "server_command")]
    pub keep: u32,
    /// The target that clients subscribe at; {topic} stands for the topic [default: Crore's]
    #[arg(long, value_name = "PATH")]
    pub target: Option<String>,
    /// Topics, with a range of as many as there are clients [default: 13 bytes each]
    #[arg(long, value_name = "PATTERN")]
    pub topics: Option<String>,
    /// Messages a second, to topics at random; 0 is none [default: one a minute for each client]
    #[arg(long)]
    pub rate: Option<f64>,
    /// Publish each message by a POST /pub/TOPIC of its own, not by batches of NDJSON
    #[arg(long)]
    pub single: bool,
    /// Bytes of a message
    #[arg(long, default_value_t = 512)]
    pub size: usize,
    /// How long to measure, from when all are open
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = units::seconds)]
    pub duration: f64,
    /// Connects a second [default: as fast as it goes]
    #[arg(long, value_name = "PER_SECOND")]
    pub connect_rate: Option<f64>,
    /// Clients a second that close their connection in order and return
    #[arg(long, default_value_t = 0.0, value_name = "PER_SECOND")]
    pub drop_rate: f64,
    /// Clients that reset their connections all at once, half-way, and return
    #[arg(long, default_value_t = 0, value_name = "CLIENTS")]
    pub tsunami: u32,
    /// The share of clients that read 1,024 bytes a second at most; what they miss is counted apart
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub slow: f64,
    /// The share of packets that get lost, in both directions
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub loss: f64,
    /// Each packet waits for a random time up to this, such as 5ms, so that packets overtake one another
    #[arg(long, default_value = "0ms", value_name = "TIME", value_parser = units::milliseconds)]
    pub delay: f64,
    /// Within what time the server closes its end after a client has closed its own
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = units::seconds)]
    pub close_within: f64,
    /// Threads, with a device each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub threads: u8,
    /// Keep the result in a file; - is standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print nothing while it runs
    #[arg(long)]
    pub quiet: bool,
}
