//! Tests authentication and rights in every protocol: the server accepts no operation of a client that lacks the right.
//!
//! Each run makes new keys. The tests sign the tokens themselves, valid and invalid ones.

#[path = "../support/mod.rs"]
mod support;

mod callback;
mod client_log;
mod commands;
mod cookies;
mod doors;
mod expiry;
mod jwks;
mod key_files;
mod key_urls;
mod matrix;
mod operator;
mod presence;
mod programs;
mod proxies;
mod publisher;
mod reload;
mod retries;
mod revocations;
mod sessions;
mod tokens;
mod told;
mod users;
mod webhooks;
