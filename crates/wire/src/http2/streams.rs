//! The streams of a connection that have not ended (RFC 9113 section 5.1).
//!
//! Invariant: a row exists from the request until both directions have ended or the stream is reset. An idle stream costs one row.

use alloc::vec::Vec;

use super::flow::{ReceiveWindow, SendWindow};

/// How many rows are allocated at a time. A vector that doubles would cost an idle connection up to twice its rows.
const ROWS_STEP: usize = 4;
/// The number of a stream that the caller has given none.
pub const NO_SLOT: u32 = u32::MAX;
/// The rest of a body whose length is not known.
pub(super) const UNKNOWN_LENGTH: u32 = u32::MAX;

/// A stream that has not ended.
#[derive(Debug)]
pub(super) struct Stream {
    pub id: u32,
    /// The caller's number.
    pub slot: u32,
    pub send: SendWindow,
    pub receive: ReceiveWindow,
    /// The bytes of the body that `content-length` promises and that have not come.
    pub body_left: u32,
    pub state: State,
    /// The request is a CONNECT: both directions end on their own.
    pub is_tunnel: bool,
    /// The head of the answer was written.
    pub has_head: bool,
    /// A frame with little of the body has come.
    pub has_small: bool,
}

/// Which directions of a stream have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// The request is complete: "half-closed (remote)".
    RequestEnded,
    /// The answer is complete, in a tunnel whose client may still send: "half-closed (local)".
    AnswerEnded,
}

/// The streams in the order of their numbers, which only rise.
#[derive(Debug, Default)]
pub(super) struct Streams(Vec<Stream>);

impl Streams {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn get(&self, id: u32) -> Option<&Stream> {
        self.place(id).map(|place| &self.0[place])
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        self.place(id).map(|place| &mut self.0[place])
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.0.iter_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.0.iter()
    }

    pub fn push(&mut self, stream: Stream) {
        debug_assert!(self.0.last().is_none_or(|last| last.id < stream.id));
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(ROWS_STEP);
        }
        self.0.push(stream);
    }

    pub fn remove(&mut self, id: u32) -> Option<Stream> {
        let place = self.place(id)?;
        let stream = self.0.remove(place);
        // An idle connection keeps no rows for streams that it once had.
        if self.0.capacity() - self.0.len() >= 4 * ROWS_STEP {
            self.0.shrink_to(self.0.len() + ROWS_STEP);
        }
        Some(stream)
    }

    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Stream>()
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.0.binary_search_by_key(&id, |stream| stream.id).ok()
    }
}
