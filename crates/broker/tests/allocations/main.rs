//! Tests of the broker's allocations:
//! - [`hot_path`]: a delivery allocates nothing, so a publish allocates the same for no subscriber and for ten thousand.
//! - [`size`]: an idle connection needs a few dozen bytes of heap.
//! - [`absent`]: the memory of absent sessions is charged to the account.
//! - [`http2`]: a request of HTTP/2 allocates nothing in the codec, and an idle stream needs one row.
//! - [`receive`]: bytes that arrive in small pieces cost as much as bytes that arrive at once.
//!
//! Real shards over an `Io` in memory. The counters are per thread, so tests can run in parallel.

mod absent;
mod counting;
mod hot_path;
mod http2;
mod receive;
mod requests;
mod served;
mod size;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod test_server;
