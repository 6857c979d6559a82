//! Buffers that are filled and emptied within one input, so that the next one need not allocate.

use alloc::vec::Vec;

/// A buffer for responses that has grown past so many bytes is given back.
const KEPT_BYTES_MAX: usize = 1 << 16;

/// The buffers of a shard's clients' side.
pub(crate) struct Scratch {
    reply: Vec<u8>,
    id: Vec<u8>,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch {
            reply: Vec::new(),
            id: Vec::new(),
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
}
