//! The flags of `crore-bench run`, and the values that scenarios compute from the flags.

use std::path::PathBuf;

use anyhow::Result;
use strum::IntoStaticStr;

use super::certificate::Certificate;
use super::kind::Kind;
use crate::client::mqtt::MqttArgs;
use crate::measure::units;
use crate::subscribe::Protocol;
use crate::sys;

/// A scenario.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A million subscribers over ws or sse with a topic each at the highest rate; they need no sockets of their own
    Million,
    /// Connections with sockets of the kernel, over any protocol, as --preset says
    Hold,
    /// The table of 2009: bytes per connection and time of a broadcast, up to 10,000 long-polls
    #[value(name = "comet-10k")]
    Comet10k,
    /// MQTT sessions whose clients have gone away
    Sessions,
    /// Connections close and open while the others are served
    Churn,
    /// All connections drop and return at once
    Tsunami,
    /// The floor and the server in turn, row by row
    Pair,
    /// Clients over a network that cuts, stalls and tears; every promise is checked
    Chaos,
    /// A planned restart under the feet of all clients; nothing may be lost
    Drain,
    /// Kills and power cuts under load; everything that was answered is looked for afterwards
    Crash,
    /// Answered publishes a second with a state directory, beside a bare loop that syncs, SQLite, NATS and Mosquitto
    Durable,
    /// The start after a kill, with gigabytes of messages and with a million latest values, beside a sequential read
    Recovery,
    /// Durable publishes at half the possible rate, a kill every minute: disk, memory and the start must not grow
    DurableSoak,
    /// Hours of a million subscribers that come and go, with heartbeats and settings that change: memory must not grow
    Soak,
    /// Settings that are read again under load, beside windows without
    Reload,
    /// Connections until a control group's memory is full, and what `crore doctor` said before
    Fill,
    /// Bytes and processor time of connections with TLS, beside the peers; deliveries while handshakes go on
    Tls,
    /// Two nodes over three servers of NATS; each of them is killed, cut off and started again
    Cluster,
    /// Answered publishes a second of a node of a cluster beside the bare client of NATS, the time to the other node, and the memory of many topics
    ClusterRates,
    /// Instructions of a delivery and of a publish at a node of a cluster, beside a server that keeps all in memory; needs valgrind
    ClusterInstructions,
    /// A thousand filters, a million, and those that cost most: the server's CPU for each publish
    Filters,
}

/// The connections of `hold` and how they are published to.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Preset {
    /// A million subscribers with a topic each
    #[default]
    Million,
    /// A million long-polls on a grid, as in 2012; each client publishes to its neighbours once a minute, in a request of its own
    CometMillion,
    /// The same as million, over many server ports instead of from many addresses, as in 2014
    OneHost,
    /// Raw TCP connections that have sent MQTT's CONNECT and nothing else, as in 2014
    Tcp,
}

impl Preset {
    /// The name of the preset in flags and results.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// `crore-bench run`
#[derive(clap::Args, Clone, Debug)]
pub struct RunArgs {
    /// The scenario
    #[arg(value_enum)]
    pub scenario: Scenario,
    /// What hold holds
    #[arg(long, value_enum, default_value_t)]
    pub preset: Preset,
    /// Connections [default: what the scenario's name says]
    #[arg(long, visible_alias = "subscribers")]
    pub connections: Option<u32>,
    /// The Crore to measure [default: the one beside this program, or in PATH]
    #[arg(long, value_name = "PATH")]
    pub server_binary: Option<PathBuf>,
    /// Shards of the server [default: as many as the descriptor limit demands, one for pairs]
    #[arg(long)]
    pub shards: Option<u32>,
    /// Shards of the second server in a planned restart, which then runs on all cores [default: the same number, on the same cores]
    #[arg(long)]
    pub shards_after: Option<u32>,
    /// How to subscribe [default: what the scenario's original did]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// How MQTT is spoken
    #[command(flatten)]
    pub mqtt: MqttArgs,
    /// Messages that each topic's log keeps [default: none; 10 for long-poll]
    #[arg(long)]
    pub keep: Option<u32>,
    /// How long a log keeps a message; a short time empties the logs before memory is read [default: the server's]
    #[arg(long, value_name = "TIME", value_parser = units::whole_seconds::<u32>)]
    pub keep_s: Option<u32>,
    /// Silence before the server's heartbeat; 0 is none
    #[arg(long, default_value_t = 0, value_name = "TIME", value_parser = units::whole_seconds::<u32>)]
    pub heartbeat: u32,
    /// Bytes of a message [default: the scenario's]
    #[arg(long)]
    pub size: Option<usize>,
    /// Messages a second [default: the scenario's]
    #[arg(long)]
    pub rate: Option<f64>,
    /// How long to measure, such as 60s, 10m or 6h [default: the scenario's]
    #[arg(long, visible_alias = "seconds", value_name = "TIME", value_parser = units::seconds)]
    pub duration: Option<f64>,
    /// The same in hours, for soak
    #[arg(long, conflicts_with = "duration")]
    pub hours: Option<f64>,
    /// The seed of the faults of chaos and cluster, and of the moments of crash
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Kills of the server, for crash [default: 100]
    #[arg(long)]
    pub kills: Option<u32>,
    /// Power cuts, for crash: these need root, loop devices and ext4
    #[arg(long, default_value_t = 0)]
    pub power_cuts: u32,
    /// Kills after which the newest segment of the log is deleted, for crash
    #[arg(long, default_value_t = 0)]
    pub lost_ends: u32,
    /// Kills while the log fills its disk, after which what fills it is deleted, for crash: these need root, loop devices and ext4
    #[arg(long, default_value_t = 0)]
    pub full_disks: u32,
    /// Cuts of 20 to 60 seconds beside the other faults, for cluster
    #[arg(long, default_value_t = 0)]
    pub long_cuts: usize,
    /// `cluster.history_bytes` in MiB, for cluster [default: that of the server]
    #[arg(long)]
    pub history_mib: Option<u32>,
    /// Connects a second [default: as fast as it goes]
    #[arg(long, value_name = "PER_SECOND")]
    pub connect_rate: Option<f64>,
    /// The server's `limits.accepts_per_s` [default: none, but the server's own for churn and tsunami]
    #[arg(long, value_name = "PER_SECOND")]
    pub accepts_per_s: Option<u32>,
    /// Connections that close and open a second, for churn
    #[arg(long, value_name = "PER_SECOND", default_value_t = 100)]
    pub churn_rate: u32,
    /// Rounds of pair, durable, filters, tls, reload, cluster-rates and cluster-instructions, or how often cluster causes each fault
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// The other servers of the pair, beside the floor (not over MQTT) and this server
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PEERS",
        default_value = "floor"
    )]
    pub peer: Vec<Kind>,
    /// Only these rows of the pair (unicast, unicast-log, post, fan-out, broadcast, rate, idle; over MQTT acknowledged and quality-1 too)
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<String>,
    /// The program nats-server, for cluster and durable [default: $CRORE_NATS_SERVER, or where PATH has it]
    #[arg(long, value_name = "PATH")]
    pub nats_server: Option<PathBuf>,
    /// Certificate and key of the servers: set by scenarios with TLS
    #[arg(skip)]
    pub certificate: Option<Certificate>,
    /// Filters of the large set, for filters [default: 1,000,000]
    #[arg(long)]
    pub filters: Option<u32>,
    /// Bytes on disk, for recovery, in MiB [default: 5,000]
    #[arg(long, value_name = "MIB")]
    pub disk_mib: Option<u32>,
    /// Topics with a latest value, for recovery [default: 1,000,000] and cluster-rates [default: 100,000]
    #[arg(long)]
    pub topics: Option<u32>,
    /// Partitions of the log, for cluster-rates
    #[arg(long, default_value_t = 4)]
    pub partitions: u16,
    /// Memory of the server's control group, for fill, in MiB
    #[arg(long, default_value_t = 768, value_name = "MIB")]
    pub memory_mib: u32,
    /// The server on core 0, the tools on core 1
    #[arg(long)]
    pub pin: bool,
    /// Keep the result in a file; - is standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The maximum number of connections per shard. The number is well below 20,000, a possible limit of a descriptor table, because the kernel
/// distributes connections to listeners only roughly evenly, and because a server reserves the last ninth of its connections for other
/// addresses if one address holds all the rest.
const PER_SHARD: u32 = 17_400;

/// Cores of the server and of the tools with `--pin`.
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

    /// The publishers' protocol. In `pair` it is the subscribers' protocol, otherwise HTTP, over which the server accepts the most messages
    /// a second.
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
