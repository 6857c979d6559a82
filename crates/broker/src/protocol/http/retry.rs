//! How clients of HTTP are told when to come back.

use alloc::vec::Vec;

use crore_wire::sse;

use crate::budget::retry::retry_after_ms;

pub(crate) use crate::budget::retry::{retry_after_s as after_s, return_ms};

/// The bytes of an event stream that is turned away: the client is to come back at a time of its own.
pub(crate) fn turned_away(spread: u32) -> Vec<u8> {
    events(retry_after_ms(spread))
}

/// The bytes of an event stream of a shard that stops and has so many connections.
pub(crate) fn moved_off(spread: u32, connections: u32) -> Vec<u8> {
    events(return_ms(spread, connections))
}

fn events(after_ms: u32) -> Vec<u8> {
    let mut text = Vec::with_capacity(20);
    sse::write_retry(&mut text, after_ms);
    text
}
