//! A message: what its publisher says of it, as a publisher gives it to a home, and on its way into a log.

use crate::budget::admission::{Client, Party};
use crate::store::shared::Slice;

/// The headers of a message: its fields besides its topic and its bytes. `F` holds a field's bytes: a slice, or a place among others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers<F> {
    /// Its content type, checked, at most 255 bytes, or empty.
    pub content_type: F,
    /// Its event name, checked, at most 255 bytes, or empty.
    pub event: F,
    /// Its key, checked, at most 255 bytes, or empty.
    pub key: F,
    /// Given by MQTT only: the publisher's number ([`ORIGIN_BYTES`](crate::mail::ORIGIN_BYTES), little
    /// endian), then the properties that no field here holds, encoded as in a packet; at most 65,535 bytes. Empty for
    /// other protocols.
    pub attributes: F,
    /// Seconds that it lives, if it brings a time to live.
    pub ttl_s: Option<u32>,
    /// MQTT's quality of service.
    pub qos: u8,
    /// Whether it replaces the topic's retained message; an empty one only removes it.
    pub retain: bool,
    /// Whether WebSocket clients get a binary frame.
    pub binary: bool,
}

impl<F> Headers<F> {
    /// The same with each field's bytes held in another way.
    pub fn map<'a, G>(&'a self, mut held: impl FnMut(&'a F) -> G) -> Headers<G> {
        Headers {
            content_type: held(&self.content_type),
            event: held(&self.event),
            key: held(&self.key),
            attributes: held(&self.attributes),
            ttl_s: self.ttl_s,
            qos: self.qos,
            retain: self.retain,
            binary: self.binary,
        }
    }

    /// The fields of bytes: content type, event, key, attributes.
    pub fn fields(&self) -> [&F; 4] {
        [&self.content_type, &self.event, &self.key, &self.attributes]
    }
}

/// Whether WebSocket clients get a message of this content type in a binary frame.
pub(crate) fn is_binary(content_type: &[u8], data: &[u8]) -> bool {
    content_type.eq_ignore_ascii_case(b"application/octet-stream") || !is_utf8(data)
}

/// Whether a message is UTF-8. Most are ASCII, which takes a quarter of the time to see.
pub(crate) fn is_utf8(data: &[u8]) -> bool {
    data.is_ascii() || core::str::from_utf8(data).is_ok()
}

/// A message as a publisher gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// The keyed hash of the name.
    pub hash: u32,
    /// The topic, checked.
    pub name: &'a [u8],
    /// The message.
    pub data: &'a [u8],
    /// The headers that its publisher gave it.
    pub headers: Headers<&'a [u8]>,
    /// Its idempotency key, by which a retry is recognised, if it has one.
    pub retry: Option<Retry<&'a [u8]>>,
    /// The client that the topic, if it is made, and the message, while it is kept, are counted for.
    pub client: Client,
}

/// The key and the publisher that identify a retry. `F` holds the bytes of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry<F> {
    /// The idempotency key, checked, 1 to 255 bytes.
    pub key: F,
    /// The publisher that the key belongs to.
    pub publisher: Party,
}

/// A message on its way into the log.
pub struct NewMessage<'a> {
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
    /// Whether its topic keeps only the newest message of each key.
    pub latest: bool,
    /// The headers that its publisher gave it.
    pub headers: Headers<&'a [u8]>,
    /// The WebSocket frame.
    pub frame: &'a [u8],
    /// The same frame, of a large message that is in memory already, in the layout of `log::encode_shared`.
    pub whole: Option<Slice>,
}
