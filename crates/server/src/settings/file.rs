//! The type of the settings file `crore.toml`.

use std::net::SocketAddr;

use crore_broker::settings::{
    Centrifugo, Deflate, Drain, Heartbeat, Http, Interest, Limits, Mqtt, Presence, Publishing,
    Pusher, Rule, Timeouts,
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
use super::pusher::PusherApp;
use super::state::State;
use super::tls::Tls;
use super::webhook::Webhook;
use super::xdp::Xdp;

/// The default of `listen`: the loopback, which only this machine reaches.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8800";

/// Topics hash to 256 slots, so more shards could not keep topics.
pub const MAX_SHARDS: usize = 256;

/// The whole file. A value that depends on the host and is not configured is 0 here.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The addresses and ports to listen on. A single one needs no list; a port alone is a port of 127.0.0.1. Addresses other than the
    /// loopback need a table [`[access]`](#access).
    ///
    /// A name stands for the addresses that the host's resolver finds when the settings are read; `localhost` is 127.0.0.1, and also `[::1]`
    /// if the host has IPv6. Without `[access]`, everyone who reaches an address may publish and subscribe, so addresses other than the loopback then
    /// need the flag `--insecure`. If all addresses are loopback, the server answers only requests whose `Host` is a loopback address, `localhost`, or one
    /// of `http.hosts`.
    #[default(vec![DEFAULT_LISTEN.parse().expect("a literal address")])]
    #[serde(with = "addresses")]
    #[schemars(with = "Vec<String>", extend("x-changes" = "restart", "type" = ["array", "string", "integer"], "format" = "addresses", "x-flag" = "-l, --listen ADDR:PORT"))]
    pub listen: Vec<SocketAddr>,
    /// The number of shard threads.
    #[schemars(range(min = 1, max = MAX_SHARDS), extend("x-changes" = "restart", "x-zero" = "one for each core", "x-flag" = "--shards N"))]
    pub shards: usize,
    /// The number of partitions of topics and sessions. Each has its own log and counts its own messages. A state directory and a cluster keep the
    /// number with which they were created.
    ///
    /// Each partition belongs to one of the shards that keep topics (one for each core, at most one for each partition). With more partitions, positions of
    /// a filter are longer, and the batches of a cluster smaller.
    #[schemars(range(min = 1, max = SLOTS as u32), extend("x-changes" = "restart", "x-zero" = "16, or 4 in a new cluster"))]
    pub partitions: PartitionId,
    /// Pin each shard to a core. Good on a machine that runs nothing else.
    // A pinned shard cannot move away from another program that uses its core. On a shared machine that costs more than the
    // warm cache gains.
    #[schemars(extend("x-changes" = "restart", "x-flag" = "--pin"))]
    pub pin: bool,
    /// The length of each listening socket's queue, in connections. `net.core.somaxconn` of Linux limits it.
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
    /// Heartbeats on idle connections.
    pub heartbeat: Heartbeat,
    /// Compression of WebSocket messages.
    pub deflate: Deflate,
    /// Retries of publishes.
    pub publish: Publishing,
    /// Clients that follow which topics have subscribers.
    pub interest: Interest,
    /// The presence (the list of subscribers) of topics whose rules have `presence`.
    pub presence: Presence,
    /// Clients of MQTT and their sessions.
    pub mqtt: Mqtt,
    /// Clients of Centrifugo's protocol.
    pub centrifugo: Centrifugo,
    /// Clients of Pusher's protocol.
    pub pusher: Pusher,
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
    /// The state on disk, which outlives the process.
    pub state: State,
    /// The NATS servers that keep the log of a cluster.
    #[schemars(extend("x-changes" = "restart"))]
    pub cluster: Cluster,
    /// TLS on the data ports.
    pub tls: Tls,
    /// Connections that do not pass through the kernel's TCP.
    #[schemars(extend("x-changes" = "restart"))]
    pub xdp: Xdp,
    /// An endpoint that answers calls of clients ([Centrifugo's protocol](CENTRIFUGO.md#calls-to-your-backend)).
    #[serde(rename = "backend", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-changes" = "restart"))]
    pub backends: Vec<Backend>,
    /// An app of [Pusher's protocol](PUSHER.md). Without one, the protocol is off.
    #[serde(rename = "pusher_app", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-changes" = "restart"))]
    pub pusher_apps: Vec<PusherApp>,
    /// An endpoint to which the server sends events: which topics have subscribers, who joins and leaves a topic, which clients connect.
    #[serde(rename = "webhook", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-changes" = "restart"))]
    pub webhooks: Vec<Webhook>,
    /// A rule for the topics that a filter matches; the first rule that matches a topic governs it.
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}
