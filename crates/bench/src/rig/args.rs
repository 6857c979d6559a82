//! Defines the flags of `crore-bench run`, and computes from them the values that several scenarios need.

use std::path::PathBuf;

use anyhow::Result;
use strum::IntoStaticStr;

use super::certificate::Certificate;
use super::kind::ServerKind;
use super::transport::Transport;
use crate::client::mqtt::MqttArgs;
use crate::measure::units;
use crate::subscribe::Protocol;
use crate::sys;

/// A scenario: what a run does and measures.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Finds the highest rate of messages to a million subscribers over ws or sse, each with its own topic; the clients use no kernel
    /// sockets
    Million,
    /// Holds many connections with kernel sockets, over any protocol; --preset chooses which
    Hold,
    /// Repeats a benchmark of 2009: bytes per connection, and the time of a broadcast, for up to 10,000 long-polls on one topic
    #[value(name = "comet-10k")]
    Comet10k,
    /// Measures the memory of MQTT sessions whose clients have disconnected
    Sessions,
    /// Measures the latency of messages while other connections close and open
    Churn,
    /// Measures the latency of messages before, during and after all other connections close and reconnect at once
    Tsunami,
    /// Compares Crore with the floor (a minimal reference server) and with other servers, in several kinds of load (rows)
    Pair,
    /// Connects clients through a proxy that cuts, stalls and splits their traffic, and checks that no message is lost, repeated or
    /// reordered
    Chaos,
    /// Restarts the server as planned while clients are connected, and checks that no message is lost
    Drain,
    /// Kills the server under load, or cuts the power, and checks that every acknowledged message still exists
    Crash,
    /// Measures acknowledged durable publishes a second, compared with a loop that only writes and syncs, SQLite, NATS and Mosquitto
    Durable,
    /// Measures how long a start after a kill takes, with gigabytes of messages and with a million latest values, compared with a
    /// sequential read
    Recovery,
    /// Publishes durably at half the possible rate, with a kill every minute, and checks that disk usage, memory and start time do not grow
    DurableSoak,
    /// Serves a million subscribers that come and go for hours, with heartbeats and reloads, and checks that memory does not grow
    Soak,
    /// Measures latencies while the server reloads its settings, compared with latencies without reloads
    Reload,
    /// Connects clients until the memory of a control group is full, and compares their number with the estimate of `crore doctor`
    Fill,
    /// Measures memory and processor time of connections with TLS, compared with other servers, and latencies during many handshakes
    Tls,
    /// Compares Crore with Centrifugo over its client protocol: memory, processor time of a delivery, and the time to reconnect; needs centrifugo
    Centrifugo,
    /// Measures what it costs to know who subscribes: joins that others watch, the memory of a member, and webhooks with a slow endpoint
    Presence,
    /// Measures memory and processor time of event streams and publishes over HTTP/2, compared with HTTP/1.1; needs h2load
    Http2,
    /// Kills, cuts off and restarts the two nodes and three NATS servers of a cluster, and checks that no message is lost
    Cluster,
    /// Measures acknowledged publishes a second at a cluster node, compared with a NATS client alone; the time to the other node; and the
    /// memory of many topics
    ClusterRates,
    /// Counts the instructions of a delivery and of a publish at a cluster node, compared with a server that keeps everything in memory;
    /// needs valgrind
    ClusterInstructions,
    /// Measures the processor time of a publish with a thousand filters, with a million, and with filters that are chosen to be expensive
    Filters,
}

/// The connections of `hold`, and how messages are published to them.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Preset {
    /// A million subscribers, each with its own topic
    #[default]
    Million,
    /// A million long-polls, as in a benchmark of 2012: the clients form a square grid, and each publishes to its neighbours once a minute,
    /// over a second connection
    CometMillion,
    /// Like million, but the connections go to many server ports instead of coming from many addresses, as in a benchmark of 2014
    OneHost,
    /// Connections that send MQTT's CONNECT and nothing else: compare with the raw TCP connections in a benchmark of 2014
    Tcp,
}

impl Preset {
    /// The name of the preset in flags and results.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The flags of `crore-bench run`.
#[derive(clap::Args, Clone, Debug)]
pub struct RunArgs {
    /// The scenario to run
    #[arg(value_enum)]
    pub scenario: Scenario,
    /// What carries the packets, for million and soak; for pair xdp compares Crore over the kernel's TCP with Crore over its own
    #[arg(long, value_enum)]
    pub transport: Option<Transport>,
    /// Number of threads of the clients, for million and soak
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub threads: u8,
    /// Which connections hold opens
    #[arg(long, value_enum, default_value_t)]
    pub preset: Preset,
    /// Number of connections [default: depends on the scenario]
    #[arg(long, visible_alias = "subscribers")]
    pub connections: Option<u32>,
    /// The `crore` binary to measure [default: the one in the directory of this program, or in PATH]
    #[arg(long, value_name = "PATH")]
    pub server_binary: Option<PathBuf>,
    /// Shards of the server [default: as many as the descriptor limit requires; one for pair]
    #[arg(long)]
    pub shards: Option<u32>,
    /// Shards of the server after the restart of drain; with this flag, that server may use all cores [default: the same number of shards,
    /// on the same cores]
    #[arg(long)]
    pub shards_after: Option<u32>,
    /// Protocol of the subscribers [default: poll for comet-10k and --preset comet-million, mqtt for --preset tcp, otherwise ws]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// How the load tools use MQTT
    #[command(flatten)]
    pub mqtt: MqttArgs,
    /// Messages that the log of each topic keeps [default: 10 for long-poll, otherwise 0]
    #[arg(long)]
    pub keep: Option<u32>,
    /// How long a log keeps a message. With a short time, the logs are empty before memory is measured [default: that of the server]
    #[arg(long, value_name = "TIME", value_parser = units::whole_seconds::<u32>)]
    pub keep_s: Option<u32>,
    /// Time without a message after which the server sends a heartbeat; 0 for no heartbeats
    #[arg(long, default_value_t = 0, value_name = "TIME", value_parser = units::whole_seconds::<u32>)]
    pub heartbeat: u32,
    /// Bytes of a message [default: depends on the scenario]
    #[arg(long)]
    pub size: Option<usize>,
    /// Messages a second [default: depends on the scenario]
    #[arg(long)]
    pub rate: Option<f64>,
    /// How long to measure, such as 60s, 10m or 6h [default: depends on the scenario]
    #[arg(long, visible_alias = "seconds", value_name = "TIME", value_parser = units::seconds)]
    pub duration: Option<f64>,
    /// How long to measure in hours, for soak
    #[arg(long, conflicts_with = "duration")]
    pub hours: Option<f64>,
    /// The seed of all random choices: the faults of chaos and cluster, and the times of the kills of crash
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of kills of the server, for crash [default: 100]
    #[arg(long)]
    pub kills: Option<u32>,
    /// Number of MQTT clients with durable sessions, during kills and power cuts for crash, and for cluster
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    pub sessions: u32,
    /// Number of power cuts, for crash; needs root, loop devices and ext4
    #[arg(long, default_value_t = 0)]
    pub power_cuts: u32,
    /// Number of kills after which the newest segment of the log is deleted, for crash
    #[arg(long, default_value_t = 0)]
    pub lost_ends: u32,
    /// Number of kills while the log fills its disk, after each of which most messages are deleted, for crash; needs root, loop devices and
    /// ext4
    #[arg(long, default_value_t = 0)]
    pub full_disks: u32,
    /// Number of times that a node is cut off from NATS for 20 to 60 seconds, besides the other faults, for cluster
    #[arg(long, default_value_t = 0)]
    pub long_cuts: usize,
    /// `cluster.history_bytes` in MiB, for cluster [default: that of the server]
    #[arg(long)]
    pub history_mib: Option<u32>,
    /// Connections to open a second [default: as fast as possible]
    #[arg(long, value_name = "PER_SECOND")]
    pub connect_rate: Option<f64>,
    /// The server's `limits.accepts_per_s` [default: no limit; for churn and tsunami the server's default]
    #[arg(long, value_name = "PER_SECOND")]
    pub accepts_per_s: Option<u32>,
    /// Connections that close and reopen a second, for churn
    #[arg(long, value_name = "PER_SECOND", default_value_t = 100)]
    pub churn_rate: u32,
    /// Number of rounds, for pair, durable, filters, tls, http2, centrifugo, reload, cluster-rates and cluster-instructions; for cluster the number of times
    /// that each fault happens
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// The other servers to measure, for pair, tls and sessions. pair always measures Crore and the floor; over MQTT it measures Crore and
    /// Mosquitto
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PEERS",
        default_value = "floor"
    )]
    pub peer: Vec<ServerKind>,
    /// Measure only these rows: for pair unicast, unicast-log, post, fan-out, broadcast, rate, idle (over MQTT also acknowledged and
    /// quality-1); for tls idle, handshakes, storm; for
    /// http2 connections, idle, fan-out, unicast, publish; for centrifugo idle, fan-out, presence, unicast,
    /// reconnect; for presence join, members, webhooks
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<String>,
    /// The `nats-server` binary, for durable and the scenarios with a cluster [default: $CRORE_NATS_SERVER, or the one in PATH]
    #[arg(long, value_name = "PATH")]
    pub nats_server: Option<PathBuf>,
    /// The certificate and key of the servers. Not a flag: scenarios with TLS set it.
    #[arg(skip)]
    pub certificate: Option<Certificate>,
    /// Number of filters in the large set, for filters [default: 1,000,000]
    #[arg(long)]
    pub filters: Option<u32>,
    /// Size of the log on disk in MiB, for recovery [default: 5,000]
    #[arg(long, value_name = "MIB")]
    pub disk_mib: Option<u32>,
    /// Number of topics with a latest value, for recovery [default: 1,000,000] and cluster-rates [default: 100,000]; number of topics with a
    /// member, for presence [default: 1,000,000]
    #[arg(long)]
    pub topics: Option<u32>,
    /// Number of partitions of the log, for cluster-rates
    #[arg(long, default_value_t = 4)]
    pub partitions: u16,
    /// Memory of the server's control group in MiB, for fill
    #[arg(long, default_value_t = 768, value_name = "MIB")]
    pub memory_mib: u32,
    /// Run the server on core 0 and the tools on core 1
    #[arg(long)]
    pub pin: bool,
    /// Write the result to a file; - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The maximum number of connections per shard, if the descriptor table of each shard has 20,000 entries. The maximum is lower than that
/// for two reasons. The kernel distributes connections among shards only roughly evenly. And if all connections come from one address, the
/// server does not give the last ninth of its connections to that address.
const PER_SHARD: u32 = 17_400;

/// The cores of the server and of the tools with `--pin`.
const CORES: (usize, usize) = (0, 1);
/// A value of `limits.accepts_per_s` that does not delay any connection.
const ACCEPTS_ANY: u32 = 1_000_000;

/// The number of shards for `connections`, at least `least`.
fn shards_for(connections: u32, ports: u16, least: u32) -> u32 {
    connections
        .div_ceil(PER_SHARD - u32::from(ports))
        .max(least)
}

impl RunArgs {
    /// The number of shards: `--shards`, or as many as `connections` need, at least `least`.
    pub fn shards_for(&self, connections: u32, ports: u16, least: u32) -> u32 {
        let needed = shards_for(connections, ports, least);
        self.shards.unwrap_or(needed)
    }

    /// The server's core with `--pin`.
    pub fn core_of_server(&self) -> Option<usize> {
        self.pin.then_some(CORES.0)
    }

    /// The tools' core with `--pin`.
    pub fn core_of_tools(&self) -> Option<usize> {
        self.pin.then_some(CORES.1)
    }

    /// Pins this process to the tools' core, for scenarios that generate the load themselves.
    pub fn pin_tool(&self) -> Result<()> {
        Ok(self.core_of_tools().map_or(Ok(()), sys::pin)?)
    }

    /// The path of the measured server, for the result.
    pub fn binary(&self) -> String {
        let path = self.server_binary.as_ref();
        path.map_or("crore".into(), |path| path.display().to_string())
    }

    /// The server's `limits.accepts_per_s`. 0 means the server's default.
    pub fn accepts(&self) -> u32 {
        let storm = matches!(self.scenario, Scenario::Churn | Scenario::Tsunami);
        self.accepts_per_s
            .unwrap_or(if storm { 0 } else { ACCEPTS_ANY })
    }

    /// The subscribers' protocol; the default is WebSocket.
    pub fn subscribe_protocol(&self) -> Protocol {
        self.protocol.unwrap_or(Protocol::Ws)
    }

    /// The protocol that `ServerKind::publish_flags` gets, which uses MQTT for the publishers of Crore if this is MQTT, and HTTP otherwise. In
    /// `pair` it is the protocol of the subscribers. In other scenarios publishers always use HTTP, because the server accepts the most
    /// messages a second over HTTP.
    pub fn publish_protocol(&self) -> Protocol {
        if self.scenario == Scenario::Pair {
            self.subscribe_protocol()
        } else {
            Protocol::Ws
        }
    }

    /// The same flags with another QoS.
    pub fn at_qos(&self, qos: u8) -> RunArgs {
        let mut args = self.clone();
        args.mqtt.qos = qos;
        args
    }

    /// The number of messages that a topic's log keeps: `--keep`, otherwise 10 for long-poll and 0 for other protocols.
    pub fn keep(&self, protocol: Protocol) -> u32 {
        self.keep
            .unwrap_or(if protocol == Protocol::Poll { 10 } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_hold_what_is_asked() {
        for connections in [1, 10_000, 15_000, 1_000_000] {
            // A table has 20,000 descriptors; some are left for uneven distribution.
            assert!(shards_for(connections, 1, 1) * 19_000 >= connections);
        }
        assert_eq!(shards_for(1_000_000, 1, 2), 58);
        assert_eq!(shards_for(10, 1, 2), 2);
    }
}
