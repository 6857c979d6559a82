//! Centrifugo's client protocol, version 2, over WebSocket and HTTP. `crore_wire::centrifugo` reads its commands and writes its replies. A channel is a topic
//! of the same name, or of the one that `names` gives it. `docs/CENTRIFUGO.md` says what is built.
//!
//! `commands` takes the commands of a frame one after another, and holds those that must wait. `connect` (with `welcome`), `subscribe`, `publish`,
//! `history`, `presence` and `rpc` carry them out. `tokens` handles the tokens in commands, and `claims` reads the claims of this protocol. `backend` asks the operator's backend about them, and `renewal` about what it has granted. `body` begins the transports over HTTP without WebSocket, which send to the client in the body of an answer that does
//! not end. Their clients post commands, which `emulation` hands to the connection, or send only a connect (`one_way`). `server_side` has the subscriptions
//! that the server begins, and `orders` the orders of its API for single connections. `delta` sends messages as differences from the message before.
//! `codec` answers a subscribe with the home's first page (a bounded run of past messages), and sends messages. `ping` sends pings and checks for pongs. `user_channels` counts the subscriptions of users.
//!
//! Invariants:
//! * The server carries out no other command of a client before its connect command.
//! * Each command with an id gets one reply, unless the connection ends.
//! * A client is told of lost messages: by `recovered: false`, or by the end of the subscription with code 2500, or of the connection with 3010
//!   if the server began the subscription.
//! * A message is encoded once for all clients with the same encoding. An idle client with one subscription needs no memory besides its row.

pub(crate) mod backend;
pub(crate) mod body;
mod calls;
mod claims;
pub(crate) mod close;
mod codec;
pub(crate) mod commands;
mod connect;
pub(crate) mod contract;
pub(crate) mod delta;
pub(crate) mod emulation;
mod expiry;
mod history;
pub(crate) mod join_leave;
pub(crate) mod names;
mod one_way;
mod options;
pub(crate) mod orders;
mod ping;
pub(crate) mod presence;
pub(crate) mod publication;
mod publish;
pub(crate) mod reasons;
mod renewal;
mod reply;
mod rpc;
mod server_side;
pub(crate) mod state;
pub(crate) mod subscribe;
#[cfg(test)]
mod tests;
pub(crate) mod tokens;
pub(crate) mod user_channels;
mod welcome;
