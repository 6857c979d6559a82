//! Tells HTTP clients when to try again.

use alloc::vec::Vec;

use crore_wire::sse;

use crate::budget::retry::retry_after_ms;

pub(crate) use crate::budget::retry::{reconnect_after_ms, retry_after_s as after_s};

/// The bytes of a refused event stream: only the delay after which the client should try again.
pub(crate) fn retry_event(spread: u32) -> Vec<u8> {
    retry_bytes(retry_after_ms(spread))
}

/// The bytes for an event stream on a shard that stops and has `connections` connections.
pub(crate) fn move_off_event(spread: u32, connections: u32) -> Vec<u8> {
    retry_bytes(reconnect_after_ms(spread, connections))
}

fn retry_bytes(after_ms: u32) -> Vec<u8> {
    let mut text = Vec::with_capacity(20);
    sse::write_retry(&mut text, after_ms);
    text
}
