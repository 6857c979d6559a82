//! Received bytes that wait for more bytes or for their turn: new bytes are appended, and reading goes on where it
//! ended.
//!
//! Invariant: the work is linear in the bytes, however small the pieces in which they come and are taken: each byte is
//! copied in once, and moved a few times at most.

use alloc::vec::Vec;

/// Below this no memory is given back: the allocator would not notice.
const SMALL_BYTES: usize = 4 << 10;

/// Bytes that wait.
#[derive(Debug, Default)]
pub struct Inbox {
    data: Vec<u8>,
    done: usize,
}

impl Inbox {
    /// Begins with a copy of these bytes.
    pub fn new(bytes: &[u8]) -> Inbox {
        Inbox {
            data: bytes.to_vec(),
            done: 0,
        }
    }

    /// Appends bytes. `whole` is the length of the packet or frame that they belong to: no room is reserved beyond it.
    pub fn append(&mut self, bytes: &[u8], whole: usize) {
        let (len, now) = (self.data.len() + bytes.len(), self.data.capacity());
        if len > now {
            let room = now.saturating_mul(2).min(self.done.saturating_add(whole));
            self.data.reserve_exact(room.max(len) - self.data.len());
        }
        self.data.extend_from_slice(bytes);
    }

    /// The bytes that are not handled yet.
    pub fn rest(&self) -> &[u8] {
        &self.data[self.done..]
    }

    /// The same, to be changed in place.
    pub fn rest_mut(&mut self) -> &mut [u8] {
        &mut self.data[self.done..]
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// This many bytes more are handled. Handled bytes are dropped once they are half of the data.
    pub fn consume(&mut self, bytes: usize) {
        self.done = self.data.len().min(self.done + bytes);
        if self.done < self.rest().len() {
            return;
        }
        self.data.drain(..self.done);
        self.done = 0;
        if self.data.capacity() > SMALL_BYTES.max(4 * self.data.len()) {
            self.data.shrink_to_fit();
        }
    }

    /// Heap bytes in use.
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
        let (mut held, mut moved, mut seen) = (Inbox::default(), 0, Vec::new());
        for piece in all.chunks(7) {
            held.append(piece, usize::MAX);
        }
        while !held.is_empty() {
            let rest = held.rest();
            seen.extend_from_slice(&rest[..rest.len().min(3)]);
            held.consume(3);
            moved += if held.done == 0 { held.rest().len() } else { 0 };
            assert!(held.bytes() <= SMALL_BYTES.max(4 * held.data.len()) || held.done > 0);
        }
        assert_eq!(seen, all);
        assert!(moved <= all.len(), "{moved}");
        held.consume(9);
        assert!(held.is_empty());
    }
}
