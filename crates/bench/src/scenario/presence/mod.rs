//! `presence`: measures the cost of presence, the list of a topic's subscribers (members).
//!
//! * `join`: members join one topic at a rate while other clients watch the list. Measures the delay until the watchers learn of a member, and the latency
//!   of another topic's messages.
//! * `members`: the server's memory of a member, in many topics with one member each.
//! * `webhooks`: members join and leave at a rate, and the server reports this to an HTTP endpoint. Measures the latency of messages and the server's
//!   memory, without an endpoint, with a fast endpoint and with a slow one.
//!
//! The scenario `centrifugo` measures the fan-out of messages to the members of a topic, and compares it with Centrifugo.

mod join;
mod probe;
mod webhooks;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crore_net::kernel::listener::HeldPort;
use serde_json::{Map, Value, json};

use super::centrifugo::clients::open_all;
use super::centrifugo::frames::Format;
use crate::client::link::Link;
use crate::report;
use crate::rig::{RunArgs, Sample, Server, ServerKind, ServerOptions, pause, reserve_ports};

/// Default number of topics for `members`.
const TOPICS: u32 = 1_000_000;
/// The number of topics to which each connection of `members` subscribes.
const TOPICS_OF_EACH: u32 = 1_000;
/// Seconds before memory is read.
const SETTLE_S: f64 = 3.0;
/// Timeout for an answer of the server.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The function that measures a row.
type Measure = fn(&RunArgs) -> Result<Value>;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    args.pin_tool()?;
    let is_chosen = |row: &str| args.rows.is_empty() || args.rows.iter().any(|other| other == row);
    let rows: [(&str, Measure); 3] = [
        ("join", join::measure),
        ("members", measure_members),
        ("webhooks", webhooks::measure),
    ];
    let mut measured = Map::new();
    for (name, measure) in rows {
        if is_chosen(name) {
            measured.insert(name.into(), measure(args)?);
        }
    }
    let is_clean = measured.values().all(|row| row["clean"] != false);
    Ok(json!({ "clean": is_clean, "rows": measured }))
}

/// A server, whose topics have presence or not, and its admin port.
struct Place {
    server: Server,
    admin: HeldPort,
}

impl Place {
    /// Starts a server with one shard, or with the number that the flags give. `rest` is appended to its settings.
    fn start(args: &RunArgs, has_presence: bool, rest: &str) -> Result<Place> {
        let admin = reserve_ports(1)?.pop().context("a port")?;
        let mut options = ServerOptions::new(ServerKind::Crore, args.shards.unwrap_or(1), 0);
        options.admin = true;
        let settings = format!(
            "[admin]\nlisten = \"{}\"\n\n[centrifugo]\nenabled = true\nping_interval_s = 3600\npong_timeout_s = 3600\n\n[heartbeat]\ninterval_s = 0\n\n[limits]\n\
             accepts_per_s = {}\ntopics_per_shard = 8000000\n\n[[rule]]\nmatch = \"probe\"\nlog_messages = 0\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 0\n\
             presence = {has_presence}\npresence_max = 100000\n\n{rest}",
            admin.addr(),
            args.accepts()
        );
        let server = Server::start_with(args, options, &settings, None)?;
        Ok(Place { server, admin })
    }

    fn address(&self) -> SocketAddr {
        self.server.addresses[0]
    }

    /// The bytes that the server reports for presence.
    fn counted_bytes(&self) -> Result<f64> {
        let metrics = get(self.admin.addr(), "/metrics")?;
        let name = "crore_table_memory_bytes{table=\"presence\"} ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        Ok(value.context("no account of presence")?.trim().parse()?)
    }
}

/// The response to a `GET`.
fn get(address: SocketAddr, path: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let (status, body) = Link::open(address, TIMEOUT)?.request(request.as_bytes())?;
    ensure!(status == 200, "{path} was answered with {status}");
    Ok(String::from_utf8(body)?)
}

/// Measures the memory of topics with one subscriber each, with presence and without. The difference is the memory of a member that has no name.
fn measure_members(args: &RunArgs) -> Result<Value> {
    let topics = args.topics.unwrap_or(TOPICS);
    let mut row = Map::new();
    let mut bytes = [0.0; 2];
    for has_presence in [false, true] {
        let mut place = Place::start(args, has_presence, "")?;
        let before = Sample::of(&mut place.server)?;
        let names = |first: u32| -> Vec<String> {
            let end = topics.min(first + TOPICS_OF_EACH);
            (first..end).map(|topic| format!("t{topic}")).collect()
        };
        let firsts = (0..topics).step_by(TOPICS_OF_EACH as usize);
        let open = open_all(place.address(), Format::Protobuf, firsts.map(names))?;
        pause(SETTLE_S);
        let after = Sample::of(&mut place.server)?;
        let counted = place.counted_bytes()?;
        drop(open);
        let grown = after.process.pss_bytes as f64 - before.process.pss_bytes as f64;
        let of_each = grown / f64::from(topics);
        bytes[usize::from(has_presence)] = of_each;
        let name = if has_presence { "with" } else { "without" };
        report::say(&format!(
            "members, {name} presence: PSS {of_each:.1} B for a topic with its subscriber, {:.1} B counted as presence",
            counted / f64::from(topics)
        ));
        row.insert(
            name.into(),
            json!({
                "server_pss_bytes": of_each,
                "counted_bytes": counted / f64::from(topics),
                "took_s": after.seconds_since(&before),
            }),
        );
    }
    report::say(&format!("members: {:.1} B for each", bytes[1] - bytes[0]));
    row.insert("topics".into(), json!(topics));
    row.insert("member_pss_bytes".into(), json!(bytes[1] - bytes[0]));
    Ok(row.into())
}
