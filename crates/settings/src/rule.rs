//! `[[rule]]`: the behaviour of the topics that a filter matches.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::bounds::{MAX_KEYS, MAX_MEMBERS, MAX_OUTBOX_BYTES, MAX_WAIT_S};
use crate::rights::{Right, Rights};

/// An hour: a browser that waits longer to reconnect looks broken.
const MAX_RETRY_MS: u32 = 3_600_000;

/// Which messages of a topic are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RetentionMode {
    /// The newest messages, whatever their keys.
    #[default]
    Log,
    /// The newest message of each key; messages without a key share the empty key.
    Latest,
}

/// Where a subscriber without a position begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StartText", into = "StartText")]
pub enum StartPosition {
    /// Long-poll begins with the oldest message of the log, SSE and WebSocket with the next one. If only the newest message of each key is
    /// kept, all of them begin with the oldest.
    #[default]
    ByTransport,
    /// All that the log holds.
    Oldest,
    /// Only messages published from now on.
    Live,
    /// The newest N of the log.
    Newest(u32),
}

/// The text form of [`StartPosition`] in a file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StartText {
    Number(i64),
    Name(String),
}

impl TryFrom<StartText> for StartPosition {
    type Error = String;

    fn try_from(text: StartText) -> Result<StartPosition, String> {
        let (name, number) = match &text {
            StartText::Name(name) => (name.clone(), name.parse().ok()),
            StartText::Number(number) => (number.to_string(), Some(*number)),
        };
        let newest = number.and_then(i64::checked_neg).map(u32::try_from);
        match (name.as_str(), newest) {
            ("by-transport", _) => Ok(StartPosition::ByTransport),
            ("oldest", _) => Ok(StartPosition::Oldest),
            ("live", _) => Ok(StartPosition::Live),
            (_, Some(Ok(newest))) if newest > 0 => Ok(StartPosition::Newest(newest)),
            _ => Err(format!(
                "`{name}` is not offered; write \"by-transport\", \"oldest\", \"live\", or -N for the newest N (such as -5)"
            )),
        }
    }
}

impl From<StartPosition> for StartText {
    fn from(position: StartPosition) -> StartText {
        match position {
            StartPosition::ByTransport => StartText::Name("by-transport".into()),
            StartPosition::Oldest => StartText::Name("oldest".into()),
            StartPosition::Live => StartText::Name("live".into()),
            StartPosition::Newest(newest) => StartText::Number(-i64::from(newest)),
        }
    }
}

/// How several long-poll subscribers of one topic share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Concurrency {
    /// All of them get every message.
    #[default]
    Broadcast,
    /// The first one stays, later ones get 409.
    First,
    /// The last one stays, the earlier one gets 409.
    Last,
}

/// What happens to a subscriber that does not read, once its outbox is full and the log no longer has the messages that it lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SlowConsumerPolicy {
    /// It is disconnected, and may resume from its position.
    #[default]
    Disconnect,
    /// It continues with the messages that are still kept, and gets a gap notice. A subscriber that cannot be told in band, such as a
    /// WebSocket with plain frames, is disconnected all the same.
    Skip,
}

/// Per-topic behaviour.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Topics in MQTT's form: `+` is any one level, `#` at the end all that follow (`scores/#`, `chat/+/room`).
    #[default("#")]
    #[serde(rename = "match", default)]
    #[schemars(extend("format" = "a topic filter", "examples" = ["chat/#"]))]
    pub filter: String,
    /// `"log"` keeps the newest messages; `"latest"` only the newest of each key ([latest values](PROTOCOLS.md#latest-values)).
    pub keep: RetentionMode,
    /// With [durable messages](DURABILITY.md): whether messages of these topics are on disk before they are answered. `false`: they are
    /// in memory; a crash loses them, and subscribers get a gap.
    ///
    /// A planned restart keeps them either way. To have only some topics on disk, write the rules of these topics first, and then one
    /// for `#` with `durable = false`.
    #[default(true)]
    #[schemars(extend("x-changes" = "restart"))]
    pub durable: bool,
    /// Messages kept per topic; 0 turns the log off. By default only bytes and age limit the log. Not used with `keep = "latest"`.
    #[default(1_000_000)]
    #[schemars(extend("x-share" = "none: it bounds one topic; `limits.log_bytes` has the shares"))]
    pub log_messages: u32,
    /// Keys kept per topic with `keep = "latest"`. Above that, the key whose last message is oldest is removed.
    #[default(1000)]
    #[schemars(range(min = 1, max = MAX_KEYS))]
    #[schemars(extend("x-share" = "none: it bounds one topic; `limits.log_bytes` has the shares"))]
    pub keys_max: u32,
    /// Bytes kept per topic. One message is kept whatever its size. Not used with `keep = "latest"`.
    ///
    /// Each message counts with its data, its fields and 48 bytes. 256 KiB are some 2,000 tokens of a streamed answer, or 440 messages
    /// of 512 B. A topic without messages needs none of it, and all topics together keep at most `limits.log_bytes`.
    #[default(256 << 10)]
    #[schemars(range(max = MAX_OUTBOX_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one topic; `limits.log_bytes` has the shares"))]
    pub log_bytes: usize,
    /// How long a message is kept. A subscriber that has not seen messages which were removed for their age gets a gap when it resumes. Not
    /// used with `keep = "latest"`: there `ttl_s` limits how long a value is kept.
    #[default(3600)]
    pub log_age_s: u32,
    /// How long a message lives. Then it is not sent any more, and its absence is no gap ([time to live](PROTOCOLS.md#time-to-live)).
    /// A message may have a shorter time. 0: without end.
    pub ttl_s: u32,
    /// How long a topic without subscribers and messages remembers its position.
    #[default(3600)]
    pub position_age_s: u32,
    /// Where a subscriber without a position begins: `"oldest"`, `"live"`, `-N` for the newest N, or `"by-transport"` (long-poll at
    /// the oldest, SSE and WebSocket live; all at the oldest with `keep = "latest"`).
    #[schemars(with = "String", extend("type" = ["string", "integer"], "format" = "`oldest`, `live`, `-N`, `by-transport`"))]
    pub first: StartPosition,
    /// Several long-poll subscribers of one topic: `"broadcast"` serves all; `"first"` keeps the first and `"last"` the last, the
    /// others get 409.
    pub concurrency: Concurrency,
    /// Subscribing does not create the topic: 403 until its first message.
    pub publisher_creates: bool,
    /// Messages have the name of the user who published them, set by the server: the `sub` of a token, or the user of a password
    /// ([where subscribers find it](PROTOCOLS.md#the-publisher-of-a-message)).
    pub publisher: bool,
    /// Subscribers of these topics are [present](PROTOCOLS.md#presence): who is there can be read and watched.
    pub presence: bool,
    /// Present connections that are listed per topic. Those above it are only counted, and the answer says so.
    #[default(1000)]
    #[schemars(range(min = 1, max = MAX_MEMBERS))]
    #[schemars(extend("x-share" = "none: it bounds one topic; `limits.memory_bytes` has the shares"))]
    pub presence_max: u32,
    /// How long a long-poll waits; 0 means without end.
    #[default(30)]
    #[schemars(range(max = MAX_WAIT_S))]
    pub poll_timeout_s: u32,
    /// Status of a long-poll that got no message in time. With 204, a request with `If-None-Match` or `If-Modified-Since` gets 304.
    #[default(204)]
    #[schemars(extend("enum" = [204, 408]))]
    pub poll_timeout_status: u16,
    /// SSE's `retry:`, how long browsers wait before they reconnect.
    #[default(2000)]
    #[schemars(range(min = 1, max = MAX_RETRY_MS))]
    pub sse_retry_ms: u32,
    /// Bytes that may wait for a connection before its client counts as a [slow subscriber](PROTOCOL-DETAILS.md#slow-subscribers) of
    /// these topics. 0: `limits.outbox_bytes`.
    #[schemars(extend("x-share" = "none: it bounds one connection; `limits.memory_bytes` has the shares"))]
    pub outbox_bytes: usize,
    /// Messages that may wait for a connection before its client counts as slow. 0: any number.
    #[schemars(extend("x-share" = "none: it bounds one connection; `limits.memory_bytes` has the shares"))]
    pub outbox_messages: u32,
    /// What happens to a [slow subscriber](PROTOCOL-DETAILS.md#slow-subscribers) once the log no longer has the messages that it lacks.
    /// `"disconnect"`: it is disconnected, and may resume. `"skip"`: it gets a gap and continues, if its protocol can tell a gap.
    pub slow: SlowConsumerPolicy,
    /// Rights of every client to these topics without a grant: some of `"publish"`, `"subscribe"`, `"manage"`, `"info"`,
    /// `"interest"`, `"presence"`. Only with a table [`[access]`](#access).
    #[schemars(with = "Vec<Right>")]
    pub open: Rights,
}

impl Rule {
    /// The most messages kept per topic.
    pub fn messages_max(&self) -> u32 {
        match self.keep {
            RetentionMode::Log => self.log_messages,
            RetentionMode::Latest => self.keys_max,
        }
    }

    /// Whether the rule limits the bytes or messages that wait for a connection.
    pub fn bounds_outboxes(&self) -> bool {
        self.outbox_bytes > 0 || self.outbox_messages > 0
    }
}
