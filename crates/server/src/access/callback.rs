//! The operator's own answer: an HTTP endpoint that is asked about each credential.
//!
//! `POST` with a JSON object, `{"token": ...}` or `{"user": ..., "password": ...}`. The answer 200 with
//! `{"allow": true, "user": ..., "publish": [...], ..., "expires": ..., "cache_s": ...}` lets somebody in; 200 without
//! `"allow": true`, 401 and 403 do not. Everything else, and silence, refuses for now: who cannot be asked cannot say yes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crore_broker::access::{Known, Question, Refusal};
use serde_json::{Map, Value, json};

use super::claims;
use crate::client::http::Connection;
use crate::client::server::Server;
use crate::config::access::Callback as Entry;

/// Bytes of an answer at most: some hundred filters.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Where and how to ask.
#[derive(Debug)]
pub struct Callback {
    server: Server,
    /// Seconds until the answer must be there.
    timeout: Duration,
    /// Seconds for which an answer without a time of its own is believed.
    pub cache_s: u32,
    /// How many may be asked at once.
    pub concurrency: usize,
}

/// What the callback said, and for how many seconds it holds.
pub type Said = (Result<Known, Refusal>, u32);

impl Callback {
    /// By these settings.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn new(entry: &Entry) -> Result<Callback, String> {
        if !entry.url.starts_with("http://") {
            return Err(format!(
                "`{}` is not offered; write http://HOST:PORT/PATH, on this machine or a network of your own",
                entry.url
            ));
        }
        Ok(Callback {
            server: entry.url.parse()?,
            timeout: Duration::from_secs(u64::from(entry.timeout_s)),
            cache_s: entry.cache_s,
            concurrency: entry.concurrency,
        })
    }

    /// Asks, over `kept` if it is still there. Blocks.
    pub fn ask(&self, question: &Question, kept: &mut Option<Connection>) -> Said {
        let body = match request(question) {
            Some(body) => body.to_string(),
            // JSON has no words for it.
            None => return (Err(Refusal::Malformed), self.cache_s),
        };
        match self.exchange(body.as_bytes(), kept) {
            Ok((status, answer)) => self.read(status, &answer),
            Err(error) => {
                tracing::debug!(%error, "the callback did not answer");
                (Err(Refusal::Unreachable), 0)
            }
        }
    }

    fn exchange(
        &self,
        body: &[u8],
        kept: &mut Option<Connection>,
    ) -> std::io::Result<(u16, Vec<u8>)> {
        let end = Instant::now() + self.timeout;
        let mut connection = match kept.take().filter(Connection::is_reusable) {
            Some(connection) => connection,
            None => Connection::open_within(&self.server, self.timeout)?,
        };
        let headers = [("Content-Type", "application/json")];
        let target = self.server.target();
        connection.set_patience(Some(self.timeout))?;
        let head = connection.request(&self.server, "POST", target, &headers, Some(body))?;
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let late = || std::io::Error::from(std::io::ErrorKind::TimedOut);
            connection.set_patience(
                Some(left)
                    .filter(|left| !left.is_zero())
                    .ok_or_else(late)?
                    .into(),
            )?;
            match connection.read_body(&mut buffer)? {
                0 => break,
                len if answer.len() + len > ANSWER_BYTES_MAX => {
                    return Err(std::io::Error::other("the answer is too long"));
                }
                len => answer.extend_from_slice(&buffer[..len]),
            }
        }
        *kept = Some(connection);
        Ok((head.status, answer))
    }

    fn read(&self, status: u16, answer: &[u8]) -> Said {
        match (status, serde_json::from_slice::<Map<String, Value>>(answer)) {
            (401 | 403, _) => (Err(Refusal::Denied), self.cache_s),
            (200, Ok(answer)) => self.read_answer(&answer),
            _ => {
                tracing::debug!(status, "the callback's answer cannot be read");
                (Err(Refusal::Unreachable), 0)
            }
        }
    }

    fn read_answer(&self, answer: &Map<String, Value>) -> Said {
        let cache_s = match claims::moment(answer, "cache_s") {
            Ok(said) => said.map_or(self.cache_s, |s| u32::try_from(s).unwrap_or(u32::MAX)),
            Err(refusal) => return (Err(refusal), 0),
        };
        if answer.get("allow") != Some(&Value::Bool(true)) {
            return (Err(Refusal::Denied), cache_s);
        }
        let known = claims::moment(answer, "expires").and_then(|end| {
            Ok(Known {
                grants: Arc::new(claims::grants(answer, "user")?),
                until_unix_s: end.map_or(u32::MAX, |end| u32::try_from(end).unwrap_or(u32::MAX)),
            })
        });
        (known, cache_s)
    }
}

/// What is asked; none where the credential is not text.
fn request(question: &Question) -> Option<Value> {
    let secret = std::str::from_utf8(&question.secret).ok()?;
    Some(match &question.user {
        None => json!({ "token": secret }),
        Some(user) => json!({ "user": std::str::from_utf8(user).ok()?, "password": secret }),
    })
}
