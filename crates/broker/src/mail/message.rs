//! A message: its headers, the publish that brings the message to a home (the part of a shard that keeps topics), and the form in
//! which a log appends it.

use crate::budget::admission::{Client, Party};
use crate::store::shared::Slice;

/// The headers of a message. `F` holds the bytes of a field: a slice, a span, or an owned buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers<F> {
    /// The content type, checked, at most 255 bytes, or empty.
    pub content_type: F,
    /// The event name, checked, at most 255 bytes, or empty.
    pub event: F,
    /// The key, checked, at most 255 bytes, or empty.
    pub key: F,
    /// The publisher's number ([`ORIGIN_BYTES`](crate::mail::ORIGIN_BYTES), little endian; 0 if no MQTT client published the message), then
    /// the MQTT properties without a field here, encoded as in a packet; at most 65,535 bytes. Empty if there is neither. HTTP publishers
    /// can set user properties (`Crore-Property`), and `rule.publisher` adds the user's name for every protocol.
    pub attributes: F,
    /// The message's time to live in seconds, if the message has one.
    pub ttl_s: Option<u32>,
    /// The QoS of MQTT.
    pub qos: u8,
    /// Whether the message replaces the topic's retained message. An empty message only removes the retained one.
    pub retain: bool,
    /// Whether WebSocket clients get a binary frame.
    pub binary: bool,
}

impl<F> Headers<F> {
    /// Converts the bytes of each field.
    pub fn map<'a, G>(&'a self, mut convert: impl FnMut(&'a F) -> G) -> Headers<G> {
        Headers {
            content_type: convert(&self.content_type),
            event: convert(&self.event),
            key: convert(&self.key),
            attributes: convert(&self.attributes),
            ttl_s: self.ttl_s,
            qos: self.qos,
            retain: self.retain,
            binary: self.binary,
        }
    }

    /// Content type, event name, key and attributes.
    pub fn fields(&self) -> [&F; 4] {
        [&self.content_type, &self.event, &self.key, &self.attributes]
    }
}

/// Whether WebSocket clients get a message of this content type in a binary frame.
pub(crate) fn is_binary(content_type: &[u8], data: &[u8]) -> bool {
    content_type.eq_ignore_ascii_case(b"application/octet-stream") || !is_utf8(data)
}

/// Whether a message is UTF-8. Most messages are ASCII, and a check for ASCII takes only a quarter of the time.
pub(crate) fn is_utf8(data: &[u8]) -> bool {
    data.is_ascii() || core::str::from_utf8(data).is_ok()
}

/// A publish: a message on its way to the home of its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// The keyed hash of the name.
    pub hash: u32,
    /// The topic, checked.
    pub name: &'a [u8],
    /// The message.
    pub data: &'a [u8],
    /// The headers that the publisher gave the message.
    pub headers: Headers<&'a [u8]>,
    /// Identifies copies of the message: the publisher's idempotency key, or the packet id in a recorded MQTT session.
    pub dedup: Option<DedupKey<&'a [u8]>>,
    /// The client that is charged for the topic, if it is created, and for the kept message.
    pub client: Client,
}

/// Identifies a message that its publisher may send twice: the key and the publisher. `F` holds the bytes of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupKey<F> {
    /// The idempotency key, checked, 1 to 255 bytes. For a QoS 2 message of a recorded MQTT session: `SessionKeyBytes`.
    pub key: F,
    /// The publisher of the message. Other publishers may use the same key.
    pub publisher: Party,
}

impl DedupKey<&[u8]> {
    /// The key of a QoS 2 message of a recorded MQTT session, and the claim of the connection that sent this copy (see [`SessionKeyBytes`]).
    pub(crate) fn session_key(&self) -> Option<(SessionKey, u64)> {
        if !self.publisher.is_qos2_publisher() {
            return None;
        }
        let (packet_id, claim) = self.key.split_first_chunk()?;
        let claim = match claim.is_empty() {
            true => 0,
            false => u64::from_be_bytes(claim.try_into().ok()?),
        };
        let key = SessionKey {
            session: self.publisher,
            packet_id: u16::from_be_bytes(*packet_id),
        };
        Some((key, claim))
    }
}

/// Identifies a QoS 2 message that an MQTT client has published and not released (MQTT 5.0 section 4.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey {
    /// The session of the publisher.
    pub session: Party,
    /// The packet id of the message.
    pub packet_id: u16,
}

impl SessionKey {
    /// The key of this packet id in the session with this token.
    pub(crate) fn new(token: u64, packet_id: u16) -> SessionKey {
        SessionKey {
            session: Party::qos2_publisher(token),
            packet_id,
        }
    }
}

/// The bytes of a [`SessionKey`] in a [`DedupKey`]: the packet id, and in a cluster the claim of the connection that sends this copy of the
/// message. The claim is the offset of the claim's record.
pub(crate) struct SessionKeyBytes {
    bytes: [u8; 10],
    has_claim: bool,
}

impl SessionKeyBytes {
    /// The bytes for this packet id, sent by a connection with this claim. The claim is 0 on one machine, where it is not needed.
    pub(crate) fn new(packet_id: u16, claim: u64) -> SessionKeyBytes {
        let mut bytes = [0; 10];
        bytes[..2].copy_from_slice(&packet_id.to_be_bytes());
        bytes[2..].copy_from_slice(&claim.to_be_bytes());
        SessionKeyBytes {
            bytes,
            has_claim: claim != 0,
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self.has_claim {
            true => &self.bytes,
            false => &self.bytes[..2],
        }
    }
}

/// The release of a client's QoS 2 message, after which the client may use the packet id for another message. The packet id 0 releases all messages of the
/// session, because the session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The session and the packet id.
    pub key: SessionKey,
    /// In a cluster: the offset of the record by which the connection that got the PUBREL claimed the session. 0 on one machine, and for all messages of a
    /// session.
    pub claim: u64,
}

/// A message in the form that logs append and [`Frames`](crate::mail::Frames) copy.
pub struct NewMessage<'a> {
    /// The home's topic row.
    pub topic: u32,
    /// The offset in the partition.
    pub offset: u64,
    /// The topic's last offset before this message.
    pub previous: u64,
    /// The client that is charged for the kept message.
    pub owner: Client,
    /// When the message was published, in Unix seconds.
    pub time_s: u32,
    /// Whether the topic keeps only the newest message of each key.
    pub latest: bool,
    /// The headers that the publisher gave the message.
    pub headers: Headers<&'a [u8]>,
    /// The WebSocket frame.
    pub frame: &'a [u8],
    /// The same frame as shared memory, if the message is large (`log::encode_shared`).
    pub whole: Option<Slice>,
}
