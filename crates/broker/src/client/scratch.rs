//! State that exists only while one input is processed: buffers, reused for the next input, and marks of connections to be ended,
//! which `close` reads.

use alloc::vec::Vec;

use crate::base::ids::ConnId;
use crate::base::reason::Closed;
use crate::io::CloseMode;

/// A response buffer with a larger capacity is freed.
const KEPT_BYTES_MAX: usize = 1 << 16;

/// A connection that is marked to be ended.
pub(crate) struct PendingEnd {
    pub(crate) conn: ConnId,
    /// How to close its socket. `None` if the peer will close it.
    pub(crate) close_mode: Option<CloseMode>,
    /// Whether the client may come back, since neither side has closed the connection on purpose.
    pub(crate) is_lost: bool,
}

/// The buffers and marks of the current input.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The response being written.
    pub(crate) reply: Vec<u8>,
    /// The second, and the header lines that all responses of this second begin with.
    pub(crate) common_headers: (u32, Vec<u8>),
    /// The position being written.
    pub(crate) position: Vec<u8>,
    /// Why the current connection is about to end, if its peer is not the cause. Used for one end.
    pub(crate) close_reason: Option<Closed>,
    /// Whether the client closes the current connection on purpose. Used for one end.
    pub(crate) is_closed_by_client: bool,
    /// Whether the connection whose end is carried out was not closed on purpose.
    pub(crate) is_lost: bool,
    /// The connections that end with this input.
    pub(crate) ends: Vec<PendingEnd>,
}

impl Scratch {
    /// Takes the response buffer.
    #[inline]
    pub(crate) fn take_reply(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.reply)
    }

    /// Returns the buffer after its response was sent.
    #[inline]
    pub(crate) fn recycle_reply(&mut self, mut reply: Vec<u8>) {
        reply.clear();
        self.reply = match reply.capacity() <= KEPT_BYTES_MAX {
            true => reply,
            false => Vec::new(),
        };
    }

    /// Records why the current connection is about to end, if no reason is recorded yet.
    #[inline]
    pub(crate) fn set_close_reason(&mut self, reason: Closed) {
        self.close_reason.get_or_insert(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_unless_it_has_grown_large() {
        let mut scratch = Scratch::default();
        for (len, kept) in [(100, true), (KEPT_BYTES_MAX + 1, false)] {
            scratch.reply.resize(len, 0);
            let reply = scratch.take_reply();
            scratch.recycle_reply(reply);
            assert!(scratch.reply.is_empty());
            assert_eq!(scratch.reply.capacity() >= len, kept, "{len}");
        }
    }

    #[test]
    fn first_reason_is_counted_once() {
        let mut scratch = Scratch::default();
        scratch.set_close_reason(Closed::Slow);
        scratch.set_close_reason(Closed::Operator);
        assert_eq!(scratch.close_reason.take(), Some(Closed::Slow));
        assert_eq!(scratch.close_reason.take(), None);
        scratch.set_close_reason(Closed::Slow);
        scratch.close_reason = Some(Closed::Broken);
        assert_eq!(scratch.close_reason.take(), Some(Closed::Broken));
    }
}
