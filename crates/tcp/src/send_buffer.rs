//! The bytes of a connection that are not acknowledged, or not sent yet.
//!
//! Invariant: the pieces follow one another without a gap. The first one has the first byte that is kept, the last one ends where the buffer ends.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::take;

use crate::sequence::is_after;

/// Copies that follow one another share a piece of at most this many bytes.
const PIECE_BYTES: usize = 4_096;
/// An empty buffer keeps room for this many pieces, so that a message and its acknowledgement allocate nothing.
const KEPT_PIECES: usize = 4;
/// It also keeps room for a copy of this many bytes.
const KEPT_BYTES: usize = 1_024;

#[derive(Debug)]
enum Bytes<H> {
    Copied(Vec<u8>),
    Shared(H),
}

#[derive(Debug)]
struct Piece<H> {
    /// The sequence number of the first byte, and the one after the last.
    start: u32,
    end: u32,
    bytes: Bytes<H>,
}

/// A queue of bytes that are addressed by their sequence number.
#[derive(Debug)]
pub struct SendBuffer<H> {
    pieces: VecDeque<Piece<H>>,
    /// The sequence number of the first byte that is kept, and the one after the last.
    start: u32,
    end: u32,
    /// The memory of an earlier copy, for the next one.
    spare: Vec<u8>,
}

impl<H: AsRef<[u8]>> SendBuffer<H> {
    /// An empty buffer, whose first byte will have this sequence number.
    pub fn new(start: u32) -> Self {
        SendBuffer {
            pieces: VecDeque::new(),
            start,
            end: start,
            spare: Vec::new(),
        }
    }

    /// Makes an empty buffer one whose first byte will have this sequence number.
    pub fn begin(&mut self, start: u32) {
        (self.start, self.end) = (start, start);
    }

    /// Number of bytes.
    pub fn len(&self) -> u32 {
        self.end.wrapping_sub(self.start)
    }

    /// Bytes of the list of pieces, and of the memory for the next copy.
    pub fn list_bytes(&self) -> usize {
        self.pieces.capacity() * size_of::<Piece<H>>() + self.spare.capacity()
    }

    /// The sequence number after the last byte.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Appends a copy of these bytes.
    pub fn copy(&mut self, bytes: &[u8]) {
        let end = self.end.wrapping_add(bytes.len() as u32);
        match self.pieces.back_mut() {
            Some(Piece {
                bytes: Bytes::Copied(held),
                end: held_end,
                ..
            }) if held.len() + bytes.len() <= PIECE_BYTES => {
                held.extend_from_slice(bytes);
                *held_end = end;
            }
            _ => {
                let mut copy = take(&mut self.spare);
                copy.extend_from_slice(bytes);
                self.pieces.push_back(Piece {
                    start: self.end,
                    end,
                    bytes: Bytes::Copied(copy),
                });
            }
        }
        self.end = end;
    }

    /// Appends the first `count` bytes behind a handle, without a copy.
    pub fn share(&mut self, handle: H, count: usize) {
        let end = self.end.wrapping_add(count as u32);
        self.pieces.push_back(Piece {
            start: self.end,
            end,
            bytes: Bytes::Shared(handle),
        });
        self.end = end;
    }

    /// Forgets the bytes before this sequence number and returns their number.
    pub fn release(&mut self, until: u32) -> usize {
        let until = if is_after(until, self.end) {
            self.end
        } else {
            until
        };
        if !is_after(until, self.start) {
            return 0;
        }
        let count = until.wrapping_sub(self.start);
        self.start = until;
        while self
            .pieces
            .front()
            .is_some_and(|piece| !is_after(piece.end, until))
        {
            if let Some(piece) = self.pieces.pop_front() {
                self.keep(piece);
            }
        }
        count as usize
    }

    /// Keeps the memory of a copy for the next one, if it is small and there is none.
    fn keep(&mut self, piece: Piece<H>) {
        if let Bytes::Copied(mut bytes) = piece.bytes
            && bytes.capacity() <= KEPT_BYTES
            && self.spare.capacity() == 0
        {
            bytes.clear();
            self.spare = bytes;
        }
    }

    /// Forgets all bytes.
    pub fn clear(&mut self) {
        if let Some(piece) = self.pieces.pop_front() {
            self.keep(piece);
        }
        self.pieces.clear();
        self.pieces.shrink_to(KEPT_PIECES);
        self.start = self.end;
    }

    /// Copies the bytes from this sequence number on. They must be there.
    pub fn read(&self, from: u32, out: &mut [u8]) {
        let mut index = self
            .pieces
            .partition_point(|piece| !is_after(piece.end, from));
        let (mut at, mut done) = (from, 0);
        while done < out.len() {
            let piece = &self.pieces[index];
            let bytes = match &piece.bytes {
                Bytes::Copied(bytes) => bytes,
                Bytes::Shared(handle) => handle.as_ref(),
            };
            let skipped = at.wrapping_sub(piece.start) as usize;
            let held = piece.end.wrapping_sub(piece.start) as usize;
            let count = (held - skipped).min(out.len() - done);
            out[done..done + count].copy_from_slice(&bytes[skipped..skipped + count]);
            done += count;
            at = at.wrapping_add(count as u32);
            index += 1;
        }
    }
}

#[cfg(test)]
impl<H: AsRef<[u8]>> SendBuffer<H> {
    /// Checks the invariants of a buffer of a connection with this first number that is not acknowledged.
    pub fn check(&self, unacknowledged: u32) -> Result<(), &'static str> {
        let Some(first) = self.pieces.front() else {
            return match self.len() {
                0 => Ok(()),
                _ => Err("bytes to send are in no piece"),
            };
        };
        if self.start != unacknowledged {
            return Err("bytes to send do not begin where the peer expects them");
        }
        if is_after(first.start, self.start) || !is_after(first.end, self.start) {
            return Err("the first piece does not have the first byte");
        }
        let mut at = first.start;
        for piece in &self.pieces {
            let held = match &piece.bytes {
                Bytes::Copied(bytes) => bytes.len(),
                Bytes::Shared(handle) => handle.as_ref().len(),
            };
            if piece.start != at || held < piece.end.wrapping_sub(piece.start) as usize {
                return Err("pieces leave a gap");
            }
            at = piece.end;
        }
        match at == self.end {
            true => Ok(()),
            false => Err("the last piece does not have the last byte"),
        }
    }
}
