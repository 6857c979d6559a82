//! Everything that the shards decide by: the operator's settings ([`crore_settings`]), the rights of clients and what other nodes are told.
//! The server reads these from `crore.toml` and flags; the simulator makes them up.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

pub use crore_settings::{
    Concurrency, Deflate, Drain, First, Heartbeat, Http, Interest, Keep, Limits, Mqtt, Publishing,
    Rule, Slow, Timeouts,
};

use crate::base::access::{Digest, Grants, Revoked};
use crate::base::node::Node;

/// Everything the shards need to know. Shared read-only by all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Paths and cross-site policy of the HTTP door.
    pub http: Http,
    /// Hard limits; past each one the client gets a clear error.
    pub limits: Limits,
    /// How long a peer may take.
    pub timeouts: Timeouts,
    /// Heartbeats to silent connections.
    pub heartbeat: Heartbeat,
    /// Whether WebSocket clients may negotiate permessage-deflate (RFC 7692).
    pub deflate: Deflate,
    /// Retries of publishes.
    pub publish: Publishing,
    /// Clients that follow which topics have subscribers.
    pub interest: Interest,
    /// Access control.
    pub access: Access,
    /// MQTT sessions and what their clients may do.
    pub mqtt: Mqtt,
    /// How clients are moved off before the server stops.
    pub drain: Drain,
    /// How other nodes of a cluster name and reach this one.
    pub node: Node,
    /// Per-topic behaviour; the first rule whose filter matches a topic governs it. Topics that no
    /// rule matches are governed by [`Rule::default`].
    pub rules: Vec<Rule>,
}

/// Access control, as far as the shards decide; the keys are with the verifier that answers their questions.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// Only granted actions are allowed. Otherwise everybody may do everything, and credentials are ignored.
    pub closed: bool,
    /// The grants of everybody, also without credentials.
    pub anonymous: Grants,
    /// Whether that includes subscriptions by filters with wildcards.
    pub anonymous_wildcards: bool,
    /// The cookie that may hold a token; empty for none.
    pub cookie: String,
    /// The query parameter that may hold a token; empty for none.
    pub query: String,
    /// Bytes of a token, or of a user and a password; 401 past it.
    pub token_bytes: usize,
    /// Answers about credentials that each shard remembers.
    pub verdicts_per_shard: usize,
    /// Key of the digests that identify credentials in caches; random in each process.
    pub key: [u8; 32],
    /// Tokens and users that the operator has revoked.
    pub revoked: Arc<Revoked>,
    /// The digest of the token with which the process accesses itself, and its grants.
    pub operator: Option<(Digest, Arc<Grants>)>,
}

/// Defaults that are safe on a small machine; what a file leaves to the host stands for 2 GiB of memory.
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
