//! The streams of a connection that have not ended (RFC 9113 section 5.1).
//!
//! Invariant: a stream has a row from its request until both directions have ended or the stream is reset. An idle stream costs one row.

use alloc::vec::Vec;

use super::flow::{ReceiveWindow, SendWindow};

/// Number of rows that are allocated together. If the vector doubled, an idle connection could have twice the rows that it needs.
const ROWS_STEP: usize = 4;
/// The caller has not given a number to the stream.
pub const NO_SLOT: u32 = u32::MAX;
/// The length of the body is unknown.
pub(super) const UNKNOWN_LENGTH: u32 = u32::MAX;

/// A stream that has not ended.
#[derive(Debug)]
pub(super) struct Stream {
    pub id: u32,
    /// The caller's number for the stream.
    pub slot: u32,
    pub send: SendWindow,
    pub receive: ReceiveWindow,
    /// The number of body bytes that have not arrived, by `content-length`.
    pub body_left: u32,
    pub state: State,
    /// The request is a CONNECT: each direction ends separately.
    pub is_tunnel: bool,
    /// The head of the response was written.
    pub has_head: bool,
    /// A DATA frame with few bytes has arrived.
    pub has_small: bool,
}

/// Which directions of a stream have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// The request is complete: "half-closed (remote)".
    RequestEnded,
    /// The response is complete, but the client of the tunnel may still send: "half-closed (local)".
    AnswerEnded,
}

/// The streams, sorted by number. The numbers of new streams only increase.
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
        // Frees the memory of many ended streams, so that an idle connection does not keep it.
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
