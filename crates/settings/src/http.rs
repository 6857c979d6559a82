//! `[http]`: paths, origins and proxies.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

/// The most streams of a connection: each turn of it may look at all of them.
const MAX_STREAMS: u32 = 1_000;

/// Paths, origins and proxies.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Paths that publish: the prefix itself, and the prefix with a topic after it.
    #[default(vec!["/pub".into()])]
    #[schemars(extend("format" = "prefixes"))]
    pub publish_paths: Vec<String>,
    /// Paths that subscribe.
    #[default(vec!["/sub".into()])]
    #[schemars(extend("format" = "prefixes"))]
    pub subscribe_paths: Vec<String>,
    /// Paths that do both over one WebSocket.
    #[default(vec!["/pubsub".into()])]
    #[schemars(extend("format" = "prefixes"))]
    pub pubsub_paths: Vec<String>,
    /// Paths that tell which topics have subscribers. No prefix of these six lists may lie within another.
    #[default(vec!["/interest".into()])]
    #[schemars(extend("format" = "prefixes"))]
    pub interest_paths: Vec<String>,
    /// Paths that tell [what a topic keeps](PROTOCOLS.md#history).
    #[default(vec!["/history".into()])]
    #[schemars(extend("format" = "prefixes"))]
    pub history_paths: Vec<String>,
    /// Paths that tell [who is present](PROTOCOLS.md#presence) in a topic.
    #[default(vec!["/presence".into()])]
    #[schemars(extend("format" = "prefixes"))]
    pub presence_paths: Vec<String>,
    /// Origins of web pages that may publish, upgrade to WebSocket and read answers, besides the server's own; `null` for pages from
    /// files, `*` for all.
    ///
    /// Pages of other origins may not use `POST`, `PUT` and `DELETE` either. `"null"` stands for [any site's sandboxed
    /// frames](PROXIES.md#pages-of-other-origins) too: list it for trying things out only.
    #[schemars(extend("x-flag" = "--allowed-origin ORIGIN", "format" = "origins, `null` or `*`"))]
    pub allowed_origins: Vec<String>,
    /// Further names that requests may have in `Host`, besides those of the loopback. Used only while the server listens on the loopback
    /// only.
    ///
    /// Write them as browsers do: with a port, unless it is the default port of the scheme. If a proxy on the same machine passes its own
    /// name on, list that name here. If any `Host` were accepted, a web page whose name was rebound to 127.0.0.1 could [read and
    /// publish](PROXIES.md#403).
    #[schemars(extend("format" = "hosts"))]
    pub hosts: Vec<String>,
    /// Accept only those `Host`s, and names of the loopback (DNS rebinding). The server sets this while it listens on the loopback only.
    #[default(true)]
    #[serde(skip)]
    pub loopback_hosts_only: bool,
    /// Networks (`"10.0.0.0/8"`) of proxies that are trusted to send `X-Forwarded-For` and PROXY headers ([behind a proxy](PROXIES.md)).
    #[serde(with = "networks")]
    #[schemars(with = "Vec<String>", extend("format" = "networks"))]
    pub trusted_proxies: Vec<(core::net::IpAddr, u8)>,
    /// Offer HTTP/2 to clients of TLS (ALPN `h2`), so that a page has one connection for all its streams ([HTTP/2](PROTOCOL-DETAILS.md#http2)).
    #[default(true)]
    pub h2: bool,
    /// Speak HTTP/2 without TLS to clients that begin with it ("prior knowledge"), such as proxies. Others still speak HTTP/1.1.
    ///
    /// Each stream counts as a connection in the limits of connections ([HTTP/2](PROTOCOL-DETAILS.md#http2)).
    pub h2_cleartext: bool,
    /// Streams at a time on one connection of HTTP/2. A client that opens more gets `REFUSED_STREAM` for them. A connection keeps the number that it was told when
    /// it began.
    #[default(128)]
    #[schemars(range(min = 1, max = MAX_STREAMS))]
    #[schemars(extend("x-share" = "none: it bounds one connection; each stream counts in `limits.connections_max`, which has the shares"))]
    pub h2_streams_max: u32,
    /// Every connection starts with a PROXY protocol v2 header and comes from one of `http.trusted_proxies`. Others are closed at
    /// once; a warning counts them.
    pub proxy_protocol: bool,
}

/// Networks in CIDR form.
mod networks {
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;
    use core::net::IpAddr;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    const EXPECTED_FORM: &str = "a network, such as \"10.0.0.0/8\" or \"fd00::/8\"";

    /// Parses `ADDRESS/PREFIX`. An address alone is a network with this one address.
    fn parse(text: &str) -> Result<(IpAddr, u8), String> {
        let form_error = || format!("`{text}` is not {EXPECTED_FORM}");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| form_error())?;
        let address_bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix
            .map_or(Ok(address_bits), str::parse)
            .map_err(|_| form_error())?;
        if prefix > address_bits {
            return Err(format!(
                "`{text}`: the prefix must be at most {address_bits}"
            ));
        }
        let (address, prefix) = to_ipv4(address, prefix).ok_or_else(|| {
            format!("`{text}` has more than the IPv4 addresses mapped into IPv6; write IPv4 networks as \"10.0.0.0/8\"")
        })?;
        let network = clear_host_bits(address, prefix);
        if network != address {
            return Err(format!(
                "`{text}` has bits past its prefix; write \"{network}/{prefix}\""
            ));
        }
        Ok((address, prefix))
    }

    /// Converts a network of IPv4 addresses mapped into IPv6 (RFC 4291 section 2.5.5.2) to IPv4, since the server knows clients by their
    /// IPv4 addresses. `None` for a network that also contains other addresses.
    fn to_ipv4(address: IpAddr, prefix: u8) -> Option<(IpAddr, u8)> {
        match (address, address.to_canonical()) {
            (IpAddr::V6(_), v4 @ IpAddr::V4(_)) => Some((v4, prefix.checked_sub(96)?)),
            _ => Some((address, prefix)),
        }
    }

    /// The address without the bits after the prefix.
    fn clear_host_bits(address: IpAddr, prefix: u8) -> IpAddr {
        let prefix = u32::from(prefix);
        match address {
            IpAddr::V4(v4) => {
                IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(32 - prefix).unwrap_or(0)).into())
            }
            IpAddr::V6(v6) => {
                IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(128 - prefix).unwrap_or(0)).into())
            }
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(IpAddr, u8)>, D::Error> {
        let list = Vec::<String>::deserialize(deserializer)?;
        let list: Result<_, String> = list.iter().map(|text| parse(text)).collect();
        list.map_err(D::Error::custom)
    }

    pub fn serialize<S: Serializer>(
        networks: &[(IpAddr, u8)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(
            networks
                .iter()
                .map(|(address, prefix)| format!("{address}/{prefix}")),
        )
    }
}
