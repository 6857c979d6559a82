//! The WebSocket protocol (RFC 6455) with permessage-deflate (RFC 7692), as bytes in and bytes out.
//!
//! * [`frame`] writes frames and masks payloads.
//! * [`receive`] reads them, for either role, and enforces all of RFC 6455 §5.
//! * [`gap`] is the close that tells of lost messages.
//! * [`handshake`] computes the accept key and negotiates extensions and subprotocols.
//!
//! Invariant: a connection whose last frame and last message are complete has no state here.
//! This module does not answer pings, run the closing handshake or time anything: the owner of the connection does.

pub mod frame;
pub mod gap;
pub mod handshake;
mod head;
pub mod receive;
mod utf8;
mod violation;
