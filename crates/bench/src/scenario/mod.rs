//! `crore bench run SCENARIO`: a server of its own, both tools, one result.
//!
//! Every scenario starts its processes anew, measures, prints a few lines and returns one JSON
//! value; [`run`] adds the machine and the settings, so that a result can be read alone. Memory
//! is always the growth over the same server, empty.

mod chaos;
mod comet;
mod drain;
mod fill;
mod filters;
mod hold;
mod pair;
mod reload;
mod rig;
mod sessions;
mod stalled;
mod storm;
mod tcp;
mod tls;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::mqtt::MqttArgs;
use crate::sample::{self, Kernel, Process};
use crate::subscribe::Protocol;
use crate::{report, sys};
pub use rig::Kind;

/// Seconds between two samples, as the 2013 bandwidth was read.
const SAMPLE_S: f64 = 10.0;

/// What is run.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A million subscribers with a topic each, a message a minute each
    Million,
    /// The table of 2009: bytes per connection and time of a broadcast, up to 10,000 long-polls
    #[value(name = "comet-10k")]
    Comet10k,
    /// A million long-polls on a grid; each client talks to its neighbours once a minute, in a request of its own
    CometMillion,
    /// Many ports instead of many addresses, as in 2014
    OneHost,
    /// Raw TCP connections that have said MQTT's CONNECT and nothing else, as in 2014
    Tcp,
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
    /// Settings that are read again under load, beside windows without
    Reload,
    /// Subscribers that stopped reading, beside others that read
    Stalled,
    /// Connections until a control group's memory is full, and what `crore doctor` said before
    Fill,
    /// Bytes and processor time of connections with TLS, beside the peers; deliveries while handshakes go on
    Tls,
    /// A thousand filters, a million, and those that cost most: the server's CPU for each publish
    Filters,
}

/// `crore bench run`
#[derive(clap::Args, Clone, Debug)]
pub struct RunArgs {
    /// What to run
    #[arg(value_enum)]
    pub scenario: Scenario,
    /// Connections [default: what the scenario's name says]
    #[arg(long)]
    pub connections: Option<u32>,
    /// The server to measure instead of this executable
    #[arg(long, value_name = "PATH")]
    pub server_binary: Option<PathBuf>,
    /// Shards of the server [default: as many as the descriptor limit demands, one for pairs]
    #[arg(long)]
    pub shards: Option<u32>,
    /// How to subscribe [default: what the scenario's original did]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// How MQTT is spoken
    #[command(flatten)]
    pub mqtt: MqttArgs,
    /// Messages that each topic's log keeps [default: none; 10 for long-poll]
    #[arg(long)]
    pub keep: Option<u32>,
    /// Seconds that a log keeps a message: few, to read memory with logs that are empty again [default: the server's]
    #[arg(long, value_name = "SECONDS")]
    pub keep_s: Option<u32>,
    /// Seconds of silence before the server's heartbeat; 0 is none
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub heartbeat: u32,
    /// Bytes of a message [default: the scenario's]
    #[arg(long)]
    pub size: Option<usize>,
    /// Messages a second [default: the scenario's]
    #[arg(long)]
    pub rate: Option<f64>,
    /// Seconds to measure [default: the scenario's]
    #[arg(long, visible_alias = "seconds", value_name = "SECONDS")]
    pub duration: Option<f64>,
    /// What the faults of chaos are drawn from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Connects a second [default: as fast as it goes]
    #[arg(long, value_name = "PER_SECOND")]
    pub connect_rate: Option<f64>,
    /// The server's `limits.accepts_per_s` [default: none, but the server's own for churn and tsunami]
    #[arg(long, value_name = "PER_SECOND")]
    pub accepts_per_s: Option<u32>,
    /// Connections that close and open a second, for churn
    #[arg(long, value_name = "PER_SECOND", default_value_t = 100)]
    pub churn_rate: u32,
    /// How often a pair, or each arrangement of stalled, is measured
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Who else is in the pair, beside the floor (not over MQTT) and this server
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PEERS",
        default_value = "floor"
    )]
    pub peer: Vec<Kind>,
    /// Only these rows of the pair (unicast, fan-out, broadcast, rate, idle; over MQTT acknowledged and quality-1 too)
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Certificate and key of the servers: set by scenarios with TLS
    #[arg(skip)]
    pub certificate: Option<rig::Certificate>,
    /// Filters of the large set, for filters [default: 1,000,000]
    #[arg(long)]
    pub filters: Option<u32>,
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

/// As good as no limit of arrivals.
const ACCEPTS_ANY: u32 = 1_000_000;

impl RunArgs {
    /// What bounds arrivals at the server; 0 is its default.
    fn accepts(&self) -> u32 {
        let storm = matches!(self.scenario, Scenario::Churn | Scenario::Tsunami);
        self.accepts_per_s
            .unwrap_or(if storm { 0 } else { ACCEPTS_ANY })
    }

    /// What a pair's publishers speak where its subscribers speak MQTT; HTTP takes most elsewhere.
    fn fed(&self) -> Protocol {
        let wanted = self.protocol.unwrap_or(Protocol::Ws);
        if self.scenario == Scenario::Pair {
            wanted
        } else {
            Protocol::Ws
        }
    }

    /// The same at another quality of service.
    fn at_qos(&self, qos: u8) -> RunArgs {
        let mut args = self.clone();
        args.mqtt.qos = qos;
        args
    }

    fn keep(&self, protocol: Protocol) -> u32 {
        self.keep
            .unwrap_or(if protocol == Protocol::Poll { 10 } else { 0 })
    }
}

/// Runs a scenario; fails when a message was lost, doubled or misdelivered.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    sys::raise_descriptor_limit()?;
    let result = match args.scenario {
        Scenario::Million | Scenario::OneHost | Scenario::CometMillion => hold::run(args)?,
        Scenario::Comet10k => comet::run(args)?,
        Scenario::Tcp => tcp::run(args)?,
        Scenario::Sessions => sessions::run(args)?,
        Scenario::Churn => storm::churn(args)?,
        Scenario::Tsunami => storm::tsunami(args)?,
        Scenario::Pair => pair::run(args)?,
        Scenario::Chaos => chaos::run(args)?,
        Scenario::Drain => drain::run(args)?,
        Scenario::Reload => reload::run(args)?,
        Scenario::Stalled => stalled::run(args)?,
        Scenario::Filters => filters::run(args)?,
        Scenario::Fill => fill::run(args)?,
        Scenario::Tls => tls::run(args)?,
    };
    let value = json!({
        "scenario": format!("{:?}", args.scenario),
        "command": std::env::args().collect::<Vec<_>>().join(" "),
        "server_binary": rig::binary(args),
        "machine": sample::machine(),
        "heartbeat_s": args.heartbeat,
        "log_age_s": args.keep_s,
        "accepts_per_s": args.accepts(),
        "pinned": args.pin,
        "result": result,
    });
    if let Some(path) = &args.json {
        report::keep(path, &value)?;
    }
    let failed = value["result"]["clean"] == json!(false);
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Topics of 13 bytes each, one for each connection.
fn topics(connections: u32) -> String {
    if connections < 90_000 {
        format!("/topic/s{{10001..{}}}", 10_000 + connections)
    } else {
        format!("/p/s{{1000001..{}}}/-", 1_000_000 + connections)
    }
}

/// Local addresses that give enough tuples. The kernel offers only every second port of its usual
/// 28,000 until those are used up, and then searches all of them each time: 10,000 for each address.
fn locals(connections: u32) -> String {
    format!(
        "127.0.{{1..{}}}.1",
        connections.div_ceil(10_000).clamp(1, 250)
    )
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Ws => "ws",
        Protocol::Sse => "sse",
        Protocol::Poll => "poll",
        Protocol::Mqtt => "mqtt",
        Protocol::MqttWs => "mqtt-ws",
    }
}

/// What each connection cost between two moments.
fn per_connection(connections: u32, before: &Moment, after: &Moment) -> Value {
    let n = f64::from(connections);
    let grown = |after: u64, before: u64| (after as f64 - before as f64) / n;
    let slabs: serde_json::Map<String, Value> = after
        .kernel
        .slabs
        .iter()
        .map(|(name, bytes)| {
            let before = before.kernel.slabs.get(name).copied().unwrap_or(0);
            (name.clone(), json!(grown(*bytes, before)))
        })
        .collect();
    json!({
        "server_pss_bytes": grown(after.process.pss_bytes, before.process.pss_bytes),
        "server_rss_bytes": grown(after.process.rss_bytes, before.process.rss_bytes),
        "server_cpu_us": (after.process.cpu_s - before.process.cpu_s) * 1e6 / n,
        "kernel_both_ends_slab_bytes": grown(after.kernel.slab_bytes, before.kernel.slab_bytes),
        "kernel_both_ends_buffer_bytes": grown(after.kernel.buffer_bytes, before.kernel.buffer_bytes),
        "kernel_both_ends_slabs": slabs,
    })
}

/// The server and the kernel at one moment.
struct Moment {
    process: Process,
    kernel: Kernel,
    at_ns: u64,
}

impl Moment {
    fn of(server: &mut rig::Server) -> Result<Moment> {
        Ok(Moment {
            process: server.sample()?,
            kernel: Kernel::read()?,
            at_ns: sys::now_ns(),
        })
    }

    fn json(&self) -> Value {
        json!({
            "at_s": self.at_ns as f64 / 1e9,
            "server": self.process.json(),
            "kernel": self.kernel.json(),
        })
    }
}

/// Samples the server for `seconds`, every ten, and once at the end.
fn watch(server: &mut rig::Server, seconds: f64) -> Result<Vec<Value>> {
    let mut samples = Vec::new();
    let mut left = seconds;
    while left > 0.0 {
        let step = left.min(SAMPLE_S);
        std::thread::sleep(Duration::from_secs_f64(step));
        left -= step;
        samples.push(Moment::of(server)?.json());
    }
    Ok(samples)
}

fn pause(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

/// Whether nothing was lost, doubled or given to the wrong client.
fn is_clean(report: &Value) -> bool {
    ["lost", "doubled", "misdelivered"]
        .iter()
        .all(|name| report[name] == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;

    #[test]
    fn every_topic_has_thirteen_bytes() {
        for connections in [1, 10_000, 89_999, 90_000, 1_000_000] {
            let pattern = Pattern::parse(&topics(connections)).unwrap();
            assert_eq!(pattern.count(), connections);
            for index in [0, connections / 2, connections - 1] {
                assert_eq!(pattern.name(index).len(), 13, "{}", pattern.name(index));
            }
        }
    }

    #[test]
    fn addresses_and_shards_hold_what_is_asked() {
        for connections in [1, 10_000, 15_000, 1_000_000] {
            let addresses = Pattern::parse(&locals(connections)).unwrap().count();
            assert!(addresses * 14_000 >= connections);
            // 20,000 descriptors in a table, and some air for the kernel's spreading.
            assert!(rig::shards_for(connections, 1, 1) * 19_000 >= connections);
        }
        assert_eq!(rig::shards_for(1_000_000, 1, 2), 54);
        assert_eq!(rig::shards_for(10, 1, 2), 2);
    }

    #[test]
    fn the_busy_side_is_named() {
        assert_eq!(rig::bottleneck(0.99, 1.0, 0.5, 1.0), "server");
        assert!(rig::bottleneck(0.5, 1.0, 0.99, 1.0).starts_with("TOOL"));
        assert_eq!(rig::bottleneck(0.5, 1.0, 0.5, 1.0), "neither");
    }
}
