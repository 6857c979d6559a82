//! Centrifugo's client protocol, version 2, over WebSocket and HTTP. `crore_wire::centrifugo` reads its commands and writes its replies. A channel is a topic
//! of the same name. `docs/CENTRIFUGO.md` says what is built.
//!
//! `commands` takes the commands of a frame one after another, and holds those that must wait. `connect` (with `welcome`), `subscribe`, `publish`,
//! `history` and `presence` carry them out. `body` begins the transports whose way to the client is the body of an answer. Their clients post commands, which
//! `emulation` hands to the connection; or send none, as those of `one_way`. `server_side` has the subscriptions that the
//! server begins, and `orders` what its API does with single connections. `delta` has messages as what changed since the last one. `codec` answers a subscribe with the home's first page (a bounded run of past
//! messages), and sends messages. `ping` watches the client.
//!
//! Invariants:
//! * Nothing is done for a client before its connect command.
//! * Each command with an id gets one reply, unless the connection ends.
//! * A client is told of lost messages: by `recovered: false`, or by the end of the subscription with code 2500, or of the connection with 3010
//!   if the server began the subscription.
//! * A message is encoded once for all clients of a form. Idle clients with one subscription need no memory besides their row.

pub(crate) mod body;
pub(crate) mod close;
mod codec;
pub(crate) mod commands;
mod connect;
pub(crate) mod contract;
pub(crate) mod delta;
pub(crate) mod emulation;
mod history;
pub(crate) mod join_leave;
mod lapse;
mod one_way;
mod options;
pub(crate) mod orders;
mod ping;
pub(crate) mod presence;
pub(crate) mod publication;
mod publish;
pub(crate) mod reasons;
mod reply;
mod server_side;
pub(crate) mod state;
pub(crate) mod subscribe;
#[cfg(test)]
mod tests;
pub(crate) mod tokens;
mod welcome;
