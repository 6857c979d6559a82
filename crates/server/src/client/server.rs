//! Where the server is, and how topics are written into its URLs.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

/// How long one address may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The port that `crore serve` listens on by default.
const DEFAULT_PORT: u16 = 8800;

/// Where a token may stand besides `--token`, which every user of the machine can read.
const TOKEN_VARIABLE: &str = "CRORE_TOKEN";

/// The server as `--server` names it by default.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8800";

/// A server's URL: `http://HOST[:PORT][/PREFIX]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Without brackets.
    host: String,
    port: u16,
    /// What stands before `/pub` and `/sub`; empty or beginning with `/`.
    prefix: String,
    /// What says who we are, if anything does.
    token: Option<String>,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let form = || format!("`{url}` is not a server's URL; write one such as {DEFAULT_SERVER}");
        if url.starts_with("https://") || url.starts_with("wss://") {
            return Err(format!(
                "`{url}`: TLS is not built in; name the server behind the proxy by http://"
            ));
        }
        let rest = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("ws://"))
            .unwrap_or(url);
        let (authority, prefix) = rest
            .find('/')
            .map_or((rest, ""), |slash| rest.split_at(slash));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| form())?),
            _ => (authority, DEFAULT_PORT),
        };
        let host = host
            .strip_prefix('[')
            .map_or(Some(host), |host| host.strip_suffix(']'))
            .ok_or_else(form)?;
        let plain = |c: char| c.is_ascii_graphic() && !"?#@\\".contains(c);
        if host.is_empty() || !host.chars().all(plain) || !prefix.chars().all(plain) {
            return Err(form());
        }
        Ok(Server {
            host: host.to_string(),
            port,
            prefix: prefix.trim_end_matches('/').to_string(),
            token: None,
        })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.prefix)
    }
}

impl Server {
    /// The same, asked with this token, else with the one of the environment.
    #[must_use]
    pub fn with_token(&self, token: Option<&String>) -> Server {
        let of_environment = || std::env::var(TOKEN_VARIABLE).ok();
        Server {
            token: token.cloned().or_else(of_environment),
            ..self.clone()
        }
    }

    /// What says who we are.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The value of `Host`.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Connects to the first of the host's addresses that accepts.
    ///
    /// # Errors
    /// The name does not resolve, or no address accepts; the last address's error.
    pub fn connect(&self) -> io::Result<TcpStream> {
        self.connect_within(CONNECT_TIMEOUT)
    }

    /// The same, with so much time for each address.
    ///
    /// # Errors
    /// As [`Server::connect`].
    pub fn connect_within(&self, timeout: Duration) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The request target that the URL itself names.
    pub fn target(&self) -> &str {
        if self.prefix.is_empty() {
            "/"
        } else {
            &self.prefix
        }
    }

    /// The request target that publishes to `topic`.
    pub fn publish_target(&self, topic: &str) -> String {
        // Levels that a path cannot hold travel in the query.
        let in_path = topic
            .split('/')
            .all(|level| !matches!(level, "" | "." | ".."));
        let slash = if in_path { "/" } else { "?topic=" };
        format!("{}/pub{slash}{}", self.prefix, escape(topic))
    }

    /// The request target that subscribes to `topics` with messages in envelopes, from `since` if given.
    pub fn subscribe_target(&self, topics: &[String], since: Option<&str>) -> String {
        let mut target = format!("{}/sub?envelope=json", self.prefix);
        for topic in topics {
            target.push_str("&topic=");
            target.push_str(&escape(topic));
        }
        if let Some(since) = since {
            target.push_str("&since=");
            target.push_str(&escape(since));
        }
        target
    }
}

/// Percent-encodes all but unreserved characters and `/` (RFC 3986 section 2.3; a `/` is data in both
/// places where a topic stands).
pub(super) fn escape(text: &str) -> String {
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
    fn urls() {
        for (url, authority, prefix) in [
            ("http://127.0.0.1:8800", "127.0.0.1:8800", ""),
            ("http://localhost", "localhost:8800", ""),
            ("localhost:80/", "localhost:80", ""),
            ("http://[::1]:9/push/", "[::1]:9", "/push"),
            ("ws://[::1]", "[::1]:8800", ""),
        ] {
            let server: Server = url.parse().unwrap();
            assert_eq!(
                (server.authority().as_str(), server.prefix.as_str()),
                (authority, prefix),
                "{url}"
            );
        }
        for url in [
            "",
            "http://",
            "https://a",
            "http://a:b",
            "http://a:99999",
            "http://[::1",
            "http://a/?q",
            "http://a\r\nX: y",
        ] {
            assert!(url.parse::<Server>().is_err(), "{url}");
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
    }
}
