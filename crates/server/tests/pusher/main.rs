//! Tests Pusher's protocol over raw WebSockets, as its documentation says, also what no client library sends.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod client;
mod client_events;
mod connect;
mod presence;
mod resume;
mod signin;
mod subscriptions;
