//! The options of a request, as bits in [`Consumer::options`](crate::client::row::Consumer::options). A stream keeps the options of its
//! request.

use crate::client::row::{PROTOCOL_OPTIONS, PROTOCOL_OPTIONS_SHIFT};

/// The answer's body is not in chunks: HTTP/1.0, or a stream of HTTP/2.
pub(crate) const UNCHUNKED: u32 = 1;
/// The connection stays open after the answer.
pub(crate) const KEEP_ALIVE: u32 = 1 << 1;
/// A HEAD request.
pub(crate) const HEAD_REQUEST: u32 = 1 << 2;
/// `ws+meta.nchan`.
pub(crate) const META_FRAMES: u32 = 1 << 3;
/// permessage-deflate.
pub(crate) const DEFLATE: u32 = 1 << 4;
/// The client's frames are publishes.
pub(crate) const PUBLISHES: u32 = 1 << 5;
/// Messages are sent as JSON objects.
pub(crate) const ENVELOPE: u32 = 1 << 7;
/// The long-poll has a validator (`If-None-Match` or `If-Modified-Since`).
pub(crate) const CONDITIONAL: u32 = 1 << 8;
/// The client prefers JSON.
pub(crate) const PREFERS_JSON: u32 = 1 << 9;
/// The answer will be an upgrade to WebSocket.
pub(crate) const UPGRADE: u32 = 1 << 11;
/// The answer will be an event stream.
pub(crate) const AS_EVENTS: u32 = 1 << 12;
/// The number of unanswered heartbeats, two bits.
pub(crate) const PINGS: u32 = 3 << 13;
/// One unanswered heartbeat.
pub(crate) const PING: u32 = 1 << 13;
/// Messages after the long-poll's position are lost.
pub(crate) const HAS_GAP: u32 = 1 << 15;
/// The client follows which topics have subscribers.
pub(crate) const FOLLOWS: u32 = 1 << 16;
/// The answer repeats the first answer to an idempotency key.
pub(crate) const REPLAYED: u32 = 1 << 17;
/// The answer is a topic's history.
pub(crate) const HISTORY: u32 = 1 << 18;
/// The request is for an event stream or a WebSocket. Browsers hide a refusal of it from the page.
pub(crate) const STREAMS: u32 = 1 << 19;
/// The first bit of the number of the allowed origin: eight bits, 0 for none, 255 for any.
pub(crate) const ORIGIN_SHIFT: u32 = PROTOCOL_OPTIONS_SHIFT;
/// The mask of that number.
pub(crate) const ORIGIN: u32 = PROTOCOL_OPTIONS;
