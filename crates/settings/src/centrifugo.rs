//! `[centrifugo]`: Centrifugo's client protocol.

use alloc::string::String;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::bounds::{MAX_MESSAGE_BYTES, MAX_ROWS, MAX_WAIT_S};

/// The most commands of a frame: they are counted before the first one is carried out.
const MAX_COMMANDS: usize = 100_000;

/// Clients of [Centrifugo's protocol](CENTRIFUGO.md).
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Centrifugo {
    /// Serve Centrifugo's client libraries at `path`. [Why it is off](CENTRIFUGO.md).
    pub enabled: bool,
    /// The prefix of the protocol's paths: a WebSocket is at `/connection/websocket`.
    #[default("/connection".into())]
    #[schemars(extend("format" = "a prefix"))]
    pub path: String,
    /// The path to which clients of `/connection/http_stream` and `/connection/sse` post their commands.
    #[default("/emulation".into())]
    #[schemars(extend("format" = "a prefix"))]
    pub emulation_path: String,
    /// Whether a `:` in the name of a channel stands for the `/` between the levels of a topic, so that the channel `chat:7` is the topic `chat/7`. A `/` in the
    /// name of a channel then stands for a `:`.
    #[schemars(extend("x-changes" = "restart"))]
    pub colon_for_slash: bool,
    /// Time between two pings of the server. Clients are told it when they connect.
    #[default(25)]
    #[schemars(range(min = 5, max = MAX_WAIT_S), extend("x-zero" = "off"))]
    pub ping_interval_s: u32,
    /// How long the answer to a ping may take. At most `ping_interval_s`. A client that is later gets 3012.
    #[default(8)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub pong_timeout_s: u32,
    /// Channels that all connections of one user have together, at this node. At the limit a subscribe gets 106, and a connect whose token or backend names more
    /// channels 3505. Clients without a user's name do not count.
    #[default(100_000)]
    #[schemars(range(max = MAX_ROWS), extend("x-zero" = "no limit", "x-changes" = "restart"))]
    #[schemars(extend("x-share" = "it is the limit of one user"))]
    pub channels_per_user_max: u32,
    /// Calls (`rpc`) of one connection that wait for your backend. At the limit the connection's next call and the commands behind it wait.
    #[default(16)]
    #[schemars(range(min = 1, max = 1_000))]
    #[schemars(extend("x-share" = "none: it bounds one connection; `backend.calls_max` has the shares"))]
    pub calls_in_flight_max: u32,
    /// Commands of one frame. A client that sends more gets 3501. A client that reconnects sends all its subscriptions in one frame.
    #[default(2_000)]
    #[schemars(range(min = 1, max = MAX_COMMANDS))]
    #[schemars(extend("x-share" = "none: it bounds one frame"))]
    pub frame_commands_max: usize,
    /// How much longer than `limits.message_bytes` a frame of commands may be, in bytes. A longer frame closes the connection (1009).
    #[default(65_536)]
    #[schemars(range(min = 1_024, max = MAX_MESSAGE_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one connection; `limits.memory_bytes` has the shares"))]
    pub frame_beside_bytes: usize,
    /// Bytes of the latest messages and of their differences (`delta: "fossil"`), for each shard. Without room a message is sent whole.
    #[default(1_048_576)]
    #[schemars(range(max = MAX_MESSAGE_BYTES), extend("x-zero" = "off"))]
    #[schemars(extend("x-share" = "none: a message that is sent whole harms no one"))]
    pub delta_bytes: usize,
}
