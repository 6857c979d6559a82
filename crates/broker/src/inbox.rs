//! Received bytes that wait for more, or for somebody: they are appended where they lie and gone through from where the last
//! look ended.
//!
//! Invariant: what is done with bytes is linear in them, however small the pieces are in which they come and are taken:
//! each is copied in once, and moved a few times at most.

use alloc::vec::Vec;

/// Below this nothing is given back: the allocator would not notice.
const SMALL_BYTES: usize = 4 << 10;

/// Bytes that wait.
#[derive(Debug, Default)]
pub struct Inbox {
    data: Vec<u8>,
    done: usize,
}

impl Inbox {
    /// Begins with a copy of these.
    pub fn new(bytes: &[u8]) -> Inbox {
        Inbox {
            data: bytes.to_vec(),
            done: 0,
        }
    }

    /// More came. What is waited for has so many bytes, so that there is no room made for more.
    pub fn append(&mut self, bytes: &[u8], whole: usize) {
        let (len, now) = (self.data.len() + bytes.len(), self.data.capacity());
        if len > now {
            let room = now.saturating_mul(2).min(self.done.saturating_add(whole));
            self.data.reserve_exact(room.max(len) - self.data.len());
        }
        self.data.extend_from_slice(bytes);
    }

    /// What is to be gone through.
    pub fn rest(&self) -> &[u8] {
        &self.data[self.done..]
    }

    /// The same, which may be changed in place.
    pub fn rest_mut(&mut self) -> &mut [u8] {
        &mut self.data[self.done..]
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// So many bytes more are done with. They are let go of when they are half of what is held.
    pub fn took(&mut self, bytes: usize) {
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

    /// Bytes of heap that it occupies.
    pub fn bytes(&self) -> usize {
        self.data.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_in_small_pieces_is_moved_a_few_times_at_most() {
        let all: Vec<u8> = (0..60_000_u32).map(|n| n as u8).collect();
        let (mut held, mut moved, mut seen) = (Inbox::default(), 0, Vec::new());
        for piece in all.chunks(7) {
            held.append(piece, usize::MAX);
        }
        while !held.is_empty() {
            let rest = held.rest();
            seen.extend_from_slice(&rest[..rest.len().min(3)]);
            held.took(3);
            moved += if held.done == 0 { held.rest().len() } else { 0 };
            assert!(held.bytes() <= SMALL_BYTES.max(4 * held.data.len()) || held.done > 0);
        }
        assert_eq!(seen, all);
        assert!(moved <= all.len(), "{moved}");
        held.took(9);
        assert!(held.is_empty());
    }
}
