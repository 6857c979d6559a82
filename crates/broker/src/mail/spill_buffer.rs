//! A buffer for received bytes that cannot be handled yet, since the request, frame or packet is incomplete, or the connection must wait.
//!
//! Invariant: the work is linear in the number of bytes, even if the bytes are appended and consumed in small pieces. A byte is copied
//! once, and on average moved a few times at most.

use alloc::vec::Vec;

/// A buffer of at most this capacity is not shrunk, because this would free no useful memory.
const SMALL_BYTES: usize = 4 << 10;

/// The buffer.
#[derive(Debug, Default)]
pub struct SpillBuffer {
    data: Vec<u8>,
    consumed: usize,
}

impl SpillBuffer {
    /// A buffer with a copy of these bytes.
    pub fn new(bytes: &[u8]) -> SpillBuffer {
        SpillBuffer {
            data: bytes.to_vec(),
            consumed: 0,
        }
    }

    /// Appends bytes. `whole_len` is the length of the whole packet or frame. No more capacity than this is reserved in advance.
    pub fn append(&mut self, bytes: &[u8], whole_len: usize) {
        let (len, capacity) = (self.data.len() + bytes.len(), self.data.capacity());
        if len > capacity {
            let reserved = capacity
                .saturating_mul(2)
                .min(self.consumed.saturating_add(whole_len));
            self.data.reserve_exact(reserved.max(len) - self.data.len());
        }
        self.data.extend_from_slice(bytes);
    }

    /// The bytes that are not consumed yet.
    pub fn rest(&self) -> &[u8] {
        &self.data[self.consumed..]
    }

    /// The bytes that are not consumed yet, mutable.
    pub fn rest_mut(&mut self) -> &mut [u8] {
        &mut self.data[self.consumed..]
    }

    /// Whether all bytes are consumed.
    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// Consumes this many bytes. When half of the data is consumed, the consumed bytes are removed.
    pub fn consume(&mut self, bytes: usize) {
        self.consumed = self.data.len().min(self.consumed + bytes);
        if self.consumed < self.rest().len() {
            return;
        }
        self.data.drain(..self.consumed);
        self.consumed = 0;
        if self.data.capacity() > SMALL_BYTES.max(4 * self.data.len()) {
            self.data.shrink_to_fit();
        }
    }

    /// The buffer's capacity in bytes.
    pub fn bytes(&self) -> usize {
        self.data.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_taken_in_small_pieces_are_moved_a_few_times_at_most() {
        let all: Vec<u8> = (0..60_000_u32).map(|n| n as u8).collect();
        let (mut buffer, mut moved_bytes, mut read) = (SpillBuffer::default(), 0, Vec::new());
        for piece in all.chunks(7) {
            buffer.append(piece, usize::MAX);
        }
        while !buffer.is_empty() {
            let rest = buffer.rest();
            read.extend_from_slice(&rest[..rest.len().min(3)]);
            buffer.consume(3);
            moved_bytes += if buffer.consumed == 0 {
                buffer.rest().len()
            } else {
                0
            };
            assert!(
                buffer.bytes() <= SMALL_BYTES.max(4 * buffer.data.len()) || buffer.consumed > 0
            );
        }
        assert_eq!(read, all);
        assert!(moved_bytes <= all.len(), "{moved_bytes}");
        buffer.consume(9);
        assert!(buffer.is_empty());
    }
}
