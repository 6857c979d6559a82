//! The options of a request, as they stand in [`Row::options`](crate::client::row::Row::options). A stream keeps those of the request that it began with.

use crate::client::row::{OWN, OWN_SHIFT};

/// HTTP/1.0.
pub(crate) const HTTP10: u32 = 1;
/// The connection stays open after the answer.
pub(crate) const KEEP: u32 = 1 << 1;
/// A HEAD request.
pub(crate) const HEAD: u32 = 1 << 2;
/// `ws+meta.nchan`.
pub(crate) const META: u32 = 1 << 3;
/// permessage-deflate.
pub(crate) const DEFLATE: u32 = 1 << 4;
/// The client's frames are publishes.
pub(crate) const PUBLISHES: u32 = 1 << 5;
/// Messages come as JSON objects.
pub(crate) const ENVELOPE: u32 = 1 << 7;
/// The long-poll came with a validator.
pub(crate) const CONDITIONAL: u32 = 1 << 8;
/// The client prefers JSON.
pub(crate) const JSON: u32 = 1 << 9;
/// An upgrade to WebSocket is being answered.
pub(crate) const UPGRADE: u32 = 1 << 11;
/// An event stream is being answered.
pub(crate) const EVENTS: u32 = 1 << 12;
/// Unanswered heartbeats, two bits.
pub(crate) const PINGS: u32 = 3 << 13;
/// One unanswered heartbeat.
pub(crate) const PING: u32 = 1 << 13;
/// The long-poll's position could not be honoured.
pub(crate) const GAP: u32 = 1 << 15;
/// It follows which topics have subscribers.
pub(crate) const FOLLOWS: u32 = 1 << 16;
/// The answer is the first one to an idempotency key, given again.
pub(crate) const REPLAYED: u32 = 1 << 17;
/// The answer is a topic's history.
pub(crate) const HISTORY: u32 = 1 << 18;
/// The request is for an event stream or a WebSocket: browsers hide a refusal from the page.
pub(crate) const STREAMS: u32 = 1 << 19;
/// Where the number of the allowed origin begins: eight bits, 0 for none, 255 for any.
pub(crate) const ORIGIN_SHIFT: u32 = OWN_SHIFT;
/// That number.
pub(crate) const ORIGIN: u32 = OWN;
