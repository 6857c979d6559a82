//! `[admin]`: the port for operators.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::problems::{Check, ranges};
use super::units::{optional_address, seconds};

/// The default address of the admin port: the loopback, since any client that reaches it may do everything.
const DEFAULT_LISTEN: &str = "127.0.0.1:8801";
/// A shorter token can be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// A console has a handful, a scraper one: so many are a mistake, or an attempt to hold the port.
const DEFAULT_CONNECTIONS_MAX: u32 = 256;
/// Each takes a descriptor, of which the process's own table has few.
const MAX_CONNECTIONS: u32 = 10_000;
/// As `timeouts.head_s` of the data ports.
const DEFAULT_HEAD_S: u32 = 10;
/// As `timeouts.body_s` of the data ports, though for the whole body: the largest is one message.
const DEFAULT_BODY_S: u32 = 20;
/// A client that is silent for an hour stays silent.
const MAX_WAIT_S: u32 = 3_600;

/// The admin port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Where it listens; none: not at all.
    #[serde(with = "optional_address")]
    pub listen: Option<SocketAddr>,
    /// Who has it may do everything there; empty: whoever reaches the port.
    pub token: String,
    /// Names besides its address by which it may be asked.
    pub hosts: Vec<String>,
    /// Connections at once; those past it get 503.
    pub connections_max: u32,
    /// Seconds for the head of a request, from the beginning of the connection or the end of the answer before.
    #[serde(with = "seconds")]
    pub head_s: u32,
    /// Seconds for the body of a request, from the end of its head.
    #[serde(with = "seconds")]
    pub body_s: u32,
}

impl Default for Admin {
    fn default() -> Self {
        Admin {
            listen: Some(DEFAULT_LISTEN.parse().expect("a literal address")),
            token: String::new(),
            hosts: Vec::new(),
            connections_max: DEFAULT_CONNECTIONS_MAX,
            head_s: DEFAULT_HEAD_S,
            body_s: DEFAULT_BODY_S,
        }
    }
}

impl Admin {
    /// Checks the values, and the address against those of the data ports.
    pub fn check(&self, check: &mut Check, data: &[SocketAddr]) {
        let bytes = self.token.len();
        if bytes > 0 && bytes < MIN_TOKEN_BYTES {
            let what = format!(
                "has {bytes} bytes and could be guessed; write at least {MIN_TOKEN_BYTES}, such as the output of `openssl rand -hex 16`"
            );
            check.fail("admin.token", what);
        }
        if self.token.bytes().any(|byte| !byte.is_ascii_graphic()) {
            let what = "has characters that no header may carry; write letters, digits and signs";
            check.fail("admin.token", what);
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let plain = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
            if !plain || host.contains('/') {
                let what = format!(
                    "{host:?} is not a host; write it as browsers do, such as \"admin.example.com\" or \"10.0.0.1:8801\""
                );
                check.fail(format!("admin.hosts[{}]", index + 1), what);
            }
        }
        ranges! { check, "admin", self;
            connections_max: 1..=MAX_CONNECTIONS;
            head_s: 1..=MAX_WAIT_S;
            body_s: 1..=MAX_WAIT_S;
        }
        let Some(listen) = self.listen else {
            return;
        };
        if !listen.ip().is_loopback() && bytes == 0 {
            let what = format!(
                "{listen} is not a loopback address, and everyone who reaches it may do everything; set admin.token, or listen on 127.0.0.1"
            );
            check.fail("admin.listen", what);
        }
        if listen.port() != 0 && data.contains(&listen) {
            let what = format!("{listen} is also in listen; write another port");
            check.fail("admin.listen", what);
        }
    }
}
