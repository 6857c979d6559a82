//! Bytes to frames and back: the codecs of Crore, sans-io, `no_std` with `alloc`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod deflate;
pub mod form;
pub mod http;
pub mod json;
pub mod mqtt;
pub mod ndjson;
pub mod sse;
pub mod topic;
pub mod websocket;
