//! A filter of the log of clients, in its text form and in memory.

use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Clients whose lines are in the log of clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ClientFilter {
    /// Those of this user.
    User(String),
    /// Those of this address, in its canonical form: no IPv4 address is mapped to IPv6.
    Address(IpAddr),
    /// The one with this MQTT client id.
    Client(String),
}

impl FromStr for ClientFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<ClientFilter, String> {
        let form_error =
            || format!("`{text}` names no clients; write user=NAME, address=IP or client=ID");
        let (kind, value) = text.split_once('=').ok_or_else(form_error)?;
        match (kind, value) {
            (_, "") => Err(form_error()),
            ("user", user) => Ok(ClientFilter::User(user.to_string())),
            ("client", id) => Ok(ClientFilter::Client(id.to_string())),
            ("address", ip) => ip
                .parse()
                .map(|ip: IpAddr| ClientFilter::Address(ip.to_canonical()))
                .map_err(|_| format!("`{ip}` is no IP address; write such as address=10.0.0.7")),
            _ => Err(form_error()),
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

#[cfg(test)]
mod tests {
    use super::ClientFilter;

    #[test]
    fn a_filter_that_names_no_clients_is_refused() {
        for wrong in ["ann", "user=", "address=here", "name=ann", ""] {
            assert!(wrong.parse::<ClientFilter>().is_err(), "{wrong}");
        }
    }
}
