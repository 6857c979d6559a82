//! The events that a connection reports, and the arguments and memory of one call.

use alloc::vec::Vec;
use core::ops::Range;

use super::limits::Limits;
use super::violation::Violation;

/// An event that the client caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A request. [`crate::http::head::parse`] reads `head`, and may still refuse the request.
    Request {
        /// The new stream. The caller must answer or reset it.
        stream: u32,
        /// The head in the form of HTTP/1.1.
        head: &'a [u8],
        /// The request has no body. If this is false, a later event has `ends` set, or the stream is reset.
        ends: bool,
    },
    /// A request whose fields exceed the limit. The caller must answer it with 431.
    TooLarge {
        /// The new stream.
        stream: u32,
    },
    /// A piece of a body. The caller [releases](super::Connection::release) the bytes when it has processed them.
    Data {
        /// The stream.
        stream: u32,
        /// The caller's number for the stream.
        slot: u32,
        /// The bytes; may be empty.
        data: &'a [u8],
        /// The body is complete.
        ends: bool,
    },
    /// The client has reset the stream, which is now forgotten here.
    Reset {
        /// The stream.
        stream: u32,
        /// The caller's number for the stream.
        slot: u32,
        /// The client's error code.
        code: u32,
    },
    /// A stream was reset because of a violation. It is now unknown here.
    Refused {
        /// The stream.
        stream: u32,
        /// The caller's number for the stream; [`NO_SLOT`](super::NO_SLOT) if the caller does not know the stream.
        slot: u32,
        /// The violation.
        violation: Violation,
    },
    /// A window that was exhausted allows data again.
    Writable {
        /// The stream; 0 for all streams.
        stream: u32,
        /// The caller's number for the stream; [`NO_SLOT`](super::NO_SLOT) for all streams.
        slot: u32,
    },
    /// The client will close the connection and opens no more streams.
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
    /// The event that the last consumed bytes completed. `None` if the remaining bytes are incomplete.
    pub event: Option<Event<'a>>,
}

/// Memory for one call. All connections of a thread can share it.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The strings of the field that is being decoded.
    pub(super) strings: Vec<u8>,
    pub(super) pseudo: Vec<u8>,
    /// The head of the last request.
    pub(super) head: Vec<u8>,
    /// A field block that arrived in several frames.
    pub(super) block: Vec<u8>,
}

/// An event whose bytes are still in the input or in the scratch.
pub(super) enum Found {
    Nothing,
    /// The head is in the scratch.
    Request {
        stream: u32,
        ends: bool,
    },
    /// The data is this range of the consumed bytes.
    Data {
        stream: u32,
        slot: u32,
        range: Range<usize>,
        ends: bool,
    },
    Other(Event<'static>),
}

/// The arguments of a call, except the input.
pub(super) struct Call<'c> {
    pub limits: &'c Limits,
    pub scratch: &'c mut Scratch,
    pub out: &'c mut Vec<u8>,
}
