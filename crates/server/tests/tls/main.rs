//! Tests TLS on the server's port with common clients: `curl`, `openssl`, Mosquitto's and Python's.
//!
//! Each test makes its own certificates. The command line of each client names the program, and the version and cipher that the client
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
