//! Tests Centrifugo's client protocol, as its documentation and `client.proto` define it. The tests use raw WebSockets, so they also cover what no client
//! library sends.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod backend;
mod client;
mod commands;
mod deltas;
mod doors;
mod emulation;
mod join_leave;
mod messages;
mod names;
mod one_way;
mod recovery;
mod refusals;
mod rights;
mod server_side;
