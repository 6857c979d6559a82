//! The settings of the shards: the operator's settings ([`crore_settings`]), access control, and the name of this node. The server reads them from
//! `crore.toml` and flags. The simulator generates them.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

pub use crore_settings::{
    Centrifugo, Concurrency, Deflate, Drain, Heartbeat, Http, Interest, Limits, Mqtt, Presence,
    Publishing, Pusher, RetentionMode, Rule, SlowConsumerPolicy, StartPosition, Timeouts,
};

use crate::base::access::{Digest, Grants, Revoked};
use crate::base::call_kind::CallKinds;
use crate::base::node::Node;
use crate::base::pusher::PusherApp;

/// The settings of all shards, shared and read-only.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Paths and cross-site policy of HTTP.
    pub http: Http,
    /// Hard limits. A client that reaches one gets an error.
    pub limits: Limits,
    /// Time limits for the peers of connections.
    pub timeouts: Timeouts,
    /// Heartbeats on connections to which nothing was sent for a while.
    pub heartbeat: Heartbeat,
    /// Whether WebSocket clients may negotiate permessage-deflate (RFC 7692).
    pub deflate: Deflate,
    /// Retries of publishes that have an idempotency key.
    pub publish: Publishing,
    /// Clients that follow interest: which topics have subscribers.
    pub interest: Interest,
    /// Who is present in topics.
    pub presence: Presence,
    /// Access control.
    pub access: Access,
    /// MQTT sessions and features.
    pub mqtt: Mqtt,
    /// Clients of Centrifugo's protocol.
    pub centrifugo: Centrifugo,
    /// Clients of Pusher's protocol.
    pub pusher: Pusher,
    /// The apps of Pusher's protocol. They stay the same while the process runs.
    pub pusher_apps: Vec<PusherApp>,
    /// The calls that backends answer.
    pub backend_calls: CallKinds,
    /// How clients are moved to another server before this one stops.
    pub drain: Drain,
    /// The name and address of this node in a cluster.
    pub node: Node,
    /// The rules of topics. The first rule whose filter matches a topic governs it, else [`Rule::default`].
    pub rules: Vec<Rule>,
}

/// Access control, without the keys and passwords: only the verifier has these.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// Whether an action needs a grant. If not, everybody may do everything, and credentials are ignored.
    pub closed: bool,
    /// The grants of every client, with or without credentials.
    pub anonymous: Grants,
    /// Whether the grants `anonymous` allow subscriptions by filters with wildcards.
    pub anonymous_wildcards: bool,
    /// The name of the cookie that may hold a token; empty: no cookie.
    pub cookie: String,
    /// The name of the query parameter that may hold a token; empty: no parameter.
    pub query: String,
    /// Longest token, or longest user and password together, in bytes. The answer to longer ones is 401.
    pub token_bytes: usize,
    /// The maximum number of verdicts that each shard caches.
    pub verdicts_per_shard: usize,
    /// The key of the digests that identify credentials in caches, and of session ids that no one can guess. It is random in each process.
    pub key: [u8; 32],
    /// Tokens and users that the operator has revoked.
    pub revoked: Arc<Revoked>,
    /// The digest of the token that the process itself uses, and its grants.
    pub operator: Option<(Digest, Arc<Grants>)>,
}

/// Defaults that are safe on a small machine. Settings that depend on the host are those of a host with 2 GiB of memory.
impl Default for Settings {
    fn default() -> Self {
        Settings {
            http: Http {
                loopback_hosts_only: true,
                ..Http::default()
            },
            limits: Limits {
                connections_max: 1_000_000,
                log_bytes: 256 << 20,
                memory_bytes: 256 << 20,
                ..Limits::default()
            },
            timeouts: Timeouts::default(),
            heartbeat: Heartbeat::default(),
            deflate: Deflate::default(),
            publish: Publishing {
                idempotency_keys: 100_000,
                ..Publishing::default()
            },
            interest: Interest::default(),
            presence: Presence::default(),
            access: Access {
                closed: false,
                anonymous: Grants::default(),
                anonymous_wildcards: false,
                cookie: "crore_token".to_string(),
                query: "token".to_string(),
                token_bytes: 4 << 10,
                verdicts_per_shard: 4096,
                key: [0; 32],
                revoked: Arc::default(),
                operator: None,
            },
            mqtt: Mqtt::default(),
            centrifugo: Centrifugo::default(),
            pusher: Pusher::default(),
            pusher_apps: Vec::new(),
            backend_calls: CallKinds::default(),
            drain: Drain::default(),
            node: Node::default(),
            rules: Vec::new(),
        }
    }
}
