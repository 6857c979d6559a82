//! `[mqtt]`: clients of MQTT, their sessions and the messages kept for them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::bounds::MAX_KEYS;

/// MQTT (sections of MQTT 5.0 in brackets).
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Mqtt {
    /// The longest keep alive. A client of MQTT 5 that asks for a longer one, or for none, gets this one. MQTT 3.1.1 has no field for that,
    /// so its clients use their own. 0: no limit.
    #[default(3600)]
    pub keep_alive_max_s: u16,
    /// QoS 1 and 2 messages that a client may have in flight to the server. If a client sends more, the server reads no more of its
    /// connection until they are answered.
    ///
    /// A client of MQTT 5 that does not release its QoS 2 messages is disconnected (0x93, [MQTT.md](MQTT.md#limits)).
    #[default(100)]
    #[schemars(range(min = 1, max = u16::MAX))]
    #[schemars(extend("x-share" = "none: it bounds one connection"))]
    pub receive_max: u16,
    /// QoS 1 and 2 messages in flight to one client, even if the client allows more. The server holds a copy of each until it is
    /// acknowledged.
    #[default(100)]
    #[schemars(range(min = 1, max = u16::MAX))]
    #[schemars(extend("x-share" = "none: it bounds one connection; `limits.memory_bytes` has the shares"))]
    pub inflight_max: u16,
    /// Topic aliases that a client may set, and also that the server sets for a client. 0: none.
    #[default(16)]
    #[schemars(extend("x-share" = "none: it bounds one connection; `limits.memory_bytes` has the shares"))]
    pub topic_aliases_max: u16,
    /// Messages that a topic keeps for sessions that subscribe with QoS 1 or 2, if its rule keeps fewer. `log_bytes`, `log_age_s` and
    /// `limits.log_bytes` apply to them too.
    #[default(1000)]
    #[schemars(range(min = 1, max = MAX_KEYS))]
    #[schemars(extend("x-share" = "none: it bounds one topic; `limits.log_bytes` has the shares"))]
    pub session_messages: u32,
    /// The longest time that a session outlives its connection. Clients of 3.1.1 without Clean Session get this time.
    #[default(86_400)]
    pub session_expiry_max_s: u32,
    /// Whether the log has records of sessions. Not in the file: `state.durable_sessions` says it, or the format of the cluster.
    #[serde(skip)]
    pub durable_sessions: bool,
    /// Sessions of all shards together, with and without a connection. At the limit, a new session gets 0x97 (3.1.1: 3). [Shared](#shares).
    #[default(1_000_000)]
    #[schemars(range(min = 1, max = u32::MAX))]
    #[schemars(extend("x-share" = "of an address: four times as many as are free"))]
    pub sessions_max: u32,
    /// Sessions of the clients of one address, with and without a connection. At the limit, a new session gets 0x97 (3.1.1: 3). 0: no
    /// limit.
    ///
    /// A session counts for the last address of its client. The client can resume it from any address.
    #[schemars(extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "it is the limit of one address"))]
    pub sessions_per_address_max: u32,
    /// Sessions of the clients of one user (an MQTT user name, or the subject of a token), with and without a connection. At the limit, a new session gets
    /// 0x97 (3.1.1: 3). 0: no limit. In a cluster each node counts the sessions of all nodes.
    #[schemars(extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "of a user: four times as many as are free"))]
    pub sessions_per_user_max: u32,
    /// How often in a minute a connection may take over a session from another connection, which has the same client id. Beyond that a takeover is refused until
    /// a second has passed since the last one (0x9F; 3.1.1: 3), so that clients which fight over a client id are slowed down. 0: no limit.
    #[default(60)]
    pub takeovers_per_minute: u32,
    /// Seconds between two messages of a `$SYS` topic, while a client subscribes to it. 0: no messages.
    #[default(10)]
    pub sys_interval_s: u32,
}
