//! Parses the addresses to listen on: addresses with a port, and names that are resolved.
//!
//! Invariants: `localhost` is the loopback without asking a resolver (RFC 6761 section 6.3): 127.0.0.1, and then `[::1]` if
//! this host has IPv6. The host's resolver resolves other names once, when the settings are read. Checks, such as whether the
//! server is exposed, use the resolved addresses and never the name.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::str::FromStr;

/// The accepted forms, for error messages.
pub const ACCEPTED_FORMS: &str = "an address and a port, such as \"127.0.0.1:8800\", \"[::1]:8800\" or \"localhost:8800\", or a port of the loopback alone, such as 8800";

/// The addresses of an entry of `listen`, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenEntry(Vec<SocketAddr>);

impl FromStr for ListenEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenEntry, String> {
        if let Ok(address) = text.parse() {
            return Ok(ListenEntry(vec![address]));
        }
        if let Some(port) = parse_port(text) {
            return Ok(ListenEntry(vec![(Ipv4Addr::LOCALHOST, port).into()]));
        }
        let to_error = || {
            match text.contains('@') {
            // The text is not shown, since it contains a password.
            true => "a user and a password have no place in an address; write the address and the port alone".to_string(),
            false => format!("`{text}` {}", fault_and_remedy(text)),
        }
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(to_error)?;
        let port: u16 = port.parse().map_err(|_| to_error())?;
        if !is_host_name(host) {
            return Err(to_error());
        }
        if host.eq_ignore_ascii_case("localhost") {
            return Ok(ListenEntry(loopback_addresses(port)));
        }
        let resolved = (host, port).to_socket_addrs();
        let resolved_addresses =
            resolved.map_err(|error| format!("`{text}` has no address here: {error}"))?;
        let mut addresses = Vec::new();
        for address in resolved_addresses {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        match addresses.is_empty() {
            true => Err(format!("`{text}` has no address here")),
            false => Ok(ListenEntry(addresses)),
        }
    }
}

/// Parses a port, without a sign.
fn parse_port(text: &str) -> Option<u16> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
}

/// The fault of an entry, and the remedy.
fn fault_and_remedy(text: &str) -> String {
    let without_scheme = ["http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    if let Some(url_rest) = without_scheme {
        let host_and_port = url_rest.split('/').next().unwrap_or_default();
        return format!("is a URL; write the address and the port alone: \"{host_and_port}\"");
    }
    let after_star = text.strip_prefix('*').unwrap_or(text);
    match after_star.strip_prefix(':').and_then(parse_port) {
        Some(port) => format!(
            "has no address; write \"127.0.0.1:{port}\" for this machine alone, or \"0.0.0.0:{port}\" for all its addresses"
        ),
        None if text.parse::<Ipv6Addr>().is_ok() => {
            format!(
                "is an address of IPv6 without brackets and port; write one such as \"[{text}]:8800\""
            )
        }
        None if text.parse::<Ipv4Addr>().is_ok() || is_host_name(text) => {
            format!("has no port; write it behind a colon, such as \"{text}:8800\"")
        }
        None => format!("is not {ACCEPTED_FORMS}"),
    }
}

impl ListenEntry {
    /// The first address.
    pub fn first(&self) -> SocketAddr {
        self.0[0]
    }

    /// All addresses of a list. The first address of each entry comes first, so that indices agree with the list. The other addresses of
    /// the entries follow.
    pub fn all_addresses(list: &[ListenEntry]) -> Vec<SocketAddr> {
        let others = list.iter().flat_map(|entry| &entry.0[1..]);
        let firsts = list.iter().map(ListenEntry::first);
        firsts.chain(others.copied()).collect()
    }
}

/// For `serde(with)`: a list of entries of `listen`.
pub mod addresses {
    use std::net::SocketAddr;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::ListenEntry;

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<SocketAddr>, D::Error> {
        let list = Vec::<String>::deserialize(deserializer)?;
        let list: Result<Vec<ListenEntry>, String> = list.iter().map(|text| text.parse()).collect();
        list.map(|list| ListenEntry::all_addresses(&list))
            .map_err(D::Error::custom)
    }

    pub fn serialize<S: Serializer>(
        addresses: &[SocketAddr],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(addresses.iter().map(SocketAddr::to_string))
    }
}

/// For `serde(with)`: one entry; an empty text stands for none.
pub mod optional_address {
    use std::net::SocketAddr;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::ListenEntry;

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        let entry: Result<ListenEntry, String> = text.parse();
        let to_error = |error| D::Error::custom(format!("{error}; or \"\" to switch it off"));
        entry.map(|entry| Some(entry.first())).map_err(to_error)
    }

    pub fn serialize<S: Serializer>(
        address: &Option<SocketAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&address.map_or(String::new(), |address| address.to_string()))
    }
}

/// Whether this can be a host's name: labels of letters, digits and hyphens. The last label must begin with a letter, so
/// that a mistyped address is not resolved.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let last_label = name.rsplit('.').next().unwrap_or_default();
    name.split('.').all(is_label) && last_label.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// The loopback addresses of IPv4 and, if the host has it, of IPv6.
fn loopback_addresses(port: u16) -> Vec<SocketAddr> {
    let mut addresses = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        addresses.push(SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_the_loopback() {
        for text in ["localhost:8800", "LocalHost:8800"] {
            let found = text
                .parse::<ListenEntry>()
                .expect("a name that needs no resolver");
            assert_eq!(found.first(), "127.0.0.1:8800".parse().unwrap());
            assert!(found.0.iter().all(|address| address.ip().is_loopback()));
        }
    }

    #[test]
    fn a_port_alone_is_one_of_the_loopback() {
        for text in ["8800", "0", "65535"] {
            let found = text.parse::<ListenEntry>().expect("a port");
            assert_eq!(
                found.0,
                [SocketAddr::from((
                    Ipv4Addr::LOCALHOST,
                    text.parse().unwrap()
                ))]
            );
        }
        for text in ["65536", "-1", "+1", "8800 "] {
            assert!(text.parse::<ListenEntry>().is_err(), "{text}");
        }
    }

    #[test]
    fn incomplete_address_gets_a_hint() {
        for (text, words) in [
            (
                ":8800",
                "write \"127.0.0.1:8800\" for this machine alone, or \"0.0.0.0:8800\"",
            ),
            ("*:80", "or \"0.0.0.0:80\" for all"),
            ("0.0.0.0", "such as \"0.0.0.0:8800\""),
            ("localhost", "such as \"localhost:8800\""),
            ("::1", "\"[::1]:8800\""),
            ("http://localhost:1/pub", "alone: \"localhost:1\""),
        ] {
            let error = text.parse::<ListenEntry>().expect_err(text);
            assert!(
                error.starts_with(&format!("`{text}` ")) && error.contains(words),
                "{error}"
            );
        }
    }

    #[test]
    fn invalid_name_is_not_looked_up() {
        for text in [
            "",
            "localhost:",
            "localhost:99999",
            "127.0.0.01:1",
            "127.0.0.1-:1",
            "a..b:1",
            "[::1:1",
            "a b:1",
            "\u{fc}.example:1",
        ] {
            let error = text.parse::<ListenEntry>().expect_err(text);
            assert!(error.ends_with(ACCEPTED_FORMS), "{error}");
        }
    }

    #[test]
    fn an_entry_keeps_its_place() {
        let list: Vec<ListenEntry> = ["localhost:1", "127.0.0.1:2", "[::1]:3"]
            .map(|text| text.parse().unwrap())
            .into();
        let all = ListenEntry::all_addresses(&list);
        let ports: Vec<u16> = all.iter().map(SocketAddr::port).collect();
        assert_eq!(ports[..3], [1, 2, 3]);
        assert!(
            all[3..]
                .iter()
                .all(|address| *address == "[::1]:1".parse().unwrap())
        );
    }
}
