//! TLS at the server's door, with the clients that people have: `curl`, `openssl`, Mosquitto's, Python's.
//!
//! Each test makes its certificates. Each client's command line says which program it is, and which version and cipher it
//! insists on.

#[path = "../support/mod.rs"]
mod support;

mod certificates;
mod clients;
mod files;
mod hostile;
mod proxied;
mod reload;
mod stalled;
mod tail;
mod tool;
mod tools;
