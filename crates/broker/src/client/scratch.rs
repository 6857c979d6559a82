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
pub(crate) struct Scratch {
    reply: Vec<u8>,
    id: Vec<u8>,
    /// Why the connection at hand is about to end, where that is not its peer's doing.
    why: Option<Closed>,
    /// Connections that end with this input.
    ends: Vec<End>,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch {
            reply: Vec::new(),
            id: Vec::new(),
            why: None,
            ends: Vec::new(),
        }
    }

    /// The response that is being written.
    #[inline]
    pub(crate) fn reply(&mut self) -> &mut Vec<u8> {
        &mut self.reply
    }

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

    /// The position that is being written.
    #[inline]
    pub(crate) fn id(&mut self) -> &mut Vec<u8> {
        &mut self.id
    }

    /// Notes why the connection at hand is about to end, if no reason was noted before.
    #[inline]
    pub(crate) fn because(&mut self, reason: Closed) {
        self.why.get_or_insert(reason);
    }

    /// Takes the reason that was noted: it counts for one end.
    pub(crate) fn take_reason(&mut self) -> Option<Closed> {
        self.why.take()
    }

    /// The connection at hand does not end after all: its end was counted before.
    pub(crate) fn forget_reason(&mut self) {
        self.why = None;
    }

    /// This connection ends with the input at hand.
    pub(crate) fn mark_end(&mut self, end: End) {
        self.ends.push(end);
    }

    /// Whether ends are to be carried out.
    #[inline]
    pub(crate) fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }

    /// The next end to be carried out.
    pub(crate) fn next_end(&mut self) -> Option<End> {
        self.ends.pop()
    }

    /// The connection at hand ends as broken, whatever reason was noted.
    pub(crate) fn is_broken(&mut self) {
        self.why = Some(Closed::Broken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_unless_it_has_grown_large() {
        let mut scratch = Scratch::new();
        for (len, kept) in [(100, true), (KEPT_BYTES_MAX + 1, false)] {
            scratch.reply().resize(len, 0);
            let reply = scratch.take_reply();
            scratch.reply_sent(reply);
            assert!(scratch.reply().is_empty());
            assert_eq!(scratch.reply().capacity() >= len, kept, "{len}");
        }
    }

    #[test]
    fn the_first_reason_counts_and_counts_once() {
        let mut scratch = Scratch::new();
        scratch.because(Closed::Slow);
        scratch.because(Closed::Operator);
        assert_eq!(scratch.take_reason(), Some(Closed::Slow));
        assert_eq!(scratch.take_reason(), None);
        scratch.because(Closed::Slow);
        scratch.is_broken();
        assert_eq!(scratch.take_reason(), Some(Closed::Broken));
    }
}
