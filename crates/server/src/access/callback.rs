//! The operator's own answer: an HTTP endpoint, with TLS or without, that is asked about each credential.
//!
//! `POST` with a JSON object, `{"token": ...}` or `{"user": ..., "password": ...}`. The answer 200 with
//! `{"allow": true, "user": ..., "publish": [...], ..., "expires": ..., "cache_s": ...}` lets the client in; 200 without
//! `"allow": true`, 401 and 403 do not. Any other answer, one with a member of another form, and silence refuse for now: an endpoint that
//! fails lets nobody in. A member that is `null` is not there; members that are not known mean nothing.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crore_broker::Reason;
use crore_broker::access::{Known, Question};
use serde_json::{Map, Value, json};

use super::claims;
use crate::client::http::{Connection, Head};
use crate::client::server::Server;
use crate::client::tls::Trust;
use crate::settings::access::Callback as Entry;

/// Bytes of an answer at most: some hundred filters.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// How often one reason why it did not answer is logged, at most.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Reasons that are logged within that time, at most.
const TOLD_MAX: usize = 16;
/// Some serializers write it before their text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The settings key of the file of roots.
const CA_KEY: &str = "access.callback.ca";

/// Where and how to ask.
pub struct Callback {
    server: Server,
    /// The reasons that were logged lately, and when.
    told: Mutex<Vec<(String, Instant)>>,
    /// Seconds until the answer must be there.
    timeout: Duration,
    /// Seconds for which an answer without a time of its own is believed.
    pub cache_s: u32,
    /// How many may be asked at once.
    pub concurrency: usize,
}

/// The callback's answer, and for how many seconds it holds.
pub type TimedAnswer = (Result<Known, Reason>, u32);

impl Callback {
    /// By these settings. The file of roots is read here.
    ///
    /// # Errors
    /// The key in the settings, and its fault.
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
            told: Mutex::default(),
            timeout: Duration::from_secs(u64::from(entry.timeout_s)),
            cache_s: entry.cache_s,
            concurrency: entry.concurrency,
        })
    }

    /// Asks, over `kept` if it is still there. Blocks.
    pub fn ask(&self, question: &Question, kept: &mut Option<Connection>) -> TimedAnswer {
        let body = match request(question) {
            Some(body) => body.to_string(),
            // JSON has no words for it.
            None => return (Err(Reason::CredentialsMalformed), self.cache_s),
        };
        match self.exchange(body.as_bytes(), kept) {
            Ok((head, answer)) => self.read(&head, &answer),
            Err(error) => {
                use io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
                self.tell(&match error.kind() {
                    WouldBlock | TimedOut => {
                        format!("no answer within {} s", self.timeout.as_secs())
                    }
                    UnexpectedEof => "it closed the connection without an answer".to_string(),
                    _ => error.to_string(),
                });
                (Err(Reason::VerifierUnreachable), 0)
            }
        }
    }

    /// Logs why the endpoint could not be asked, not for each question.
    fn tell(&self, why: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|(_, last)| last.elapsed() < TELL_EVERY);
        if told.len() < TOLD_MAX && !told.iter().any(|(known, _)| known == why) {
            told.push((why.to_string(), Instant::now()));
            tracing::warn!("the access callback at {}: {why}", self.server);
        }
    }

    fn exchange(&self, body: &[u8], kept: &mut Option<Connection>) -> io::Result<(Head, Vec<u8>)> {
        let end = Instant::now() + self.timeout;
        let mut connection = match kept.take().and_then(Connection::reusable) {
            Some(connection) => connection,
            None => Connection::open_within(&self.server, self.timeout)?,
        };
        connection.set_end(end);
        let headers = [
            ("Content-Type", "application/json"),
            ("Accept-Encoding", "identity"),
        ];
        let target = self.server.target();
        let head = connection.request(&self.server, "POST", target, &headers, Some(body))?;
        let answer = connection.whole_body(ANSWER_BYTES_MAX)?;
        *kept = Some(connection);
        Ok((head, answer))
    }

    fn read(&self, head: &Head, answer: &[u8]) -> TimedAnswer {
        let read = match head.status {
            401 | 403 => return (Err(Reason::CredentialsRefused), self.cache_s),
            200 => object(head, answer).and_then(|answer| self.read_answer(answer)),
            status => {
                self.tell(&format!(
                    "its answer of status {status} says neither yes nor no"
                ));
                return (Err(Reason::VerifierUnreachable), 0);
            }
        };
        read.unwrap_or_else(|what| {
            self.tell(&format!("its answer is malformed: {what} (docs/ACCESS.md)"));
            (Err(Reason::VerifierUnreachable), 0)
        })
    }

    /// # Errors
    /// The member that is not of its form.
    fn read_answer(&self, mut answer: Map<String, Value>) -> Result<TimedAnswer, String> {
        // Many serializers write a member that is not set so.
        answer.retain(|_, value| !value.is_null());
        let cache_s = claims::moment(&answer, "cache_s")?;
        let cache_s = cache_s.map_or(self.cache_s, |s| u32::try_from(s).unwrap_or(u32::MAX));
        match answer.get("allow") {
            Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) => return Ok((Err(Reason::CredentialsRefused), cache_s)),
            None => {
                self.tell(
                    "its answer has no `allow`, which refuses the client; write true or false",
                );
                return Ok((Err(Reason::CredentialsRefused), cache_s));
            }
            Some(other) => {
                let kind = claims::kind(other);
                return Err(format!("`allow` is {kind}, not true or false"));
            }
        }
        let end = claims::moment(&answer, "expires")?;
        let known = Known {
            grants: Arc::new(claims::grants(&answer, "user")?),
            until_unix_s: end.map_or(u32::MAX, |end| u32::try_from(end).unwrap_or(u32::MAX)),
        };
        Ok((Ok(known), cache_s))
    }
}

/// The members of an answer.
///
/// # Errors
/// Why it has none. Nothing of the answer itself is told: it may be about a secret.
fn object(head: &Head, answer: &[u8]) -> Result<Map<String, Value>, String> {
    let text = answer.strip_prefix(BYTE_ORDER_MARK).unwrap_or(answer);
    match serde_json::from_slice(text) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(other) => Err(format!("it is {}, not an object", claims::kind(&other))),
        Err(error) => Err(match head.header("content-encoding") {
            Some(coding) if coding != "identity" => {
                let coding = coding.escape_debug();
                format!(
                    "it has the content coding `{coding}`, and none is asked for; send it as it is"
                )
            }
            _ => format!("it is no JSON: {error}"),
        }),
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
