//! The type of the settings file `crore.toml`.

use std::net::SocketAddr;

use crore_broker::settings::{
    Centrifugo, Deflate, Drain, Heartbeat, Http, Interest, Limits, Mqtt, Presence, Publishing,
    Rule, Timeouts,
};
use crore_broker::{PartitionId, SLOTS};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::access::Access;
use super::admin::Admin;
use super::backend::Backend;
use super::cluster::Cluster;
use super::listen::addresses;
use super::log::Logging;
use super::state::State;
use super::tls::Tls;
use super::webhook::Webhook;

/// The default of `listen`: the loopback, which only this machine reaches.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8800";

/// Topics hash to 256 slots, so further shards could keep no topics.
pub const MAX_SHARDS: usize = 256;

/// The whole file. A value that is left to the host is 0 here.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Where to listen: addresses and ports. A single one needs no list; a port alone is a port of 127.0.0.1. Addresses other than the
    /// loopback need a table [`[access]`](#access).
    ///
    /// A name stands for the addresses that the host's resolver finds when the settings are read; `localhost` is 127.0.0.1, and `[::1]`
    /// where the host has IPv6. Without `[access]` everyone who reaches another address may publish and subscribe, so only the flag
    /// `--insecure` permits that. While all addresses are loopback, only requests whose `Host` names the loopback, or is one of
    /// `http.hosts`, are answered.
    #[default(vec![DEFAULT_LISTEN.parse().expect("a literal address")])]
    #[serde(with = "addresses")]
    #[schemars(with = "Vec<String>", extend("x-changes" = "restart", "type" = ["array", "string", "integer"], "format" = "addresses", "x-flag" = "-l, --listen ADDR:PORT"))]
    pub listen: Vec<SocketAddr>,
    /// Shard threads.
    #[schemars(range(min = 1, max = MAX_SHARDS), extend("x-changes" = "restart", "x-zero" = "one for each core", "x-flag" = "--shards N"))]
    pub shards: usize,
    /// Partitions of topics and sessions: each has a log and counts its messages. A state directory and a cluster keep the number
    /// that they were made with.
    ///
    /// Each partition belongs to one of the shards that keep topics (one for each core, at most one for each partition). More partitions
    /// make positions by filter longer, and the batches of a cluster smaller.
    #[schemars(range(min = 1, max = SLOTS as u32), extend("x-changes" = "restart", "x-zero" = "16, or 4 in a new cluster"))]
    pub partitions: PartitionId,
    /// Pin each shard to a core. Good on a machine that serves nothing else.
    // A pinned shard cannot move away from another program that uses its core. On a shared machine that costs more than the
    // warm cache gains.
    #[schemars(extend("x-changes" = "restart", "x-flag" = "--pin"))]
    pub pin: bool,
    /// Length of each listening socket's queue, in connections. `net.core.somaxconn` of Linux limits it.
    #[default(4096)]
    #[schemars(range(min = 1, max = u16::MAX), extend("x-changes" = "restart", "x-flag" = "--backlog N"))]
    #[schemars(extend("x-share" = "none: the kernel's queue is first in, first out; the shard empties it at once into its own, in which addresses take turns"))]
    pub backlog: u32,
    /// Paths, origins and proxies.
    pub http: Http,
    /// Hard limits.
    pub limits: Limits,
    /// How long a peer may take.
    pub timeouts: Timeouts,
    /// Heartbeats of silent connections.
    pub heartbeat: Heartbeat,
    /// Compression of WebSocket messages.
    pub deflate: Deflate,
    /// Retries of publishes.
    pub publish: Publishing,
    /// Clients that follow which topics have subscribers.
    pub interest: Interest,
    /// Who is present: the subscribers of topics whose rules have `presence`.
    pub presence: Presence,
    /// Clients of MQTT and their sessions.
    pub mqtt: Mqtt,
    /// Clients of Centrifugo's protocol.
    pub centrifugo: Centrifugo,
    /// Rights of clients. Without this table every client may do everything, on the loopback only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Access")]
    pub access: Option<Access>,
    /// The port for operators.
    #[schemars(extend("x-changes" = "restart"))]
    pub admin: Admin,
    /// Lines about what the server does.
    pub log: Logging,
    /// How clients are moved off before the server stops.
    pub drain: Drain,
    /// The files of the state that outlives the process.
    pub state: State,
    /// Where the log of several nodes is.
    #[schemars(extend("x-changes" = "restart"))]
    pub cluster: Cluster,
    /// TLS on the data ports.
    pub tls: Tls,
    /// An endpoint that answers calls of clients ([Centrifugo's protocol](CENTRIFUGO.md#calls-to-your-backend)).
    #[serde(rename = "backend", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-changes" = "restart"))]
    pub backends: Vec<Backend>,
    /// An endpoint that is told of events: which topics have subscribers, who is present.
    #[serde(rename = "webhook", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-changes" = "restart"))]
    pub webhooks: Vec<Webhook>,
    /// A rule for the topics that a filter matches; the first rule that matches a topic governs it.
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}
