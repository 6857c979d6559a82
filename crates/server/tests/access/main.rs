//! Who may do what, at every door of the running server: nothing opens that should not.
//!
//! The keys are made anew in each run; tokens are signed here, so that wrong ones can be too.

#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../support/broker.rs"]
mod broker;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../http/conn.rs"]
mod conn;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../mqtt/conn.rs"]
mod packets;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../admin/port.rs"]
mod port;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../http/ws.rs"]
mod ws;

mod callback;
mod commands;
mod cookies;
mod doors;
mod expiry;
mod matrix;
mod operator;
mod programs;
mod proxies;
mod reload;
mod sessions;
mod tokens;
mod told;
mod users;
