//! Spans: the positions of names and data in the bytes of a mail.

use alloc::vec::Vec;

/// A range of [`Mail::bytes`](crate::Mail).
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// Appends `part` to `bytes`.
    pub fn append(bytes: &mut Vec<u8>, part: &[u8]) -> Span {
        let start = bytes.len() as u32;
        bytes.extend_from_slice(part);
        Span {
            start,
            len: part.len() as u32,
        }
    }

    /// The bytes of the span.
    pub fn in_bytes<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start as usize..(self.start + self.len) as usize]
    }
}
