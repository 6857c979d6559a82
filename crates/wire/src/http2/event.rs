//! What a client did, and the memory and limits with which its frames are read.

use alloc::vec::Vec;
use core::ops::Range;

use super::limits::Limits;
use super::violation::Violation;

/// What a client did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A request. [`crate::http::head::parse`] reads `head`; it may still refuse it.
    Request {
        /// The new stream. The caller answers it, or resets it.
        stream: u32,
        /// The head as HTTP/1.1 has it.
        head: &'a [u8],
        /// There is no body. Otherwise an event has `ends`, or the stream is reset.
        ends: bool,
    },
    /// A request whose fields exceed the limit. The caller answers it with 431.
    TooLarge {
        /// The new stream.
        stream: u32,
    },
    /// A part of a body. The caller [releases](super::Connection::release) the bytes when it has taken them.
    Data {
        /// The stream.
        stream: u32,
        /// The caller's number for it.
        slot: u32,
        /// The bytes, perhaps none.
        data: &'a [u8],
        /// The body is complete.
        ends: bool,
    },
    /// The client ended the stream at once. It has no row any more.
    Reset {
        /// The stream.
        stream: u32,
        /// The caller's number for it.
        slot: u32,
        /// The client's error code.
        code: u32,
    },
    /// A stream was ended because of a violation. It has no row any more, or never had one.
    Refused {
        /// The stream.
        stream: u32,
        /// The caller's number for it; [`NO_SLOT`](super::NO_SLOT) if the caller does not know the stream.
        slot: u32,
        /// The violation.
        violation: Violation,
    },
    /// A window that allowed nothing allows data again.
    Writable {
        /// The stream; 0 for all streams.
        stream: u32,
        /// The caller's number for it; [`NO_SLOT`](super::NO_SLOT) for all streams.
        slot: u32,
    },
    /// The answer to a ping.
    Pong([u8; 8]),
    /// The client will close, and opens no more streams.
    GoAway {
        /// The client's error code.
        code: u32,
    },
}

/// The result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// Consumed bytes of the input.
    pub consumed: usize,
    /// The event that the last consumed bytes completed. `None`: the bytes left are incomplete.
    pub event: Option<Event<'a>>,
}

/// Memory for one call, which all connections of a thread can share.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The strings of the field that is decoded.
    pub(super) strings: Vec<u8>,
    pub(super) pseudo: Vec<u8>,
    /// The head of the last request.
    pub(super) head: Vec<u8>,
    /// A field block that came in several frames.
    pub(super) block: Vec<u8>,
}

/// An event without its bytes.
pub(super) enum Found {
    Nothing,
    /// Its head is in the scratch.
    Request {
        stream: u32,
        ends: bool,
    },
    /// Its data is this part of the bytes that were consumed.
    Data {
        stream: u32,
        slot: u32,
        range: Range<usize>,
        ends: bool,
    },
    Other(Event<'static>),
}

/// What a call is given besides the bytes.
pub(super) struct Call<'c> {
    pub limits: &'c Limits,
    pub scratch: &'c mut Scratch,
    pub out: &'c mut Vec<u8>,
}
