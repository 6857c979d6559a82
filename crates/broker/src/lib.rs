//! What the Crore server decides: shards, topics, logs and connections. Sans-io, no clock, no threads.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod settings;
