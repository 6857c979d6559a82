//! The flags of `crore-bench publish`.

use std::path::PathBuf;

use super::compose::MessageFormat;
use crate::client::mqtt::{Dialect, MqttArgs};
use crate::measure::units;

/// How messages reach the server.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// HTTP, with the server's own paths.
    #[default]
    Http,
    /// MQTT.
    Mqtt,
    /// MQTT over WebSocket.
    MqttWs,
}

/// `crore-bench publish`
#[derive(clap::Args, Clone, Debug)]
pub struct PublishArgs {
    /// Address of the server; ports may be a range (127.0.0.1:9000-9199)
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8800")]
    pub server: Vec<String>,
    /// Number of connections, spread over the servers
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Pattern of the topics; {1..1000} stands for each number of the range
    #[arg(long, value_name = "PATTERN", default_value = "/p/s{1..1000}/-")]
    pub topics: String,
    /// Messages to publish a second, evenly spaced
    #[arg(long, default_value_t = 100.0, conflicts_with = "saturate")]
    pub rate: f64,
    /// Publish as fast as the server accepts
    #[arg(long)]
    pub saturate: bool,
    /// Bytes of a message; with 32 or more, it contains its time and number for `subscribe`
    #[arg(long, default_value_t = 512)]
    pub size: usize,
    /// Publish to one topic after another, instead of to random topics
    #[arg(long)]
    pub cycle: bool,
    /// Use TLS, and trust the certificates in this PEM file
    #[arg(long, value_name = "FILE")]
    pub tls: Option<PathBuf>,
    /// Protocol of the publishes
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["single", "floor"])]
    pub protocol: Protocol,
    /// How MQTT is spoken
    #[command(flatten)]
    pub mqtt: MqttArgs,
    /// Publish each message in its own request (POST /pub/TOPIC) instead of in batches
    #[arg(long)]
    pub single: bool,
    /// The server is `crore-bench floor`
    #[arg(long, conflicts_with = "single")]
    pub floor: bool,
    /// With --floor: every message goes to all subscribers
    #[arg(long, requires = "floor")]
    pub broadcast: bool,
    /// Maximum number of unanswered requests (MQTT: messages) of each connection
    #[arg(long, value_name = "REQUESTS", default_value_t = 16)]
    pub in_flight: usize,
    /// Number of messages in a batch [default: as many as fit in 60 kB]
    #[arg(long, value_name = "MESSAGES", conflicts_with_all = ["single", "floor"])]
    pub batch: Option<u64>,
    /// How long to publish, such as 60s [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = units::seconds)]
    pub duration: Option<f64>,
    /// End after this many messages
    #[arg(long, value_name = "COUNT")]
    pub messages: Option<u64>,
    /// Write the result to a file; - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print nothing during the run
    #[arg(long)]
    pub quiet: bool,
}

impl PublishArgs {
    /// The defaults, except for the server, the topics and the message size.
    pub(crate) fn of(server: &str, topics: &str, size: usize) -> PublishArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: PublishArgs,
        }
        let args = <Line as clap::Parser>::parse_from(["publish"]).args;
        PublishArgs {
            server: vec![server.into()],
            topics: topics.into(),
            size,
            ..args
        }
    }

    /// Selects MQTT, over WebSocket if `is_framed`.
    pub(crate) fn speak_mqtt(&mut self, is_framed: bool) {
        self.protocol = if is_framed {
            Protocol::MqttWs
        } else {
            Protocol::Mqtt
        };
        // With QoS 1 the server acknowledges each message, so the tool knows which messages the server accepted.
        self.mqtt.qos = 1;
    }

    /// The format of the messages.
    pub(super) fn format(&self) -> MessageFormat {
        if self.protocol != Protocol::Http {
            let is_framed = self.protocol == Protocol::MqttWs;
            return MessageFormat::Packet(Dialect::new(&self.mqtt, is_framed));
        }
        match (self.single, self.floor) {
            (true, _) => MessageFormat::Single,
            (_, true) => MessageFormat::Record,
            _ => MessageFormat::Batch,
        }
    }
}
