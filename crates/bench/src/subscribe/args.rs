//! The flags of `crore-bench subscribe`.

use std::path::PathBuf;

use crate::client::mqtt::MqttArgs;
use crate::measure::units;

/// How connections subscribe.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// WebSocket.
    #[default]
    #[value(aliases = ["websocket", "websockets"])]
    Ws,
    /// Server-Sent Events.
    #[value(aliases = ["eventsource", "events"])]
    Sse,
    /// HTTP long-poll.
    #[value(aliases = ["longpoll", "long-poll"])]
    Poll,
    /// MQTT.
    Mqtt,
    /// MQTT over WebSocket.
    MqttWs,
}

impl Protocol {
    /// The protocol's name as a flag's value.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Ws => "ws",
            Protocol::Sse => "sse",
            Protocol::Poll => "poll",
            Protocol::Mqtt => "mqtt",
            Protocol::MqttWs => "mqtt-ws",
        }
    }
}

/// `crore-bench subscribe`
#[derive(clap::Args, Clone, Debug, Default)]
pub struct SubscribeArgs {
    /// Address of the server; a range of ports spreads the connections over them (127.0.0.1:9000-9199)
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8800")]
    pub server: Vec<String>,
    /// Number of connections to hold
    #[arg(long, default_value_t = 1000)]
    pub connections: u32,
    /// Connections to open a second [default: as fast as possible]
    #[arg(long, value_name = "PER_SECOND")]
    pub connect_rate: Option<f64>,
    /// Protocol of the subscriptions
    #[arg(long, value_enum, default_value_t)]
    pub protocol: Protocol,
    /// How MQTT is spoken
    #[command(flatten)]
    pub mqtt: MqttArgs,
    /// Pattern of the topics; {1..1000} stands for each number of the range
    #[arg(long, value_name = "PATTERN", default_value = "/p/s{1..1000}/-")]
    pub topics: String,
    /// Number of topics of each connection; 0 is possible with MQTT
    #[arg(long, default_value_t = 1)]
    pub topics_per_connection: u32,
    /// Local addresses to connect from, with ranges (127.0.{1..30}.1): each has some 28,000 connections to a server's port
    #[arg(long, value_name = "ADDRESSES")]
    pub local: Vec<String>,
    /// Size of the sockets' receive buffers [default: the system's]
    #[arg(long, value_name = "BYTES")]
    pub receive_buffer: Option<u32>,
    /// Use TLS, and trust the certificates in this PEM file
    #[arg(long, value_name = "FILE")]
    pub tls: Option<PathBuf>,
    /// Number of threads [default: as many as the descriptor limit requires]
    #[arg(long)]
    pub threads: Option<usize>,
    /// How long to hold the connections after all are open, such as 60s [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = units::whole_seconds::<u64>)]
    pub duration: Option<u64>,
    /// Write all reports to a file; - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print nothing during the run
    #[arg(long)]
    pub quiet: bool,
    /// The server is `crore-bench floor`
    #[arg(long)]
    pub floor: bool,
    /// Obey a scenario on standard input
    #[arg(long, hide = true)]
    pub control: bool,
    /// The clients are a grid, and publish messages of this size to their neighbours when the scenario says so
    #[arg(long, hide = true, requires = "control", value_name = "BYTES")]
    pub talk: Option<usize>,
}
