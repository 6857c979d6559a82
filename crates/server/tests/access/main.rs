//! Tests rights at every door of the running server (a way into the server by one request of one protocol): no door opens for a client
//! that lacks the rights.
//!
//! The keys are made anew in each run. The tests sign the tokens, so that they can sign wrong ones too.

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
