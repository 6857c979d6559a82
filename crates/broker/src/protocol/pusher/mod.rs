//! The Pusher Channels protocol, version 7, over WebSocket. `crore_wire::pusher` reads and writes its events. A channel is a topic of its app (`base/pusher.rs`).
//! `docs/PUSHER.md` says what is built.
//!
//! `begin` upgrades the connection and tells the client its socket id. `requests` takes the events of clients, and calls `subscribe` and `publish` (client
//! events). `presence` tells who is in a presence channel, and `signin` knows the user of a connection. `codec` tells that a subscription has begun, and sends messages, which `event` encodes. `ping` asks silent clients for a sign of life.
//! `reply` writes events and errors, and `close` ends connections with the protocol's codes.
//!
//! Invariants:
//! * The rights of a client are those of its app: its topics are open to everybody with the key, except private channels, which need a signature for this connection.
//! * A client event is not sent to the connection that published it, and neither is an event whose publisher names the connection's socket id.
//! * A message is encoded once for all clients, except for those that are told positions. An idle client with one subscription needs no memory besides its row.

pub(crate) mod begin;
mod close;
mod codec;
pub(crate) mod contract;
pub(crate) mod event;
mod options;
mod ping;
pub(crate) mod presence;
mod publish;
pub mod reasons;
mod reply;
mod requests;
mod signature;
mod signin;
pub(crate) mod state;
mod subscribe;
#[cfg(test)]
mod tests;
