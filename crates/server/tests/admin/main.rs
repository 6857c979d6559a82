//! Tests the admin port through the real binary: the API against its own description, metrics against the documents that name them, the
//! checks of requests, and `crore admin`.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod clients;
mod containers;
mod many_clients;
mod metrics;
mod reload;
mod request_checks;
mod supervisor;
mod tool;
