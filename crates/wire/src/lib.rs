//! The codecs of Crore: they parse and write all protocols and formats and do no I/O. `no_std` with `alloc`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod centrifugo;
pub mod deflate;
pub mod form;
pub mod http;
pub mod http2;
pub mod json;
pub mod mqtt;
pub mod ndjson;
pub mod pusher;
pub mod sse;
pub mod topic;
pub mod websocket;
