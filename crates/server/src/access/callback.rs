//! The operator's own answer: an HTTP endpoint, with TLS or without, that is asked about each credential.
//!
//! `POST` with a JSON object, `{"token": ...}` or `{"user": ..., "password": ...}`. The answer 200 with
//! `{"allow": true, "user": ..., "publish": [...], ..., "expires": ..., "cache_s": ...}` lets the client in; 200 without
//! `"allow": true`, 401 and 403 do not. Any other answer, and silence, refuses for now: an endpoint that fails lets nobody in.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crore_broker::access::{Known, Question, Refusal};
use serde_json::{Map, Value, json};

use super::claims;
use crate::client::http::Connection;
use crate::client::server::Server;
use crate::client::tls::Trust;
use crate::settings::access::Callback as Entry;

/// Bytes of an answer at most: some hundred filters.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// How often it is logged why it did not answer, at most.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// The settings key of the file of roots.
const CA_KEY: &str = "access.callback.ca";

/// Where and how to ask.
#[derive(Debug)]
pub struct Callback {
    server: Server,
    /// When it was last logged that it did not answer.
    told: Mutex<Option<Instant>>,
    /// Seconds until the answer must be there.
    timeout: Duration,
    /// Seconds for which an answer without a time of its own is believed.
    pub cache_s: u32,
    /// How many may be asked at once.
    pub concurrency: usize,
}

/// The callback's answer, and for how many seconds it holds.
pub type Said = (Result<Known, Refusal>, u32);

impl Callback {
    /// By these settings. The file of roots is read here.
    ///
    /// # Errors
    /// The key in the settings, and what is wrong with it.
    pub fn new(entry: &Entry) -> Result<Callback, (String, String)> {
        let is_url = ["http://", "https://"]
            .iter()
            .any(|scheme| entry.url.starts_with(scheme));
        let server = match is_url {
            true => Server::parse(&entry.url, |secure| if secure { 443 } else { 80 }),
            false => Err(format!("`{}` is not offered", entry.url)),
        };
        let server = server.map_err(|what| {
            let key = "access.callback.url".to_string();
            (
                key,
                format!(
                    "{what}; write https://HOST:PORT/PATH, or http:// within a network of your own"
                ),
            )
        })?;
        let wrong = |what| (CA_KEY.to_string(), what);
        let server = match (server.is_secure(), entry.ca.as_deref()) {
            (true, roots) => server.with_trust(Trust::new(roots, CA_KEY).map_err(wrong)?),
            (false, None) => server,
            (false, Some(_)) => {
                return Err(wrong(format!(
                    "is for servers with TLS, and {server} is none; write https://"
                )));
            }
        };
        Ok(Callback {
            server,
            told: Mutex::new(None),
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
                use io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
                self.tell(&match error.kind() {
                    WouldBlock | TimedOut => {
                        format!("no answer within {} s", self.timeout.as_secs())
                    }
                    UnexpectedEof => "it closed the connection without an answer".to_string(),
                    _ => error.to_string(),
                });
                (Err(Refusal::Unreachable), 0)
            }
        }
    }

    /// Logs why the endpoint could not be asked, not for each question.
    fn tell(&self, why: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|last| last.elapsed() >= TELL_EVERY) {
            *told = Some(Instant::now());
            tracing::warn!("the access callback at {}: {why}", self.server);
        }
    }

    fn exchange(&self, body: &[u8], kept: &mut Option<Connection>) -> io::Result<(u16, Vec<u8>)> {
        let end = Instant::now() + self.timeout;
        let mut connection = match kept.take().and_then(Connection::reusable) {
            Some(connection) => connection,
            None => Connection::open_within(&self.server, self.timeout)?,
        };
        connection.set_end(end);
        let headers = [("Content-Type", "application/json")];
        let target = self.server.target();
        let head = connection.request(&self.server, "POST", target, &headers, Some(body))?;
        let answer = connection.whole_body(ANSWER_BYTES_MAX)?;
        *kept = Some(connection);
        Ok((head.status, answer))
    }

    fn read(&self, status: u16, answer: &[u8]) -> Said {
        match (status, serde_json::from_slice::<Map<String, Value>>(answer)) {
            (401 | 403, _) => (Err(Refusal::Denied), self.cache_s),
            (200, Ok(answer)) => self.read_answer(&answer),
            _ => {
                self.tell(&format!(
                    "its answer of status {status} says neither yes nor no"
                ));
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

/// The question as JSON; none where the credential is not text.
fn request(question: &Question) -> Option<Value> {
    let secret = std::str::from_utf8(&question.secret).ok()?;
    Some(match &question.user {
        None => json!({ "token": secret }),
        Some(user) => json!({ "user": std::str::from_utf8(user).ok()?, "password": secret }),
    })
}
