//! An operator's settings: the types of `crore.toml`, their defaults, and how TOML's values become theirs.
//!
//! A setting is one documented field with attributes, of a section here or, where the shards decide by it, in `crates/settings`. [`file`](mod@file)
//! is the whole file; [`schema`] makes rows of its fields, and all else from the rows. Nothing here reads a file or looks at the host: that is
//! [`crate::config`], which also lays the flags over it.

pub mod access;
pub mod admin;
pub mod cluster;
pub mod file;
pub mod listen;
pub mod log;
pub mod numbers;
pub mod problems;
pub mod schema;
pub mod state;
pub mod tls;
pub mod units;
