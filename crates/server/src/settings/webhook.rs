//! `[[webhook]]`: endpoints of the operator to which the server sends events.

use std::path::PathBuf;

use crore_settings::MAX_TOPIC_BYTES;
use crore_wire::topic::check_filter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::problems::Problems;

/// More endpoints would need too many threads.
const MAX_WEBHOOKS: usize = 16;
/// A minute. Events that come later are of no use.
const MAX_BATCH_MS: u32 = 60_000;
/// A minute. An endpoint that needs longer should queue the events itself.
const MAX_TIMEOUT_S: u32 = 60;
/// A day. After a longer failure, the endpoint should read the whole state instead.
const MAX_RETRY_S: u32 = 86_400;
const MAX_CONCURRENCY: usize = 16;

/// An event that a webhook can receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WebhookEvent {
    /// A topic has got its first subscriber.
    ChannelOccupied,
    /// A topic has lost its last subscriber.
    ChannelVacated,
    /// A member has joined a topic.
    MemberAdded,
    /// A member has left a topic.
    MemberRemoved,
    /// A client has connected.
    ClientConnected,
    /// A client has disconnected.
    ClientDisconnected,
}

/// The format of the requests to a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WebhookFormat {
    /// Signed as Standard Webhooks says.
    #[default]
    Standard,
    /// As Pusher's webhooks.
    Pusher,
}

/// A webhook.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Webhook {
    /// The URL of the endpoint. It must contain neither a user nor a query. The default port is 443, or 80 for `http`. The server follows no redirects.
    #[schemars(extend("format" = "`https://HOST:PORT/PATH`, or `http`"))]
    pub url: String,
    /// Events of topics that match one of these filters. Events of clients have no topic.
    #[default(vec!["#".to_string()])]
    #[serde(rename = "match")]
    #[schemars(extend("format" = "filters"))]
    pub filters: Vec<String>,
    /// The [events](PROTOCOLS.md#webhooks): some of `"channel_occupied"`, `"channel_vacated"`, `"member_added"`, `"member_removed"`, `"client_connected"`,
    /// `"client_disconnected"`.
    #[schemars(extend("examples" = [["channel_occupied"]]))]
    pub events: Vec<WebhookEvent>,
    /// The file with the secret that signs the requests: `whsec_` and base64, or any text.
    #[schemars(extend("format" = "a file"))]
    pub secret_file: PathBuf,
    /// `"standard"`: signed as [Standard Webhooks](https://www.standardwebhooks.com) says. `"pusher"`: body, signature and key as Pusher sends them.
    pub format: WebhookFormat,
    /// With `format = "pusher"`: the value of `X-Pusher-Key`.
    #[schemars(extend("format" = "a name"))]
    pub key: String,
    /// The root certificates to trust at the URL, in PEM. `""`: those of the host.
    #[schemars(extend("format" = "a file"))]
    pub ca: PathBuf,
    /// Whether the endpoint may be on this machine or in a private network.
    pub private: bool,
    /// How long events are collected before they are sent together.
    #[default(200)]
    #[schemars(range(min = 10, max = MAX_BATCH_MS))]
    pub batch_ms: u32,
    /// How long an answer may take.
    #[default(10)]
    #[schemars(range(min = 1, max = MAX_TIMEOUT_S))]
    pub timeout_s: u32,
    /// How long a request is repeated that gets no good answer. After that its events are dropped, and a `resync` event follows.
    #[default(3_600)]
    #[schemars(range(min = 1, max = MAX_RETRY_S))]
    pub retry_s: u32,
    /// The maximum number of requests at the same time. Each shard's events (in a cluster: each partition's) are sent one request after the other, so that
    /// they keep their order.
    #[default(1)]
    #[schemars(range(min = 1, max = MAX_CONCURRENCY))]
    #[schemars(extend("x-share" = "none: the events of a shard or partition wait for each other only"))]
    pub concurrency: usize,
}

/// Checks the values. The files are checked when they are read.
pub fn check(webhooks: &[Webhook], problems: &mut Problems) {
    if webhooks.len() > MAX_WEBHOOKS {
        let message = format!("{} webhooks; write at most {MAX_WEBHOOKS}", webhooks.len());
        problems.fail("webhook", message);
    }
    for (index, webhook) in webhooks.iter().enumerate() {
        let key = |name: &str| format!("webhook[{}].{name}", index + 1);
        if webhook.events.is_empty() {
            let message = "is empty; write the events to send, such as [\"channel_occupied\"]";
            problems.fail(key("events"), message);
        }
        if webhook.filters.is_empty() {
            let message = "is empty; write a filter, such as \"#\" for all topics";
            problems.fail(key("match"), message);
        }
        for filter in &webhook.filters {
            if let Err(error) = check_filter(filter.as_bytes(), MAX_TOPIC_BYTES) {
                problems.fail(key("match"), format!("`{filter}`: {error}"));
            }
        }
        let is_printable = webhook.key.bytes().all(|byte| byte.is_ascii_graphic());
        let fault = match (webhook.format, webhook.key.is_empty()) {
            (WebhookFormat::Pusher, true) => {
                Some("is missing; write the name of the secret, which is sent as X-Pusher-Key")
            }
            (WebhookFormat::Standard, false) => Some(
                "has no effect, since only requests with format = \"pusher\" have it; remove it",
            ),
            _ if !is_printable => {
                Some("has characters that a header cannot have; write letters, digits and signs")
            }
            _ => None,
        };
        if let Some(message) = fault {
            problems.fail(key("key"), message);
        }
    }
}
