//! The settings of the shards: the operator's settings ([`crore_settings`]), access control, and this node's name. The server reads them from
//! `crore.toml` and flags; the simulator generates them.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

pub use crore_settings::{
    Concurrency, Deflate, Drain, First, Heartbeat, Http, Interest, Keep, Limits, Mqtt, Publishing,
    Rule, Slow, Timeouts,
};

use crate::base::access::{Digest, Grants, Revoked};
use crate::base::node::Node;

/// The settings of all shards, shared and read-only.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Paths and cross-site policy of HTTP.
    pub http: Http,
    /// Hard limits. Past each one the client gets an error.
    pub limits: Limits,
    /// Time limits of peers.
    pub timeouts: Timeouts,
    /// Heartbeats to silent connections.
    pub heartbeat: Heartbeat,
    /// Whether WebSocket clients may negotiate permessage-deflate (RFC 7692).
    pub deflate: Deflate,
    /// Retries of publishes.
    pub publish: Publishing,
    /// Clients that follow interest: which topics have subscribers.
    pub interest: Interest,
    /// Access control.
    pub access: Access,
    /// MQTT sessions and features.
    pub mqtt: Mqtt,
    /// How clients are moved to another server before this one stops.
    pub drain: Drain,
    /// Name and address of this node in a cluster.
    pub node: Node,
    /// Behaviour by topic. The first rule whose filter matches a topic governs it, else [`Rule::default`].
    pub rules: Vec<Rule>,
}

/// Access control, but for keys and passwords, which only the verifier has.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// Whether only granted actions are allowed. If not, everybody may do everything, and credentials are ignored.
    pub closed: bool,
    /// The grants of everybody, also without credentials.
    pub anonymous: Grants,
    /// Whether `anonymous` includes subscriptions by filters with wildcards.
    pub anonymous_wildcards: bool,
    /// The cookie that may hold a token; empty for none.
    pub cookie: String,
    /// The query parameter that may hold a token; empty for none.
    pub query: String,
    /// Longest token, or user and password together; 401 past it.
    pub token_bytes: usize,
    /// Verdicts that each shard caches.
    pub verdicts_per_shard: usize,
    /// Key of the digests that identify credentials in caches; random in each process.
    pub key: [u8; 32],
    /// Tokens and users that the operator has revoked.
    pub revoked: Arc<Revoked>,
    /// The digest of the token that the process itself uses, and its grants.
    pub operator: Option<(Digest, Arc<Grants>)>,
}

/// Defaults that are safe on a small machine. Settings that depend on the host are for 2 GiB of memory.
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
            drain: Drain::default(),
            node: Node::default(),
            rules: Vec::new(),
        }
    }
}
