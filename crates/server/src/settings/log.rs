//! `[log]`: the log of a server. The level of the log is not here, but in the flag `--log`, which every command has.

use crore_settings::ClientFilter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The section `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Logging {
    /// Log format: `text`, or `json` for programs.
    #[schemars(extend("x-changes" = "restart", "x-flag" = "--log-format FORMAT"))]
    pub format: LogFormat,
    /// The clients that [the log of clients](OPERATIONS.md#the-log-of-clients) contains: `user=NAME`, `address=IP`, `client=ID` (the client
    /// id of MQTT). Empty: all clients.
    #[schemars(with = "Vec<String>", extend("x-changes" = "restart", "format" = "`user=NAME`, `address=IP`, `client=ID`"))]
    pub clients: Vec<ClientFilter>,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people: time, level, message, and then the fields.
    #[default]
    Text,
    /// For programs: a JSON object with `timestamp`, `level`, `message` and the fields.
    Json,
}
