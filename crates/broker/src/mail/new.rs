//! A message on its way into a log.

use crate::budget::admission::Client;
use crate::store::shared::Slice;

/// A message on its way into the log.
pub struct New<'a> {
    /// The home's topic row.
    pub topic: u32,
    /// Its number in its partition.
    pub offset: u64,
    /// The topic's previous offset.
    pub previous: u64,
    /// The client that it is counted for while it is kept.
    pub owner: Client,
    /// Unix seconds.
    pub time_s: u32,
    /// Seconds that it lives, if it brought a time to live.
    pub ttl_s: Option<u32>,
    /// Key, or empty.
    pub key: &'a [u8],
    /// Content type, or empty.
    pub content_type: &'a [u8],
    /// Event name, or empty.
    pub event: &'a [u8],
    /// The publisher's number and MQTT properties (see [`Publish::attributes`](crate::home::Publish)), or empty.
    pub attributes: &'a [u8],
    /// MQTT's quality of service.
    pub qos: u8,
    /// Published to be retained.
    pub retain: bool,
    /// Whether the frame is a binary one.
    pub binary: bool,
    /// Whether its topic keeps only the newest message of each key.
    pub latest: bool,
    /// The WebSocket frame.
    pub frame: &'a [u8],
    /// The same frame, of a large message that is in memory already, in the layout of `Log::lay_out`.
    pub whole: Option<Slice>,
}
