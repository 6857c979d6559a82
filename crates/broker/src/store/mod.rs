//! Data structures: slabs of rows, hash indexes, blobs in size classes, ropes, shared messages. They know nothing of topics or connections.

pub(crate) mod blobs;
mod chunks;
pub(crate) mod index;
pub(crate) mod names;
pub(crate) mod rope;
pub(crate) mod shared;
pub(crate) mod slab;
