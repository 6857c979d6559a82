//! How clients of HTTP are told when to come back.

use alloc::vec::Vec;

use crore_wire::sse;

use crate::budget::retry::retry_after_ms;

pub(crate) use crate::budget::retry::retry_after_s as after_s;

/// The bytes of an event stream that tell the client to come back, at a time of its own.
pub(crate) fn events(spread: u32) -> Vec<u8> {
    let mut text = Vec::with_capacity(20);
    sse::write_retry(&mut text, retry_after_ms(spread));
    text
}
