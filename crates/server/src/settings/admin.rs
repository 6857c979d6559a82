//! `[admin]`: the port for operators.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::access::Secret;
use super::listen::optional_address;
use super::problems::Problems;

/// The default address of the admin port: the loopback, since every client that reaches it may do everything.
const DEFAULT_LISTEN: &str = "127.0.0.1:8801";
/// A shorter token can be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// Each connection needs a descriptor, and the control plane has few of them.
const MAX_CONNECTIONS: u32 = 10_000;
/// An hour. A longer timeout would protect from nothing.
const MAX_WAIT_S: u32 = 3_600;

/// The admin port.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Where the admin port listens (of a name: its first address); `""` for none. An address that is not the loopback needs
    /// `admin.token`.
    #[default(Some(DEFAULT_LISTEN.parse().expect("a literal address")))]
    #[serde(with = "optional_address")]
    #[schemars(with = "String", extend("type" = ["string", "integer"], "format" = "an address", "x-flag" = "--admin-listen ADDR:PORT"))]
    pub listen: Option<SocketAddr>,
    /// A client that sends this token (`Authorization: Bearer`) may do everything at the admin port. `""`: every client that reaches the port may.
    #[schemars(extend("format" = "from 16 characters"))]
    pub token: String,
    /// The key of [Centrifugo's server API](CENTRIFUGO.md#server-api), which backends send as `X-API-Key`. It permits the paths of that API
    /// only; `token` permits them too. `""`: only `token` protects these paths, as all others.
    #[schemars(extend("format" = "from 16 characters"))]
    pub api_key: Secret,
    /// In place of `api_key`: a file with the key.
    #[schemars(extend("format" = "a file"))]
    pub api_key_file: PathBuf,
    /// Host names that requests may have in `Host`, in addition to the port's address (any address, if it listens on all).
    #[schemars(extend("format" = "hosts"))]
    pub hosts: Vec<String>,
    /// The maximum number of connections at the same time, event streams included. At the limit, a new connection replaces one that has not sent
    /// `admin.token` yet: the oldest of the address that has most such connections. Without a token, it also replaces one of an address with more connections.
    /// If there is none, the new one gets 503 with the reason. `/healthz` and `/readyz` are answered all the same.
    // A console opens a handful of connections, a scraper one. Many more are a mistake, or an attempt to occupy the port.
    #[default(256)]
    #[schemars(range(min = 1, max = MAX_CONNECTIONS))]
    #[schemars(extend("x-share" = "a new connection replaces one without the token: the oldest of the address that has most such connections"))]
    pub connections_max: u32,
    /// How long the head of a request may take, counted from the beginning of the connection or from the end of the previous answer. If it takes longer,
    /// the server ends the connection.
    #[default(10)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub head_s: u32,
    /// How long the body of a request may take, counted from the end of the head. A slower request gets 408, and the connection is ended.
    #[default(20)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub body_s: u32,
}

/// Checks a secret that requests carry in a header. An empty one is valid: there is no secret.
fn check_secret(secret: &str) -> Result<(), String> {
    let bytes = secret.len();
    if bytes > 0 && bytes < MIN_TOKEN_BYTES {
        return Err(format!(
            "has {bytes} bytes and could be guessed; write at least {MIN_TOKEN_BYTES}, such as the output of `openssl rand -hex 16`"
        ));
    }
    if secret.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(
            "has characters that no header may carry; write letters, digits and signs".to_string(),
        );
    }
    Ok(())
}

impl Admin {
    /// The key of Centrifugo's server API, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or its content is no key.
    pub fn key(&self) -> Result<Option<String>, String> {
        let (set, file) = (&self.api_key.0, &self.api_key_file);
        if file.as_os_str().is_empty() {
            return Ok(Some(set.clone()).filter(|key| !key.is_empty()));
        }
        if !set.is_empty() {
            return Err("and api_key are both given; write one of them".to_string());
        }
        let read = std::fs::read_to_string(file);
        let read = read.map_err(|error| format!("{}: {error}", file.display()))?;
        let key = read.trim_end_matches(['\r', '\n']);
        check_secret(key).map_err(|message| format!("{}: the key {message}", file.display()))?;
        match key {
            "" => Err(format!("{} is empty", file.display())),
            key => Ok(Some(key.to_string())),
        }
    }

    /// Checks the values, and the address against those of the data ports.
    pub fn check(&self, problems: &mut Problems, data: &[SocketAddr]) {
        let bytes = self.token.len();
        if let Err(message) = check_secret(&self.token) {
            problems.fail("admin.token", message);
        }
        if let Err(message) = check_secret(&self.api_key.0) {
            problems.fail("admin.api_key", message);
        }
        if let Err(message) = self.key() {
            problems.fail("admin.api_key_file", message);
        }
        problems.check_hosts("admin.hosts", &self.hosts);
        let Some(listen) = self.listen else {
            return;
        };
        if !listen.ip().to_canonical().is_loopback() && bytes == 0 {
            let message = format!(
                "{listen} is not a loopback address, and everyone who reaches it may do everything; set admin.token, or listen on 127.0.0.1"
            );
            problems.fail("admin.listen", message);
        }
        if listen.port() != 0 && data.contains(&listen) {
            let message = format!("{listen} is also in listen; write another port");
            problems.fail("admin.listen", message);
        }
    }
}
