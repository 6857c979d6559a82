//! Tests clients that other people wrote, against the real server. Each receives what `curl` publishes, is disconnected, and resumes from
//! its last position; it loses no message and gets none twice.
//!
//! The tests need programs and libraries that `cargo xtask test` prepares and names in `CRORE_CLIENT_TESTS`; the plain `cargo test` leaves
//! these tests out. A client is a small script in this directory that prints one JSON object for each event. The expectations are in the
//! tests.

#[path = "../../../nats/tests/cluster/jetstream.rs"]
mod jetstream;
#[path = "../../../nats/tests/cluster/servers.rs"]
mod servers;
#[path = "../support/mod.rs"]
mod support;
#[path = "../tls/tool.rs"]
#[allow(dead_code, reason = "the tests of TLS use all of it")]
mod tls;

mod access;
mod browser;
mod centrifugo;
mod centrifugo_suites;
mod client;
mod console;
mod console_views;
mod cut;
mod fronts;
mod grid;
mod http2;
mod languages;
mod mqtt;
mod proxies;
mod proxy;
mod pusher;
mod pusher_js;
mod pusher_php;
mod quickstart;
mod recipes;
mod scripts;
mod tickers;
mod validators;
