//! `crore.toml` as serde sees it: the broker's settings structs, mirrored field by field.
//!
//! The mirrors use serde's `remote`, so that a field that the broker gains, loses or renames does not
//! compile here. Defaults come from the broker's own `Default`, never from a second list. Unknown keys
//! are refused. Ranges are not this module's business (`config::check`).

use std::net::SocketAddr;

use crore_broker::access::Rights;
use crore_broker::settings::{
    Concurrency, Deflate, Drain, First, Heartbeat, Http, Interest, Keep, Limits, Mqtt, Publishing,
    Rule, Settings, Slow, Timeouts,
};
use crore_broker::{PARTITIONS, PartitionId};
use serde::{Deserialize, Serialize};

use super::access::{Access, open};
use super::admin::Admin;
use super::cluster::Cluster;
use super::state::State;
use super::tls::Tls;
use super::units::{address, cidr, first, milliseconds, seconds, size};

/// Where the server listens unless told otherwise: the loopback, since access rules come later.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8800";

/// Length of a listening socket's queue: Linux cuts it at `net.core.somaxconn`, which is 4,096 by default.
const DEFAULT_BACKLOG: u32 = 4096;

/// The whole file. `shards`, `limits.connections_max`, `limits.accepts_per_s`, `limits.log_bytes`, `limits.memory_bytes` and
/// `publish.idempotency_keys` at 0 stand for "by this host".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    #[serde(with = "address")]
    pub listen: Vec<SocketAddr>,
    pub shards: usize,
    pub partitions: PartitionId,
    pub pin: bool,
    pub backlog: u32,
    #[serde(with = "HttpMirror")]
    pub http: Http,
    #[serde(with = "LimitsMirror")]
    pub limits: Limits,
    #[serde(with = "TimeoutsMirror")]
    pub timeouts: Timeouts,
    #[serde(with = "HeartbeatMirror")]
    pub heartbeat: Heartbeat,
    #[serde(with = "DeflateMirror")]
    pub deflate: Deflate,
    #[serde(with = "PublishingMirror")]
    pub publish: Publishing,
    #[serde(with = "InterestMirror")]
    pub interest: Interest,
    #[serde(with = "MqttMirror")]
    pub mqtt: Mqtt,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    pub admin: Admin,
    #[serde(with = "DrainMirror")]
    pub drain: Drain,
    pub state: State,
    pub cluster: Cluster,
    pub tls: Tls,
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleEntry>,
}

impl Default for File {
    fn default() -> Self {
        let Settings {
            http,
            mut limits,
            timeouts,
            heartbeat,
            deflate,
            mut publish,
            interest,
            access: _,
            mqtt,
            drain,
            node: _,
            rules,
        } = Settings::default();
        limits.log_bytes = 0;
        limits.memory_bytes = 0;
        limits.connections_max = 0;
        publish.idempotency_keys = 0;
        File {
            listen: vec![DEFAULT_LISTEN.parse().expect("a literal address")],
            shards: 0,
            partitions: PARTITIONS,
            // A pinned shard cannot move away from a neighbour that uses its core; on a machine that
            // the server shares with anything else that costs more than the warm cache gives.
            pin: false,
            backlog: DEFAULT_BACKLOG,
            http,
            limits,
            timeouts,
            heartbeat,
            deflate,
            publish,
            interest,
            mqtt,
            access: None,
            admin: Admin::default(),
            drain,
            state: State::default(),
            cluster: Cluster::default(),
            tls: Tls::default(),
            rules: rules.into_iter().map(RuleEntry).collect(),
        }
    }
}

/// One `[[rule]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleEntry(#[serde(with = "RuleMirror")] pub Rule);

impl From<RuleEntry> for Rule {
    fn from(entry: RuleEntry) -> Rule {
        entry.0
    }
}

/// The values of a section where the file gives none.
macro_rules! defaults {
    ($($section:ident: $settings:ty,)*) => {
        $(fn $section() -> $settings {
            File::default().$section
        })*
    };
}

defaults! {
    http: Http, limits: Limits, timeouts: Timeouts, heartbeat: Heartbeat, deflate: Deflate, publish: Publishing,
    interest: Interest, mqtt: Mqtt, drain: Drain,
}

/// An empty filter is refused later: a rule must say what it matches.
fn rule() -> Rule {
    Rule {
        filter: String::new(),
        ..Rule::default()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Http", default = "http", deny_unknown_fields)]
struct HttpMirror {
    publish_paths: Vec<String>,
    subscribe_paths: Vec<String>,
    pubsub_paths: Vec<String>,
    interest_paths: Vec<String>,
    history_paths: Vec<String>,
    allowed_origins: Vec<String>,
    #[serde(skip)] // computed from `listen`
    loopback_hosts_only: bool,
    #[serde(with = "cidr")]
    trusted_proxies: Vec<(std::net::IpAddr, u8)>,
    proxy_protocol: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Limits", default = "limits", deny_unknown_fields)]
struct LimitsMirror {
    #[serde(with = "size")]
    head_bytes: usize,
    #[serde(with = "size")]
    message_bytes: usize,
    #[serde(with = "size")]
    batch_bytes: usize,
    batch_lines: usize,
    #[serde(with = "size")]
    topic_bytes: usize,
    topics_per_connection: usize,
    topics_max: usize,
    topics_per_shard: usize,
    filters_per_shard: usize,
    connections_max: usize,
    connections_per_shard: usize,
    connections_per_address_max: u32,
    accepts_per_s: u32,
    publishes_per_s: u32,
    publishes_burst: u32,
    publishes_per_address_per_s: u32,
    publishes_per_address_burst: u32,
    topics_per_address_per_s: u32,
    topics_per_address_burst: u32,
    #[serde(with = "size")]
    log_bytes: usize,
    #[serde(with = "size")]
    log_bytes_per_address_max: usize,
    #[serde(with = "size")]
    send_buffer_bytes: usize,
    #[serde(with = "size")]
    outbox_bytes: usize,
    #[serde(with = "size")]
    memory_bytes: usize,
    #[serde(with = "size")]
    publish_credit_bytes: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Timeouts", default = "timeouts", deny_unknown_fields)]
struct TimeoutsMirror {
    #[serde(with = "seconds")]
    head_s: u32,
    #[serde(with = "seconds")]
    body_s: u32,
    progress_bytes_per_s: u32,
    #[serde(with = "seconds")]
    keep_alive_s: u32,
    #[serde(with = "seconds")]
    drain_s: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Heartbeat", default = "heartbeat", deny_unknown_fields)]
struct HeartbeatMirror {
    #[serde(with = "seconds")]
    interval_s: u32,
    jitter_percent: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Deflate", default = "deflate", deny_unknown_fields)]
struct DeflateMirror {
    enabled: bool,
    #[serde(with = "size")]
    min_bytes: usize,
    level: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Publishing", default = "publish", deny_unknown_fields)]
struct PublishingMirror {
    #[serde(with = "seconds")]
    idempotency_window_s: u32,
    idempotency_keys: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Interest", default = "interest", deny_unknown_fields)]
struct InterestMirror {
    #[serde(with = "seconds")]
    debounce_s: u32,
    followers_max: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Mqtt", default = "mqtt", deny_unknown_fields)]
struct MqttMirror {
    #[serde(with = "seconds")]
    keep_alive_max_s: u16,
    receive_max: u16,
    inflight_max: u16,
    topic_aliases_max: u16,
    session_messages: u32,
    #[serde(with = "seconds")]
    session_expiry_max_s: u32,
    sessions_max: u32,
    sessions_per_address_max: u32,
    #[serde(with = "seconds")]
    sys_interval_s: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Drain", default = "drain", deny_unknown_fields)]
struct DrainMirror {
    rate_per_s: u32,
    #[serde(with = "seconds")]
    deadline_s: u32,
    server_reference: String,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Rule", default = "rule", deny_unknown_fields)]
struct RuleMirror {
    #[serde(rename = "match")]
    filter: String,
    #[serde(with = "KeepMirror")]
    keep: Keep,
    durable: bool,
    log_messages: u32,
    keys_max: u32,
    #[serde(with = "size")]
    log_bytes: usize,
    #[serde(with = "seconds")]
    log_age_s: u32,
    #[serde(with = "seconds")]
    ttl_s: u32,
    #[serde(with = "seconds")]
    position_age_s: u32,
    #[serde(with = "first")]
    first: First,
    #[serde(with = "ConcurrencyMirror")]
    concurrency: Concurrency,
    publisher_creates: bool,
    #[serde(with = "seconds")]
    poll_timeout_s: u32,
    poll_timeout_status: u16,
    #[serde(with = "milliseconds")]
    sse_retry_ms: u32,
    #[serde(with = "size")]
    outbox_bytes: usize,
    outbox_messages: u32,
    #[serde(with = "SlowMirror")]
    slow: Slow,
    #[serde(with = "open")]
    open: Rights,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Keep", rename_all = "lowercase")]
enum KeepMirror {
    Log,
    Latest,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Concurrency", rename_all = "lowercase")]
enum ConcurrencyMirror {
    Broadcast,
    First,
    Last,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Slow", rename_all = "lowercase")]
enum SlowMirror {
    Disconnect,
    Skip,
}
