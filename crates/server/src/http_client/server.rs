//! The server to which a command connects: its URL, the roots to trust, and the token to send. Also builds the request targets of the API.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::{Duration, Instant};

use crore_wire::topic::suggested_filter;

use super::addresses::is_public;
use super::tls::Trust;

/// The default port of `crore serve`, for both schemes.
const DEFAULT_PORT: u16 = 8800;

/// The environment variable for a token. The variable is safer than the flag `--token`, which every user of the machine can read.
pub const TOKEN_VARIABLE: &str = "CRORE_TOKEN";

/// The environment variable for the server's URL, instead of `--server`.
pub const SERVER_VARIABLE: &str = "CRORE_SERVER";

/// The URL of the server if neither flag nor variable names one.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8800";

/// The paths of the API, which the commands append to the server's URL.
const API_PATHS: [&str; 6] = ["pub", "sub", "pubsub", "history", "interest", "presence"];

/// A server's URL: `[SCHEME://]HOST[:PORT][/PREFIX]`. The scheme is `http` (the default), `https`, `ws` or `wss`.
#[derive(Clone, Debug)]
pub struct Server {
    /// Whether the scheme is `https` or `wss`.
    is_https: bool,
    /// The name or address, without the brackets of an IPv6 address.
    host: String,
    port: u16,
    /// The path before `/pub` and `/sub`. Empty, or begins with `/`.
    prefix: String,
    /// The token to send with requests.
    token: Option<String>,
    /// The roots to trust. Must be set before a connection with TLS is opened.
    trust: Option<Trust>,
    /// Whether only addresses of the internet are connected to.
    is_public_only: bool,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let server = Server::parse(url, |_is_https| DEFAULT_PORT)?;
        let last_segment = server.prefix.rsplit('/').next().unwrap_or_default();
        match API_PATHS.contains(&last_segment) {
            true => Err(format!(
                "`{url}` is a path of the server; leave /{last_segment} out: the command adds it"
            )),
            false => Ok(server),
        }
    }
}

impl Server {
    /// Parses a URL. If it has no port, `default_port(is_https)` gives it.
    pub fn parse(url: &str, default_port: fn(bool) -> u16) -> Result<Server, String> {
        let bad_url =
            || format!("`{url}` is not a server's URL; write one such as {DEFAULT_SERVER}");
        let after_https = url
            .strip_prefix("https://")
            .or_else(|| url.strip_prefix("wss://"));
        let rest = after_https
            .or_else(|| url.strip_prefix("http://"))
            .or_else(|| url.strip_prefix("ws://"))
            .unwrap_or(url);
        // A password may contain a `/`, so an `@` behind a `/` may still end a user and a password. The error message must not show them.
        if rest.contains('@') {
            return Err(
                "a user and a password have no place in a server's URL; leave them out".to_string(),
            );
        }
        let (authority, prefix) = rest
            .find('/')
            .map_or((rest, ""), |slash| rest.split_at(slash));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                // `parse` accepts a sign, but a port has none.
                let digits = Some(port).filter(|port| !port.starts_with('+'));
                let port = digits.and_then(|port| port.parse().ok());
                (host, port.ok_or_else(bad_url)?)
            }
            _ => (authority, default_port(after_https.is_some())),
        };
        let host = host
            .strip_prefix('[')
            .map_or(Some(host), |host| host.strip_suffix(']'))
            .ok_or_else(bad_url)?;
        // Characters that need no escape in a request line and in `Host` (RFC 3986 sections 3.2.2 and 3.3).
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~%!$&'()*+,;=:/".contains(c);
        if host.is_empty() || !host.chars().all(plain) || !prefix.chars().all(plain) {
            return Err(bad_url());
        }
        Ok(Server {
            is_https: after_https.is_some(),
            host: host.to_string(),
            port,
            prefix: prefix.trim_end_matches('/').to_string(),
            token: None,
            trust: None,
            is_public_only: false,
        })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

impl Server {
    /// The same server, with this token for all requests.
    #[must_use]
    pub fn with_token(&self, token: Option<String>) -> Server {
        Server {
            token,
            ..self.clone()
        }
    }

    /// The same server, but no connection is opened to this machine or to a private network.
    #[must_use]
    pub fn with_public_addresses_only(self) -> Server {
        Server {
            is_public_only: true,
            ..self
        }
    }

    /// Whether the scheme is `https` or `wss`.
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    /// The same server, with these roots to trust. Panics if the scheme is without TLS.
    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Server {
        assert!(self.is_https, "{self} has no TLS");
        Server {
            trust: Some(trust),
            ..self
        }
    }

    /// The roots to trust. `None` if the scheme is without TLS.
    ///
    /// # Errors
    /// No roots were set ([`Server::with_trust`]).
    pub fn trust(&self) -> io::Result<Option<Trust>> {
        if self.is_https && self.trust.is_none() {
            return Err(io::Error::other(
                "no trusted roots are set for an https:// server",
            ));
        }
        Ok(self.trust.clone())
    }

    /// The host's name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The value of the header `Host`.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Tries the addresses of the host in order, each for at most `timeout`, and returns the first connection. Tries none after the deadline.
    ///
    /// # Errors
    /// The name does not resolve, or no address accepts.
    pub fn connect(&self, timeout: Duration, deadline: Option<Instant>) -> io::Result<TcpStream> {
        let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            if self.is_public_only && !is_public(address.ip()) {
                let text = format!("{} is an address of a private network", address.ip());
                last_error = io::Error::new(io::ErrorKind::PermissionDenied, text);
                continue;
            }
            let remaining = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            let timeout = remaining.map_or(timeout, |remaining| remaining.min(timeout));
            if timeout.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last_error = error,
            }
        }
        match last_error.kind() {
            io::ErrorKind::ConnectionRefused => Err(io::Error::new(
                last_error.kind(),
                "nothing listens there; start a server (crore serve), or name another address",
            )),
            _ => Err(last_error),
        }
    }

    /// The request target of the URL itself: the prefix, or `/`.
    pub fn url_path(&self) -> &str {
        if self.prefix.is_empty() {
            "/"
        } else {
            &self.prefix
        }
    }

    /// The request target that publishes to `topic`.
    pub fn publish_target(&self, topic: &str) -> String {
        // A path cannot hold empty levels, `.` or `..`, because clients and proxies normalize them. Such a topic is sent in the query.
        let fits_in_path = topic
            .split('/')
            .all(|level| !matches!(level, "" | "." | ".."))
            && suggested_filter(topic.as_bytes()).is_none();
        let separator = if fits_in_path { "/" } else { "?topic=" };
        format!("{}/pub{separator}{}", self.prefix, escape(topic))
    }

    /// The request target for at most `limit` kept messages of `topic` from `since` on.
    pub fn history_target(&self, topic: &str, since: &str, limit: u64) -> String {
        let (prefix, topic, since) = (&self.prefix, escape(topic), escape(since));
        let limit = limit.min(u32::MAX.into());
        format!("{prefix}/history?topic={topic}&since={since}&limit={limit}")
    }

    /// The request target for the members of `topic` whose ids come after `after`, or with `counts_only` for their number.
    pub fn presence_target(&self, topic: &str, after: &str, counts_only: bool) -> String {
        let (prefix, topic) = (&self.prefix, escape(topic));
        match counts_only {
            true => format!("{prefix}/presence?topic={topic}&stats=1"),
            false => format!("{prefix}/presence?topic={topic}&after={after}"),
        }
    }

    /// The request target that subscribes to `names`, from `since` if given, with messages in envelopes. If one of the names is a filter,
    /// all are sent as filters, because a subscription to filters has one common position. Every topic is a valid filter.
    pub fn subscribe_target(&self, names: &[String], since: Option<&str>) -> String {
        let any_filter = names.iter().any(|name| is_filter(name));
        let kind = if any_filter { "filter" } else { "topic" };
        let mut target = format!("{}/sub?envelope=json", self.prefix);
        for name in names {
            target.push_str(&format!("&{kind}={}", escape(name)));
            if any_filter && target.ends_with('/') {
                // The server refuses a filter that ends with `/`, because it looks like `a/#` whose `#` was cut off as a fragment.
                target.pop();
                target.push_str("%2F");
            }
        }
        if let Some(since) = since {
            target.push_str("&since=");
            target.push_str(&escape(since));
        }
        target
    }
}

/// The text with `…` in place of the user and the password of a URL. Text without a scheme counts as a URL only if its user has a password.
pub fn without_credentials(text: &str) -> String {
    let (scheme, rest) = match text.find("://") {
        Some(start) => text.split_at(start + "://".len()),
        None => ("", text),
    };
    match rest.rsplit_once('@') {
        Some((user, host)) if user.contains(':') || !scheme.is_empty() => {
            format!("{scheme}…@{host}")
        }
        _ => text.to_string(),
    }
}

/// Whether a name is a filter, by its wildcards.
pub fn is_filter(name: &str) -> bool {
    name.split('/').any(|level| matches!(level, "+" | "#"))
}

/// Percent-encodes all characters except unreserved ones (RFC 3986 section 2.3) and `/`, which needs no escape in a path or query.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        for (url, authority, prefix) in [
            ("http://127.0.0.1:8800", "127.0.0.1:8800", ""),
            ("http://localhost", "localhost:8800", ""),
            ("localhost:80/", "localhost:80", ""),
            ("http://[::1]:9/push/", "[::1]:9", "/push"),
            ("ws://[::1]", "[::1]:8800", ""),
            ("https://a.example", "a.example:8800", ""),
            ("wss://a.example:443/push", "a.example:443", "/push"),
        ] {
            let server: Server = url.parse().unwrap();
            assert_eq!(
                (server.authority().as_str(), server.prefix.as_str()),
                (authority, prefix),
                "{url}"
            );
            let is_https = url.starts_with("https") || url.starts_with("wss");
            assert_eq!(
                server.to_string().starts_with("https://"),
                is_https,
                "{url}"
            );
        }
        for url in [
            "",
            "http://",
            "https://",
            "http://a:b",
            "http://a:99999",
            "http://[::1",
            "http://a/?q",
            "http://a\r\nX: y",
            "http://a:+80",
            "http://a\0",
            "http://ann:secret@a",
            "ann:secret@a",
            "http://ann:sec/ret@a",
            "http:/ann:secret@a",
            "http://a/{b}",
            "http://a/b c",
            "http://a/b\n",
            "http://gr\u{fc}n",
            // A path of the API. The command would append `/pub/t` to it, and publish to the topic `pub/t`.
            "http://a/pub",
            "https://a/push/sub/",
            "a/history",
        ] {
            let error = url.parse::<Server>().expect_err(url);
            assert!(!error.contains("ret@"), "{error}");
        }
    }

    #[test]
    fn passwords_are_hidden_wherever_they_stand_in_a_url() {
        for (text, shown) in [
            ("http://ann:secret@a:1/b", "http://…@a:1/b"),
            ("http://secret@a", "http://…@a"),
            ("ann:secret@a", "…@a"),
            ("https://ann:s/e@c@a", "https://…@a"),
            ("http://a/b", "http://a/b"),
            ("ann@example.com", "ann@example.com"),
        ] {
            assert_eq!(without_credentials(text), shown);
        }
    }

    #[test]
    fn topics_are_escaped() {
        let server: Server = "http://h/p".parse().unwrap();
        assert_eq!(server.publish_target("a/b c+ü"), "/p/pub/a/b%20c%2B%C3%BC");
        assert_eq!(server.publish_target("a//b"), "/p/pub?topic=a//b");
        assert_eq!(server.publish_target("../b"), "/p/pub?topic=../b");
        let topics = ["a&b".to_string(), "c".to_string()];
        assert_eq!(
            server.subscribe_target(&topics, None),
            "/p/sub?envelope=json&topic=a%26b&topic=c"
        );
        assert_eq!(
            server.subscribe_target(&topics[1..], Some("1:2")),
            "/p/sub?envelope=json&topic=c&since=1%3A2"
        );
        let filters = ["a/+".to_string(), "#".to_string(), "c".to_string()];
        assert_eq!(
            server.subscribe_target(&filters, None),
            "/p/sub?envelope=json&filter=a/%2B&filter=%23&filter=c"
        );
        let filters = ["#".to_string(), "a/".to_string()];
        assert_eq!(
            server.subscribe_target(&filters, None),
            "/p/sub?envelope=json&filter=%23&filter=a%2F"
        );
    }
}
