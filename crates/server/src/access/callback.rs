//! The callback: an HTTP or HTTPS endpoint of the operator that verifies credentials.
//!
//! The request is `POST` with `{"token": ...}` or `{"user": ..., "password": ...}`. The answer 200 with
//! `{"allow": true, "user": ..., "publish": [...], ..., "expires": ..., "cache_s": ...}` accepts the client; 200 without
//! `"allow": true`, 401 and 403 refuse it. Any other answer, a member of a wrong type, and a timeout refuse the client too, but this
//! refusal is not cached: an endpoint that fails accepts nobody. A member that is `null` counts as absent; unknown members are ignored.

use std::sync::Arc;
use std::time::Duration;

use crore_broker::Reason;
use crore_broker::access::{Question, VerifiedClient};
use serde_json::{Map, Value, json};

use super::claims;
use crate::http_client::endpoint::{Endpoint, EndpointSettings, Request};
use crate::http_client::http::{Connection, Head};
use crate::settings::access::Callback as Entry;

/// The maximum size of an answer, enough for a few hundred filters.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The byte order mark of UTF-8, which some serializers write before their text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The endpoint and its settings.
pub struct Callback {
    endpoint: Endpoint,
    /// Seconds for which an answer without `cache_s` is cached.
    pub cache_s: u32,
    /// The maximum number of requests at the same time.
    pub concurrency: usize,
}

/// The callback's answer, and how many seconds it may be cached.
pub type TimedAnswer = (Result<VerifiedClient, Reason>, u32);

impl Callback {
    /// Reads the settings of the callback, and the file of root certificates that they name.
    ///
    /// # Errors
    /// The key in the settings, and what is wrong with its value.
    pub fn new(settings: &Entry) -> Result<Callback, (String, String)> {
        let endpoint_settings = EndpointSettings {
            name: "the access callback",
            url: &settings.url,
            url_key: "access.callback.url",
            ca: settings.ca.as_deref(),
            ca_key: "access.callback.ca",
            public_only: false,
        };
        let timeout = Duration::from_secs(u64::from(settings.timeout_s));
        let endpoint = Endpoint::new(&endpoint_settings, timeout);
        Ok(Callback {
            endpoint: endpoint.map_err(|(key, message)| (key.to_string(), message))?,
            cache_s: settings.cache_s,
            concurrency: settings.concurrency,
        })
    }

    /// Asks the endpoint. Uses `reusable_connection` if that is still open. Blocks.
    pub fn ask(
        &self,
        question: &Question,
        reusable_connection: &mut Option<Connection>,
    ) -> TimedAnswer {
        let body = match question_body(question) {
            Some(body) => body.to_string(),
            // JSON can contain only UTF-8.
            None => return (Err(Reason::CredentialsMalformed), self.cache_s),
        };
        let request = Request {
            method: "POST",
            headers: &[
                ("Content-Type", "application/json"),
                ("Accept-Encoding", "identity"),
            ],
            body: Some(body.as_bytes()),
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        match self.endpoint.exchange(&request, reusable_connection) {
            Ok((head, answer)) => self.read_response(&head, &answer),
            Err(reason) => {
                self.endpoint.log_failure(&reason);
                (Err(Reason::VerifierUnreachable), 0)
            }
        }
    }

    fn read_response(&self, head: &Head, answer: &[u8]) -> TimedAnswer {
        let read = match head.status {
            401 | 403 => return (Err(Reason::CredentialsRefused), self.cache_s),
            200 => parse_members(head, answer).and_then(|answer| self.read_answer(answer)),
            status => {
                self.endpoint.log_failure(&format!(
                    "its answer of status {status} says neither yes nor no"
                ));
                return (Err(Reason::VerifierUnreachable), 0);
            }
        };
        read.unwrap_or_else(|message| {
            self.endpoint.log_failure(&format!(
                "its answer is malformed: {message} (docs/ACCESS.md)"
            ));
            (Err(Reason::VerifierUnreachable), 0)
        })
    }

    /// # Errors
    /// The first member of a wrong type.
    fn read_answer(&self, mut answer: Map<String, Value>) -> Result<TimedAnswer, String> {
        // Many serializers write `null` for a member that is not set.
        answer.retain(|_, value| !value.is_null());
        let cache_s = claims::unix_time(&answer, "cache_s")?;
        let cache_s = cache_s.map_or(self.cache_s, |s| u32::try_from(s).unwrap_or(u32::MAX));
        match answer.get("allow") {
            Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) => return Ok((Err(Reason::CredentialsRefused), cache_s)),
            None => {
                self.endpoint.log_failure(
                    "its answer has no `allow`, which refuses the client; write true or false",
                );
                return Ok((Err(Reason::CredentialsRefused), cache_s));
            }
            Some(other) => {
                let kind = claims::json_type(other);
                return Err(format!("`allow` is {kind}, not true or false"));
            }
        }
        let expires = claims::unix_time(&answer, "expires")?;
        let known = VerifiedClient {
            grants: Arc::new(claims::grants(&answer, "user")?),
            until_unix_s: expires.map_or(u32::MAX, |end| u32::try_from(end).unwrap_or(u32::MAX)),
        };
        Ok((Ok(known), cache_s))
    }
}

/// The members of an answer.
///
/// # Errors
/// Why the answer has no members. The message quotes nothing of the answer, since the answer may be secret.
fn parse_members(head: &Head, answer: &[u8]) -> Result<Map<String, Value>, String> {
    let text = answer.strip_prefix(BYTE_ORDER_MARK).unwrap_or(answer);
    match serde_json::from_slice(text) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(other) => Err(format!(
            "it is {}, not an object",
            claims::json_type(&other)
        )),
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

/// The question as JSON; `None` if the credential is not UTF-8.
fn question_body(question: &Question) -> Option<Value> {
    let secret = std::str::from_utf8(&question.secret).ok()?;
    Some(match &question.user {
        None => json!({ "token": secret }),
        Some(user) => json!({ "user": std::str::from_utf8(user).ok()?, "password": secret }),
    })
}
