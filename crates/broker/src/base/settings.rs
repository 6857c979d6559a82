//! The operator's settings as plain data: every limit is a named field with a default that is safe on a small machine.
//! The server reads these from `crore.toml` and flags; the simulator makes them up. Nothing here parses text or touches
//! the host.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::base::access::{Digest, Grants, Rights};
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
    /// What other nodes of a cluster are told of this one.
    pub node: Node,
    /// Per-topic behaviour; the first rule whose filter matches a topic governs it. Topics that no
    /// rule matches are governed by [`Rule::default`].
    pub rules: Vec<Rule>,
}

/// Paths, origins and proxies.
#[derive(Clone, Debug, PartialEq)]
pub struct Http {
    /// Path prefixes that publish (`/pub` also means `/pub/{topic}`).
    pub publish_paths: Vec<String>,
    /// Path prefixes that subscribe.
    pub subscribe_paths: Vec<String>,
    /// Path prefixes that do both over one WebSocket.
    pub pubsub_paths: Vec<String>,
    /// Paths that tell which topics have subscribers.
    pub interest_paths: Vec<String>,
    /// Paths that tell what a topic keeps.
    pub history_paths: Vec<String>,
    /// Origins, besides the request's own host, that may upgrade or use unsafe methods
    /// (`https://app.example.com`), `null` for pages from files and sandboxed frames, or `*` for all.
    pub allowed_origins: Vec<String>,
    /// Accept only `Host`s that name the loopback (DNS rebinding). The server sets this while it
    /// listens on loopback only and is anonymous.
    pub loopback_hosts_only: bool,
    /// Networks (address, prefix length) from which `X-Forwarded-For` and PROXY headers are believed.
    pub trusted_proxies: Vec<(core::net::IpAddr, u8)>,
    /// Every connection starts with a PROXY protocol v2 header and comes from one of `trusted_proxies`; others are
    /// closed.
    pub proxy_protocol: bool,
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
    /// The digest of the token with which the process accesses itself, and its grants.
    pub operator: Option<(Digest, Arc<Grants>)>,
}

/// Hard limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of an HTTP request head (431 past it).
    pub head_bytes: usize,
    /// Bytes of one message's data (413, or WebSocket 1009, past it).
    pub message_bytes: usize,
    /// Bytes of one NDJSON batch.
    pub batch_bytes: usize,
    /// Lines of one NDJSON batch.
    pub batch_lines: usize,
    /// Bytes of a topic name, at most 1,000.
    pub topic_bytes: usize,
    /// Topics that one connection may subscribe to and still resume.
    pub topics_per_connection: usize,
    /// Topics that exist at once on all shards together; 0: only the limit of each shard.
    pub topics_max: usize,
    /// Topics that exist at once on one shard; publishing to or subscribing a new one answers 503 past it.
    pub topics_per_shard: usize,
    /// Filters that the connections of one shard subscribe to at once; 503 past it.
    pub filters_per_shard: usize,
    /// Connections of all shards together; 503 past it.
    pub connections_max: usize,
    /// Connections of one client address (of one /64 in IPv6) to all shards together; 429 past it. 0: no limit.
    pub connections_per_address_max: u32,
    /// Connections taken in a second by all shards together; further ones wait in the sockets' queues.
    pub accepts_per_s: u32,
    /// Messages published in a second by everybody together; 503 past it. 0: no limit.
    pub publishes_per_s: u32,
    /// How many of them may come at once after a quiet time; 0: one second's.
    pub publishes_burst: u32,
    /// Messages published in a second from one client address; 429 past it. 0: no limit.
    pub publishes_per_address_per_s: u32,
    /// How many of them may come at once after a quiet time; 0: one second's.
    pub publishes_per_address_burst: u32,
    /// Topics made in a second from one client address, by publishing or subscribing to what does not exist; 429 past it.
    /// 0: no limit.
    pub topics_per_address_per_s: u32,
    /// How many of them may be made at once after a quiet time; 0: one second's.
    pub topics_per_address_burst: u32,
    /// Bytes that messages from one client address occupy in all logs together; 429 past it. 0: no limit.
    pub log_bytes_per_address_max: usize,
    /// Connections of one shard (the descriptor limit may bind first).
    pub connections_per_shard: usize,
    /// Bytes of all logs of all shards together.
    pub log_bytes: usize,
    /// Bytes that the kernel keeps for one connection before its socket refuses more; 0: as many as it likes. The
    /// broker only passes the number on.
    pub send_buffer_bytes: usize,
    /// Bytes that wait for one connection whose socket refuses them.
    pub outbox_bytes: usize,
    /// Bytes that clients make all shards hold together, besides rows, names and logs: see
    /// [`account`](crate::budget::account).
    pub memory_bytes: usize,
    /// Bytes of publishes under way from one shard to another.
    pub publish_credit_bytes: usize,
}

/// An address or user holds little when it holds no more than this part of `memory_bytes`, and no more than the largest
/// message and its head.
const LITTLE_PART: usize = 32;

impl Limits {
    /// Bytes that one address or user may hold, whatever the others do.
    pub fn little_bytes(&self) -> usize {
        (self.memory_bytes / LITTLE_PART).min(self.message_bytes + self.head_bytes)
    }

    /// Topics of each home: its share of the limit of the process. Names are hashed, so the shares fill alike.
    pub fn topics_per_home(&self, homes: usize) -> usize {
        match self.topics_max {
            0 => self.topics_per_shard,
            most => self.topics_per_shard.min(most.div_ceil(homes)),
        }
    }
}

/// Times, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeouts {
    /// From the first byte of a request (or from accept) to the end of its head (408).
    pub head_s: u32,
    /// How long a body, a frame or a packet may stay below `progress_bytes_per_s`, and how long a peer may take none of
    /// the bytes sent to it.
    pub body_s: u32,
    /// The least pace, in bytes a second, of a body, a frame or a packet that has begun; below it for `body_s` the
    /// answer is 408, or WebSocket 1001.
    pub progress_bytes_per_s: u32,
    /// A keep-alive connection without a request.
    pub keep_alive_s: u32,
    /// How long a closed connection may take to read the last bytes.
    pub drain_s: u32,
}

/// Heartbeats: WebSocket pings and SSE comments, to connections that nothing was sent to.
#[derive(Clone, Debug, PartialEq)]
pub struct Heartbeat {
    /// Seconds of silence before one is sent; 0 turns heartbeats off.
    pub interval_s: u32,
    /// Each wait is shortened by up to this many per cent, at random.
    pub jitter_percent: u32,
}

/// permessage-deflate.
#[derive(Clone, Debug, PartialEq)]
pub struct Deflate {
    /// Offer it at all.
    pub enabled: bool,
    /// Messages below this size go uncompressed, in bytes.
    pub min_bytes: usize,
    /// Compression level, 1 to 9.
    pub level: u8,
}

/// Retries of publishes that bring an `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq)]
pub struct Publishing {
    /// Seconds that the first answer to a key is kept.
    pub idempotency_window_s: u32,
    /// Answers kept by all shards together. Past it the oldest go before their time; with an engine publishes with a key are refused.
    pub idempotency_keys: usize,
}

impl Publishing {
    /// Answers kept by each home where there is no engine: its share. Names are hashed, so the shares fill alike.
    pub fn keys_per_home(&self, homes: usize) -> u32 {
        u32::try_from(self.idempotency_keys.div_ceil(homes)).unwrap_or(u32::MAX)
    }
}

/// Interest events: which topics have subscribers.
#[derive(Clone, Debug, PartialEq)]
pub struct Interest {
    /// Seconds that a topic stays without subscribers before followers are told; 0 tells them at once.
    pub debounce_s: u32,
    /// Connections of all shards together that follow; 503 past it.
    pub followers_max: u32,
}

/// MQTT (sections of MQTT 5.0 in brackets).
#[derive(Clone, Debug, PartialEq)]
pub struct Mqtt {
    /// The longest keep alive in seconds; a client that asks for more, or for none, is given this one (3.2.2.3.14).
    /// Clients of 3.1.1 cannot be told and keep theirs. 0: any.
    pub keep_alive_max_s: u16,
    /// QoS 1 and 2 messages that a client may have under way to the server (3.2.2.3.3).
    pub receive_max: u16,
    /// QoS 1 and 2 messages that the server has under way to a client at most, even if the client takes more.
    pub inflight_max: u16,
    /// Topic aliases that a client may set, and that the server sets for a client; 0 is none (3.2.2.3.8).
    pub topic_aliases_max: u16,
    /// Messages of a topic that are kept for subscribers with QoS 1 or 2, if its rule keeps fewer.
    pub session_messages: u32,
    /// The longest time in seconds that a session outlives its connection (3.2.2.3.2).
    pub session_expiry_max_s: u32,
    /// Sessions of all shards together, those with a connection included.
    pub sessions_max: u32,
    /// Sessions of clients of one address (of one /64 in IPv6), those with a connection included; at the limit a client
    /// gets no further session. 0: no limit.
    pub sessions_per_address_max: u32,
    /// Seconds from one message of a `$SYS` topic to the next, while it has subscribers; 0: no such topics.
    pub sys_interval_s: u32,
}

/// Moving clients off before a stop.
#[derive(Clone, Debug, PartialEq)]
pub struct Drain {
    /// Connections moved off in a second by all shards together.
    pub rate_per_s: u32,
    /// Seconds after which the clients still connected are closed; 0 closes all at once.
    pub deadline_s: u32,
    /// The server that MQTT 5 clients are sent to (4.11): `host` or `host:port`, several with a space between. Empty:
    /// none, they are told only that the server shuts down.
    pub server_reference: String,
}

/// Which messages of a topic are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The newest messages, whatever their keys.
    Log,
    /// The newest message of each key; messages without a key share the empty key.
    Latest,
}

/// The first messages of a subscriber without a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Long-poll begins with the oldest message of the log, SSE and WebSocket with the next one; all of them with
    /// the oldest where only the newest message of each key is kept.
    ByTransport,
    /// All that the log holds.
    Oldest,
    /// Only messages published from now on.
    Live,
    /// The newest N of the log.
    Newest(u32),
}

/// How several long-poll subscribers of one topic share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// All of them get every message.
    Broadcast,
    /// The first one stays, later ones get 409.
    First,
    /// The last one stays, the earlier one gets 409.
    Last,
}

/// How a subscriber is treated that does not read, once its outbox is full and the log no longer reaches back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slow {
    /// It is disconnected, and may resume from its position.
    Disconnect,
    /// It goes on with the messages still kept, and is told of the gap. A subscriber that cannot be told in band, such
    /// as a WebSocket with plain frames, is disconnected all the same.
    Skip,
}

/// Per-topic behaviour.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// A topic filter in MQTT's form: `scores/#`, `chat/+/room`.
    pub filter: String,
    /// Which messages are kept.
    pub keep: Keep,
    /// Whether messages stand in the log of the engine, where there is one, before they are answered and delivered.
    pub durable: bool,
    /// Messages kept per topic; 0 turns the log off. Does not count where the latest is kept.
    pub log_messages: u32,
    /// Keys kept per topic where the latest is kept, at least one.
    pub keys_max: u32,
    /// Bytes kept per topic, the messages' rows included.
    pub log_bytes: usize,
    /// Seconds that a message is kept.
    pub log_age_s: u32,
    /// Seconds after which a message is no longer sent, nor missed; 0 is without end. A message may bring fewer.
    pub ttl_s: u32,
    /// Seconds that a topic without subscribers and messages remembers its position.
    pub position_age_s: u32,
    /// Where a subscriber without a position begins.
    pub first: First,
    /// Several long-poll subscribers of one topic.
    pub concurrency: Concurrency,
    /// A subscriber may not create the topic: 403 until a publisher has created it.
    pub publisher_creates: bool,
    /// Seconds that a long-poll waits; 0 means without end.
    pub poll_timeout_s: u32,
    /// The status of a long-poll that timed out: 204, which is 304 to one with a condition, or 408.
    pub poll_timeout_status: u16,
    /// Milliseconds in SSE's `retry:`.
    pub sse_retry_ms: u32,
    /// Bytes that may wait for a connection whose socket refuses them; past this no message of these topics is queued
    /// behind them. 0: [`Limits::outbox_bytes`].
    pub outbox_bytes: usize,
    /// Messages that may wait for a connection likewise; 0 is no limit.
    pub outbox_messages: u32,
    /// How slow subscribers are treated.
    pub slow: Slow,
    /// Rights of everybody on these topics without a grant, while [`Access::closed`].
    pub open: Rights,
}

impl Rule {
    /// Messages kept per topic.
    pub fn messages_max(&self) -> u32 {
        match self.keep {
            Keep::Log => self.log_messages,
            Keep::Latest => self.keys_max,
        }
    }

    /// Whether the rule bounds the bytes or messages that wait for a connection.
    pub fn bounds_outboxes(&self) -> bool {
        self.outbox_bytes > 0 || self.outbox_messages > 0
    }
}

impl Default for Rule {
    fn default() -> Self {
        Rule {
            filter: "#".to_string(),
            keep: Keep::Log,
            durable: true,
            // Bytes and age decide.
            log_messages: 1_000_000,
            keys_max: 1000,
            log_bytes: 256 << 10,
            log_age_s: 3600,
            ttl_s: 0,
            position_age_s: 3600,
            first: First::ByTransport,
            concurrency: Concurrency::Broadcast,
            publisher_creates: false,
            poll_timeout_s: 30,
            poll_timeout_status: 204,
            sse_retry_ms: 2000,
            outbox_bytes: 0,
            outbox_messages: 0,
            slow: Slow::Disconnect,
            open: Rights::default(),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            http: Http {
                publish_paths: vec!["/pub".to_string()],
                subscribe_paths: vec!["/sub".to_string()],
                pubsub_paths: vec!["/pubsub".to_string()],
                interest_paths: vec!["/interest".to_string()],
                history_paths: vec!["/history".to_string()],
                allowed_origins: Vec::new(),
                loopback_hosts_only: true,
                trusted_proxies: Vec::new(),
                proxy_protocol: false,
            },
            limits: Limits {
                head_bytes: 8 << 10,
                message_bytes: 1 << 20,
                batch_bytes: 8 << 20,
                batch_lines: 10_000,
                topic_bytes: 255,
                topics_per_connection: 32,
                topics_max: 0,
                topics_per_shard: 2_000_000,
                filters_per_shard: 2_000_000,
                connections_max: 1_000_000,
                connections_per_address_max: 0,
                accepts_per_s: 0,
                publishes_per_s: 0,
                publishes_burst: 0,
                publishes_per_address_per_s: 0,
                publishes_per_address_burst: 0,
                topics_per_address_per_s: 0,
                topics_per_address_burst: 0,
                log_bytes_per_address_max: 0,
                connections_per_shard: 1_000_000,
                log_bytes: 256 << 20,
                send_buffer_bytes: 0,
                outbox_bytes: 1 << 20,
                memory_bytes: 256 << 20,
                publish_credit_bytes: 4 << 20,
            },
            timeouts: Timeouts {
                head_s: 10,
                body_s: 20,
                progress_bytes_per_s: 500,
                keep_alive_s: 75,
                drain_s: 2,
            },
            heartbeat: Heartbeat {
                interval_s: 50,
                jitter_percent: 20,
            },
            deflate: Deflate {
                enabled: true,
                min_bytes: 64,
                level: 1,
            },
            publish: Publishing {
                idempotency_window_s: 600,
                idempotency_keys: 100_000,
            },
            interest: Interest {
                debounce_s: 5,
                followers_max: 64,
            },
            access: Access {
                closed: false,
                anonymous: Grants::default(),
                anonymous_wildcards: false,
                cookie: "crore_token".to_string(),
                query: "token".to_string(),
                token_bytes: 4 << 10,
                verdicts_per_shard: 4096,
                key: [0; 32],
                operator: None,
            },
            mqtt: Mqtt {
                keep_alive_max_s: 3600,
                receive_max: 100,
                inflight_max: 100,
                topic_aliases_max: 16,
                session_messages: 1000,
                session_expiry_max_s: 86_400,
                sessions_max: 1_000_000,
                sessions_per_address_max: 0,
                sys_interval_s: 10,
            },
            drain: Drain {
                rate_per_s: 10_000,
                deadline_s: 30,
                server_reference: String::new(),
            },
            node: Node::default(),
            rules: Vec::new(),
        }
    }
}
