//! Rights at every door of the running server: nothing opens that should not.
//!
//! The keys are made anew in each run; tokens are signed here, so that wrong ones can be too.

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
