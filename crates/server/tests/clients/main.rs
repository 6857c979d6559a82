//! Clients that other people wrote, against the real server: each receives what `curl` publishes, is
//! disconnected, and resumes from its last position with nothing lost and nothing doubled.
//!
//! They need programs and libraries that `cargo xtask test` prepares and names in
//! `CRORE_CLIENT_TESTS`; the plain `cargo test` leaves them out. A client is a small script beside
//! this file that prints one JSON object for each event; the expectations are here.

#[path = "../support/mod.rs"]
mod support;

mod access;
mod browser;
mod client;
mod console;
mod console_views;
mod cut;
mod fronts;
mod grid;
mod languages;
mod mqtt;
mod proxies;
mod proxy;
mod quickstart;
mod recipes;
mod scripts;
mod validators;
