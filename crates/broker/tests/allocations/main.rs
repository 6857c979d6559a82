//! The broker's demands on the allocator. [`hot_path`]: none for a delivery, so that a published message costs the same
//! whether nobody, one or ten thousand receive it. [`size`]: a few dozen bytes for a connection that waits.
//! [`absent`]: what sessions without a connection hold is in the account.
//! [`receive`]: as much for bytes that come in small pieces as for bytes that come at once.
//!
//! Real shards over an `Io` in memory. The counters belong to the thread, so tests run side by side.

mod absent;
mod counting;
mod hot_path;
mod receive;
mod requests;
mod served;
mod size;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod town;
