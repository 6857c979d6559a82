//! `[publish]` and `[interest]`: retries of publishes, and clients that are told which topics have subscribers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::bounds::{MAX_ROWS, MAX_WAIT_S};

/// An hour: a topic without subscribers for that long really has none.
const MAX_DEBOUNCE_S: u32 = 3_600;

/// The most followers: each change of a topic is compared with the filter of every follower.
const MAX_FOLLOWERS: u32 = 65_536;

/// Retries of publishes that have an `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Publishing {
    /// How long the first answer to a key is kept.
    #[default(600)]
    #[schemars(range(min = 1, max = MAX_WAIT_S))]
    pub idempotency_window_s: u32,
    /// Answers kept by all shards together, some 56 B each. At the limit, the oldest are forgotten before their time. With a log on disk
    /// (`state.durable`), publishes with a key are refused instead (503).
    ///
    /// Without a log on disk, the user or address that has most answers loses its oldest ones first. With a log on disk no answer is
    /// forgotten before its time. A user or address that holds four fifths of what the others leave is refused too, until some of its keys
    /// have expired.
    #[schemars(range(min = 1, max = MAX_ROWS), extend("x-zero" = "as many as a quarter of `limits.memory_bytes` holds"))]
    #[schemars(extend("x-share" = "of a user or address: without a log on disk the oldest of the one with most go; with one, four fifths of what the others leave"))]
    pub idempotency_keys: usize,
}

impl Publishing {
    /// The most answers that each home keeps if there is no engine: its share of the limit. Names are hashed, so the homes fill evenly.
    pub fn keys_per_home(&self, homes: usize) -> u32 {
        u32::try_from(self.idempotency_keys.div_ceil(homes)).unwrap_or(u32::MAX)
    }
}

/// Interest events: which topics have subscribers.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Interest {
    /// How long a topic must be without subscribers before followers get its `last` (at most a second later). If a subscriber
    /// comes earlier, there is no event. 0: at once.
    #[default(5)]
    #[schemars(range(max = MAX_DEBOUNCE_S))]
    pub debounce_s: u32,
    /// Connections of all shards together that follow. At the limit, a new follower gets 503. [Shared](#shares).
    #[default(64)]
    #[schemars(range(min = 1, max = MAX_FOLLOWERS))]
    #[schemars(extend("x-share" = "of an address: as many as are free"))]
    pub followers_max: u32,
}

/// Presence: who subscribes to topics whose rules have `presence`.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Presence {
    /// How long a member stays whose connection broke. If its user returns within it, nobody is told: a page may be reloaded. A member that
    /// unsubscribes or closes its connection properly leaves at once. 0: all leave at once.
    #[default(15)]
    #[schemars(range(max = MAX_DEBOUNCE_S))]
    pub leave_s: u32,
    /// Connections of all shards together that watch who is present. At the limit, a new one gets 503. [Shared](#shares).
    #[default(10_000)]
    #[schemars(range(min = 1, max = MAX_ROWS))]
    #[schemars(extend("x-share" = "of an address: as many as are free"))]
    pub watchers_max: u32,
}
