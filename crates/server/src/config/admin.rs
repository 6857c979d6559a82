//! `[admin]`: the port for operators.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::check::Problem;
use super::units::optional_address;

/// Where the admin port is unless told otherwise: the loopback, since whoever reaches it may do everything.
const DEFAULT_LISTEN: &str = "127.0.0.1:8801";
/// A shorter token can be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// A console has a handful, a scraper one: so many are a mistake, or somebody who holds the port.
const DEFAULT_CONNECTIONS_MAX: u32 = 256;
/// Each takes a descriptor, of which the process's own table has few.
const MAX_CONNECTIONS: u32 = 10_000;
/// As `timeouts.head_s` of the data ports.
const DEFAULT_HEAD_S: u32 = 10;
/// As `timeouts.body_s` of the data ports, though for the whole body: the largest is one message.
const DEFAULT_BODY_S: u32 = 20;
/// Whoever says nothing for an hour says nothing.
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
    pub head_s: u32,
    /// Seconds for the body of a request, from the end of its head.
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

/// What is wrong with it, beside the data ports.
pub fn problems(admin: &Admin, data: &[SocketAddr]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut fail = |path: &str, what: String| {
        problems.push(Problem {
            path: path.to_string(),
            what,
        });
    };
    let bytes = admin.token.len();
    if bytes > 0 && bytes < MIN_TOKEN_BYTES {
        let what = format!(
            "has {bytes} bytes and could be guessed; write at least {MIN_TOKEN_BYTES}, such as the output of `openssl rand -hex 16`"
        );
        fail("admin.token", what);
    }
    if admin.token.bytes().any(|byte| !byte.is_ascii_graphic()) {
        let what = "has characters that no header may carry; write letters, digits and signs";
        fail("admin.token", what.to_string());
    }
    for (index, host) in admin.hosts.iter().enumerate() {
        let plain = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        if !plain || host.contains('/') {
            let what = format!(
                "{host:?} is not a host; write it as browsers do, such as \"admin.example.com\" or \"10.0.0.1:8801\""
            );
            fail(&format!("admin.hosts[{}]", index + 1), what);
        }
    }
    for (key, value, most) in [
        ("connections_max", admin.connections_max, MAX_CONNECTIONS),
        ("head_s", admin.head_s, MAX_WAIT_S),
        ("body_s", admin.body_s, MAX_WAIT_S),
    ] {
        if !(1..=most).contains(&value) {
            let what = format!("{value} is out of range; write a value from 1 to {most}");
            fail(&format!("admin.{key}"), what);
        }
    }
    let Some(listen) = admin.listen else {
        return problems;
    };
    if !listen.ip().is_loopback() && bytes == 0 {
        let what = format!(
            "{listen} is not a loopback address, and everyone who reaches it may do everything; set admin.token, or listen on 127.0.0.1"
        );
        fail("admin.listen", what);
    }
    if listen.port() != 0 && data.contains(&listen) {
        let what = format!("{listen} is also in listen; write another port");
        fail("admin.listen", what);
    }
    problems
}
