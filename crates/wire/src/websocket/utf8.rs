//! Checks UTF-8 that arrives in pieces. Invariant: an error is reported at the first byte that makes the text invalid, not at the end of
//! the text (RFC 6455 §8.1 allows this).

use core::str;

/// The unfinished character at the end of a piece of text: at most three bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Utf8 {
    pending: [u8; 4],
    len: u8,
}

impl Utf8 {
    /// Checks the next piece. Returns false if no continuation can make the text valid.
    pub(super) fn feed(&mut self, mut piece: &[u8]) -> bool {
        while self.len > 0 {
            let Some((&byte, rest)) = piece.split_first() else {
                return true;
            };
            piece = rest;
            self.pending[usize::from(self.len)] = byte;
            self.len += 1;
            match str::from_utf8(&self.pending[..usize::from(self.len)]) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        let Err(error) = str::from_utf8(piece) else {
            return true;
        };
        let unfinished = &piece[error.valid_up_to()..];
        if error.error_len().is_some() {
            return false;
        }
        self.pending[..unfinished.len()].copy_from_slice(unfinished);
        self.len = unfinished.len() as u8;
        true
    }

    /// Whether the text may end here: no character is unfinished.
    pub(super) fn is_complete(&self) -> bool {
        self.len == 0
    }
}
