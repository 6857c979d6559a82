//! `[pusher]`: Pusher's protocol.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::bounds::{MAX_MESSAGE_BYTES, MAX_WAIT_S};

/// Clients of [Pusher's protocol](PUSHER.md). It is on if there is a [`[[pusher_app]]`](#pusher_app).
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pusher {
    /// A client from which nothing comes for this time is asked for a sign of life (`pusher:ping`). Clients are told the time when they connect, and ask the server after
    /// the same time.
    #[default(60)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub activity_timeout_s: u32,
    /// How long the answer to this question may take. A client that is later gets 4201.
    #[default(30)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub pong_timeout_s: u32,
    /// How much longer than `limits.message_bytes` an event of a client may be, in bytes. A longer one closes the connection (1009).
    #[default(16_384)]
    #[schemars(range(min = 1_024, max = MAX_MESSAGE_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one connection; `limits.memory_bytes` has the shares"))]
    pub event_beside_bytes: usize,
}
