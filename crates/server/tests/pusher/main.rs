//! Tests Pusher's protocol, as its documentation defines it. The tests use raw WebSockets, so they also cover what no client library sends.

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
