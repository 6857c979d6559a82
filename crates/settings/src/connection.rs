//! Settings of connections: timeouts, heartbeats, compression, and the drain before a stop.

use alloc::string::String;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::bounds::{MAX_MESSAGE_BYTES, MAX_WAIT_S};

/// A shorter interval would cost more than everything else that an idle connection does.
const MIN_HEARTBEAT_S: u32 = 5;

/// Times, in seconds.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// How long the headers of a request may take, from its first byte or from the beginning of the connection. A slower request gets 408.
    #[default(10)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub head_s: u32,
    /// How far a body, a frame or an MQTT packet may fall behind `progress_bytes_per_s`, in seconds. Also how long a peer may read none of
    /// the bytes that the server sends.
    ///
    /// It may lack as many bytes as that rate brings in these seconds. If it lacks more, a request ends with 408, a WebSocket with 1001, an
    /// MQTT 5 connection with 0x83.
    #[default(20)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub body_s: u32,
    /// The least rate at which a body, a frame or an MQTT packet that has begun must arrive. Seconds in which the server does not read
    /// do not count.
    ///
    /// Bytes that arrived faster than that make up for later slow ones, but for at most `body_s`, as with Apache's mod_reqtimeout.
    #[default(500)]
    #[schemars(range(min = 1, max = 1 << 20))]
    #[schemars(extend("x-share" = "none: it bounds one connection"))]
    pub progress_bytes_per_s: u32,
    /// How long a kept-alive connection may be without a request.
    #[default(75)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub keep_alive_s: u32,
    /// How long a peer may take to read the last bytes of a connection that the server closes.
    #[default(2)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub drain_s: u32,
}

/// Heartbeats: WebSocket pings and SSE comments, to connections on which the server has been silent.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Heartbeat {
    /// Silence before a heartbeat is sent.
    #[default(50)]
    #[schemars(range(min = MIN_HEARTBEAT_S, max = MAX_WAIT_S), extend("x-zero" = "off", "x-flag" = "--heartbeat TIME"))]
    pub interval_s: u32,
    /// Each wait is shortened at random by up to this many per cent.
    #[default(20)]
    #[schemars(range(max = 90))]
    pub jitter_percent: u32,
}

/// permessage-deflate.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Deflate {
    /// Offer permessage-deflate to WebSocket clients.
    #[default(true)]
    #[schemars(extend("x-flag" = "--deflate BOOL"))]
    pub enabled: bool,
    /// Smaller messages go uncompressed.
    #[default(64)]
    #[schemars(range(max = MAX_MESSAGE_BYTES))]
    pub min_bytes: usize,
    /// Compression level: 1 is fastest, 9 smallest.
    ///
    /// A message of more than 1 MiB (from level 2 on 256 KiB, from 7 on 64 KiB) is sent as it is: compressing it would hold up other
    /// clients.
    #[default(1)]
    #[schemars(range(min = 1, max = 9))]
    pub level: u8,
}

/// Moving clients off before a stop.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Drain {
    /// Connections moved off in a second by all shards together.
    #[default(10_000)]
    #[schemars(range(min = 1, max = u32::MAX))]
    pub rate_per_s: u32,
    /// How long moving clients off may take. Then the remaining connections are closed. 0: all are closed at once, without a notice.
    #[default(30)]
    #[schemars(range(max = MAX_WAIT_S))]
    pub deadline_s: u32,
    /// The server to which MQTT 5 clients are redirected (0x9C, Use another server). Empty: they get 0x8B, Server shutting down.
    #[schemars(extend("format" = "at most 1,000 bytes"))]
    pub server_reference: String,
}
