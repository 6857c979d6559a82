//! The state that exists only while one input is handled: buffers, kept so that the next input need not allocate, and notes from the code that
//! finds a reason to end a connection, for the code that ends it (`close`).

use alloc::vec::Vec;

use crate::base::ids::ConnId;
use crate::base::reason::Closed;
use crate::io::Close;

/// A buffer for responses that has grown past so many bytes is given back.
const KEPT_BYTES_MAX: usize = 1 << 16;

/// A connection whose end is to be carried out.
pub(crate) struct End {
    pub(crate) conn: ConnId,
    /// How its socket is closed; none where the peer closes it.
    pub(crate) how: Option<Close>,
}

/// The buffers and notes of the input at hand.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The response that is being written.
    pub(crate) reply: Vec<u8>,
    /// The lines with which each response of this second begins.
    pub(crate) common: (u32, Vec<u8>),
    /// The position that is being written.
    pub(crate) id: Vec<u8>,
    /// Why the connection at hand is about to end, where that is not its peer's doing. It counts for one end.
    pub(crate) why: Option<Closed>,
    /// Connections that end with this input.
    pub(crate) ends: Vec<End>,
}

impl Scratch {
    /// Takes the response that is being written.
    #[inline]
    pub(crate) fn take_reply(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.reply)
    }

    /// Gives the buffer back, emptied, when what it held was sent.
    #[inline]
    pub(crate) fn reply_sent(&mut self, mut reply: Vec<u8>) {
        reply.clear();
        self.reply = match reply.capacity() <= KEPT_BYTES_MAX {
            true => reply,
            false => Vec::new(),
        };
    }

    /// Notes why the connection at hand is about to end, if no reason was noted before.
    #[inline]
    pub(crate) fn because(&mut self, reason: Closed) {
        self.why.get_or_insert(reason);
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
            scratch.reply_sent(reply);
            assert!(scratch.reply.is_empty());
            assert_eq!(scratch.reply.capacity() >= len, kept, "{len}");
        }
    }

    #[test]
    fn the_first_reason_counts_and_counts_once() {
        let mut scratch = Scratch::default();
        scratch.because(Closed::Slow);
        scratch.because(Closed::Operator);
        assert_eq!(scratch.why.take(), Some(Closed::Slow));
        assert_eq!(scratch.why.take(), None);
        scratch.because(Closed::Slow);
        scratch.why = Some(Closed::Broken);
        assert_eq!(scratch.why.take(), Some(Closed::Broken));
    }
}
