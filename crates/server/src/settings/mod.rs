//! An operator's settings: the types of `crore.toml`, their defaults, and how TOML's values become theirs.
//!
//! [`file`](mod@file) is the whole file; the other types are its sections, each with the ranges of its own values. Nothing here reads a file or
//! looks at the host: that is [`crate::config`], which also lays the flags over it.

pub mod access;
pub mod admin;
pub mod cluster;
pub mod file;
pub mod listen;
pub mod problems;
pub mod state;
pub mod tls;
pub mod units;
