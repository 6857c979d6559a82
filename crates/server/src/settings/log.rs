//! `[log]`: the log of a server. Its level is the flag `--log`, which every command has.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The section `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Logging {
    /// Form of the log: `text`, or `json` for programs.
    #[schemars(extend("x-changes" = "restart", "x-flag" = "--log-format FORMAT"))]
    pub format: Format,
    /// Clients that [the log of clients](OPERATIONS.md#the-log-of-clients) has lines of: `user=NAME`, `address=IP`, `client=ID` (the client id of MQTT).
    /// Empty: all clients.
    #[schemars(with = "Vec<String>", extend("x-changes" = "restart", "format" = "`user=NAME`, `address=IP`, `client=ID`"))]
    pub clients: Vec<ClientFilter>,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people: time, level, message, and fields behind it.
    #[default]
    Text,
    /// For programs: a JSON object with `timestamp`, `level`, `message` and the fields.
    Json,
}

/// Clients whose lines are in the log of clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ClientFilter {
    User(String),
    /// In its canonical form: no IPv4 address is mapped to IPv6.
    Address(IpAddr),
    /// The MQTT client id.
    Client(String),
}

impl FromStr for ClientFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<ClientFilter, String> {
        let wrong =
            || format!("`{text}` names no clients; write user=NAME, address=IP or client=ID");
        let (kind, value) = text.split_once('=').ok_or_else(wrong)?;
        match (kind, value) {
            (_, "") => Err(wrong()),
            ("user", user) => Ok(ClientFilter::User(user.to_string())),
            ("client", id) => Ok(ClientFilter::Client(id.to_string())),
            ("address", ip) => ip
                .parse()
                .map(|ip: IpAddr| ClientFilter::Address(ip.to_canonical()))
                .map_err(|_| format!("`{ip}` is no IP address; write such as address=10.0.0.7")),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for ClientFilter {
    type Error = String;

    fn try_from(text: String) -> Result<ClientFilter, String> {
        text.parse()
    }
}

impl fmt::Display for ClientFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientFilter::User(user) => write!(f, "user={user}"),
            ClientFilter::Address(ip) => write!(f, "address={ip}"),
            ClientFilter::Client(id) => write!(f, "client={id}"),
        }
    }
}

impl From<ClientFilter> for String {
    fn from(filter: ClientFilter) -> String {
        filter.to_string()
    }
}
