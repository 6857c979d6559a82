//! The client of an admin port: one request and its answer, or the server's error message.

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::super::refusals::reason;
use super::super::tables::value_text;
use super::{DEFAULT_URL, TOKEN_VARIABLE};
use crate::http_client::http::Connection;
use crate::http_client::server::Server;

/// Maximum size of an answer, in bytes. An answer is at most a page of a thousand entries or messages.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// An admin port.
pub struct AdminPort<'a> {
    pub server: &'a Server,
}

impl AdminPort<'_> {
    /// Sends a request, and returns the answer.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let server = self.server;
        let unreachable = || format!("no admin port at {server}; name it with --url");
        let mut connection = Connection::open(server).with_context(unreachable)?;
        let mut headers = vec![("Connection", "close")];
        let body = body.map(Value::to_string);
        if body.is_some() {
            headers.push(("Content-Type", "application/json"));
        }
        let target = format!("{}/api/v1/{path}", server.url_path().trim_end_matches('/'));
        let body = match (&body, method) {
            (None, "POST") => Some(&b""[..]),
            (body, _) => body.as_ref().map(String::as_bytes),
        };
        let head = connection.request(server, method, &target, &headers, body)?;
        let answer = connection.read_whole_body(ANSWER_BYTES_MAX)?;
        let value = serde_json::from_slice::<Value>(&answer).ok();
        let error = value.as_ref().and_then(|value| value.get("error"));
        match (value.as_ref(), error, head.status) {
            (Some(_), _, 200..300) => Ok(value.unwrap_or_default()),
            (_, Some(error), 401) => {
                bail!(
                    "{}; give it with --token or in {TOKEN_VARIABLE}",
                    value_text(error)
                )
            }
            (_, Some(error), _) => bail!("{} ({})", value_text(error), head.status_text()),
            // The answer is not from an admin port, but from a data port or another program.
            _ => bail!(
                "{server} is no admin port: it answers {}{}; name the address of admin.listen with --url, by default {DEFAULT_URL}",
                head.status_text(),
                reason(&answer)
            ),
        }
    }
}
