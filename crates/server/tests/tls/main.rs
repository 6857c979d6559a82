//! TLS at the server's door, with the clients that people have: `curl`, `openssl`, Mosquitto's, Python's.
//!
//! Certificates are made by each test. What a client is, and which version and cipher it insists on, is said on its
//! command line.

#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../admin/port.rs"]
mod port;
#[path = "../support/mod.rs"]
mod support;

mod certificates;
mod clients;
mod hostile;
mod proxied;
mod reload;
mod stalled;
mod tail;
mod tool;
mod tools;
