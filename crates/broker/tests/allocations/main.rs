//! What the broker asks of the allocator. [`hot_path`]: nothing for a delivery, so that what a
//! published message costs is the same whether nobody, one or ten thousand receive it. [`size`]: a
//! few dozen bytes for a connection that waits. [`receive`]: for what comes in small pieces as much as for what comes at once.
//!
//! Real shards over an `Io` in memory. The counters belong to the thread, so tests run side by side.

mod counting;
mod hot_path;
mod receive;
mod size;
mod town;
