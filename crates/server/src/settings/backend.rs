//! `[[backend]]`: an endpoint of the operator that answers calls of clients.

use std::path::PathBuf;

use crore_broker::backend::{CallKind, CallKinds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::problems::Problems;

/// A minute. A client of a slower backend should be told to wait by other means.
const MAX_TIMEOUT_S: u32 = 60;
/// Each request has a thread.
const MAX_CONCURRENCY: usize = 256;
/// This number of calls of 1 MiB would need more memory than small machines have; `limits.memory_bytes` limits the bytes of all calls.
const MAX_CALLS: usize = 100_000;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackendEvent {
    /// A client connects without credentials.
    Connect,
    /// A connection that the backend has granted ends soon.
    Refresh,
    /// A client subscribes without a token.
    Subscribe,
    /// A subscription that the backend has granted ends soon.
    SubRefresh,
    /// A client publishes.
    Publish,
    /// A client calls a method (`rpc`).
    Rpc,
}

impl BackendEvent {
    /// The kind of the call.
    pub fn kind(self) -> CallKind {
        match self {
            BackendEvent::Connect => CallKind::Connect,
            BackendEvent::Refresh => CallKind::Refresh,
            BackendEvent::Subscribe => CallKind::Subscribe,
            BackendEvent::SubRefresh => CallKind::SubRefresh,
            BackendEvent::Publish => CallKind::Publish,
            BackendEvent::Rpc => CallKind::Rpc,
        }
    }
}

/// The calls that these backends answer.
pub fn calls_of(backends: &[Backend]) -> CallKinds {
    let events = backends.iter().flat_map(|backend| &backend.events);
    events.map(|event| event.kind()).collect()
}

/// A backend.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Backend {
    /// The URL of the endpoint. It must contain neither a user nor a query. The default port is 443, or 80 for `http`. The server follows no redirects.
    #[schemars(extend("format" = "`https://HOST:PORT/PATH`, or `http`"))]
    pub url: String,
    /// The [calls](CENTRIFUGO.md#calls-to-your-backend) that it answers. Each kind has one backend.
    #[schemars(extend("format" = "a list of `\"connect\"`, `\"refresh\"`, `\"subscribe\"`, `\"sub_refresh\"`, `\"publish\"` and `\"rpc\"`", "examples" = [["connect", "subscribe", "rpc"]]))]
    pub events: Vec<BackendEvent>,
    /// The root certificates to trust at the URL, in PEM. `""`: those of the host.
    #[schemars(extend("format" = "a file"))]
    pub ca: PathBuf,
    /// How long an answer may take, and how long a call may wait before it is sent. A client whose command takes longer gets error 100 (temporary).
    #[default(5)]
    #[schemars(range(min = 1, max = MAX_TIMEOUT_S))]
    pub timeout_s: u32,
    /// The maximum number of requests at the same time. Further calls wait; users and addresses take turns, and each has at most half of the requests.
    #[default(16)]
    #[schemars(range(min = 1, max = MAX_CONCURRENCY))]
    #[schemars(extend("x-share" = "of an address or user: half; they take turns"))]
    pub concurrency: usize,
    /// The maximum number of calls that wait or are in progress. At the limit, a client gets error 111, and may retry.
    #[default(1_000)]
    #[schemars(range(min = 1, max = MAX_CALLS))]
    #[schemars(extend("x-share" = "of an address or user: half of what is free"))]
    pub calls_max: usize,
}

/// Checks the values. The files are checked when they are read.
pub fn check(backends: &[Backend], problems: &mut Problems) {
    let mut taken: Vec<BackendEvent> = Vec::new();
    for (index, backend) in backends.iter().enumerate() {
        let key = format!("backend[{}].events", index + 1);
        if backend.events.is_empty() {
            let message = "is empty; write the calls that it answers, such as [\"rpc\"]";
            problems.fail(&key, message);
        }
        for event in &backend.events {
            if taken.contains(event) {
                let message =
                    "has a kind of call that another backend answers; write each kind once";
                problems.fail(&key, message);
            }
            taken.push(*event);
        }
    }
}
