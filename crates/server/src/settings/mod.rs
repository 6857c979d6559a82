//! The settings: the types of `crore.toml`, their defaults, and their conversion from TOML.
//!
//! A setting is one field, with its documentation and attributes. Settings that the shards use are in `crates/settings`, all others here.
//! [`file`](mod@file) is the whole file; [`schema`] is the table of its fields, from which parser, flags and documents are made.
//!
//! Deliberately not here: reading the file, looking at the host, and overriding the file by flags, which [`crate::config`] does.

pub mod access;
pub mod admin;
pub mod backend;
pub mod cluster;
pub mod file;
pub mod listen;
pub mod log;
pub mod numbers;
pub mod problems;
pub mod pusher;
pub mod schema;
pub mod state;
pub mod tls;
pub mod units;
pub mod webhook;
pub mod xdp;
