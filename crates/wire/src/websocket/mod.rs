//! The codec of the WebSocket protocol (RFC 6455) with permessage-deflate (RFC 7692).
//!
//! * [`frame`] writes frames and masks payloads.
//! * [`receive`] reads frames, for either role, and enforces all of RFC 6455 §5.
//! * [`gap`] is the close frame that reports lost messages.
//! * [`handshake`] computes the accept key and negotiates extensions and subprotocols.
//!
//! Invariant: between messages there is no state here. The caller answers pings, runs the closing handshake and watches the timeouts.

pub mod frame;
pub mod gap;
pub mod handshake;
mod head;
pub mod receive;
mod utf8;
mod violation;
