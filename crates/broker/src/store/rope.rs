//! Bytes for one socket: its own bytes, and references to slices of large messages, which are not copied. A [`Rope`] is built in a turn (a pass of
//! the shard's loop). A [`Queue`] contains the bytes that the socket has not accepted yet.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::store::shared::{OutputPart, SHARED_MIN, Shared, Slice};

/// Bytes to be written.
#[derive(Default, Debug)]
pub struct Rope {
    /// The bytes that are not shared.
    pub own: Vec<u8>,
    /// In order: the number of own bytes before each slice, and the slice.
    shared_slices: Vec<(usize, Slice)>,
    shared_bytes: usize,
}

/// A position in a rope.
#[derive(Clone, Copy, Default)]
pub struct RopePosition {
    own_bytes: usize,
    shared_slices: usize,
    len: usize,
}

/// A part of a rope that lies within a range.
enum RopePart<'a> {
    Own(&'a [u8]),
    Shared(Slice),
}

impl Rope {
    /// Bytes of the rope.
    pub fn len(&self) -> usize {
        self.own.len() + self.shared_bytes
    }

    /// Whether the rope has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the rope has shared bytes.
    pub fn is_shared(&self) -> bool {
        !self.shared_slices.is_empty()
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.own.clear();
        self.shared_slices.clear();
        self.shared_bytes = 0;
    }

    /// Adds a slice of a message, by reference if it is large.
    pub fn push_slice(&mut self, slice: Slice) {
        if slice.len() < SHARED_MIN {
            return self.own.extend_from_slice(&slice);
        }
        self.shared_bytes += slice.len();
        self.shared_slices.push((self.own.len(), slice));
    }

    /// Adds a whole message.
    pub fn push_shared(&mut self, shared: Shared) {
        let len = shared.len();
        self.push_slice(shared.slice(0..len));
    }

    /// The position of the rope's end.
    pub fn end(&self) -> RopePosition {
        RopePosition {
            own_bytes: self.own.len(),
            shared_slices: self.shared_slices.len(),
            len: self.len(),
        }
    }

    /// Bytes after a position.
    pub fn len_after(&self, position: RopePosition) -> usize {
        self.len() - position.len
    }

    /// Inserts bytes at a position.
    pub fn insert_at(&mut self, position: RopePosition, bytes: &[u8]) {
        self.insert_at_with(position, |own| own.extend_from_slice(bytes));
    }

    /// Inserts bytes at a position. `write` appends the bytes to its argument.
    pub fn insert_at_with(&mut self, position: RopePosition, write: impl FnOnce(&mut Vec<u8>)) {
        let end = self.own.len();
        write(&mut self.own);
        let inserted_bytes = self.own.len() - end;
        self.own[position.own_bytes..].rotate_right(inserted_bytes);
        for (at, _) in &mut self.shared_slices[position.shared_slices..] {
            *at += inserted_bytes;
        }
    }

    /// Inserts bytes at the beginning of the rope.
    pub fn prepend(&mut self, bytes: &[u8]) {
        self.insert_at(RopePosition::default(), bytes);
    }

    /// Adds the bytes `from..to` of another rope.
    pub fn append(&mut self, rope: &Rope, from: usize, to: usize) {
        rope.for_each_part_of(from, to, |cut| match cut {
            RopePart::Own(bytes) => self.own.extend_from_slice(bytes),
            RopePart::Shared(slice) => self.push_slice(slice),
        });
    }

    fn for_each_part<'a>(&'a self, mut visit: impl FnMut(OutputPart<'a>)) {
        let mut position = 0;
        for (slice_start, slice) in &self.shared_slices {
            if *slice_start > position {
                visit(OutputPart::Bytes(&self.own[position..*slice_start]));
            }
            visit(OutputPart::Shared(slice));
            position = *slice_start;
        }
        if self.own.len() > position {
            visit(OutputPart::Bytes(&self.own[position..]));
        }
    }

    /// Calls `visit` with the parts of the bytes `from..to`.
    fn for_each_part_of(&self, from: usize, to: usize, mut visit: impl FnMut(RopePart<'_>)) {
        let mut position = 0;
        self.for_each_part(|part| {
            let len = part.as_ref().len();
            let (start, end) = (from.max(position), to.min(position + len));
            if start < end {
                visit(match part {
                    OutputPart::Bytes(bytes) => {
                        RopePart::Own(&bytes[start - position..end - position])
                    }
                    OutputPart::Shared(slice) => RopePart::Shared(
                        slice.first(end - position).without_first(start - position),
                    ),
                });
            }
            position += len;
        });
    }

    /// The rope's share of the bytes of its large messages. The bytes of a message are divided equally among its holders.
    pub fn shared_weight(&self) -> usize {
        self.shared_slices
            .iter()
            .map(|(_, slice)| slice.weight())
            .sum()
    }

    /// The parts of the rope, in order.
    pub fn parts(&self) -> Vec<OutputPart<'_>> {
        let mut parts = Vec::with_capacity(2 * self.shared_slices.len() + 1);
        self.for_each_part(|part| parts.push(part));
        parts
    }
}

/// A piece of own bytes grows by doubling only up to this length, to limit unused capacity.
const PIECE_BYTES: usize = 16 << 10;

/// A queue of bytes for a socket.
#[derive(Default)]
pub struct Queue {
    pieces: VecDeque<QueuedPiece>,
    /// How many bytes of the first piece are already sent, if it is a piece of own bytes.
    sent_bytes: usize,
    waiting_bytes: usize,
}

enum QueuedPiece {
    Own(Vec<u8>),
    Shared(Slice),
}

impl QueuedPiece {
    /// The unsent part of the piece. Of a piece of own bytes, the first `sent_bytes` are already sent.
    fn unsent(&self, sent_bytes: usize) -> OutputPart<'_> {
        match self {
            QueuedPiece::Own(bytes) => OutputPart::Bytes(&bytes[sent_bytes..]),
            QueuedPiece::Shared(slice) => OutputPart::Shared(slice),
        }
    }
}

impl Queue {
    /// Bytes that the socket has not accepted yet.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// The queue's own bytes, and its share of the bytes of large messages.
    pub fn weight(&self) -> usize {
        let shared = self.pieces.iter().map(|piece| match piece {
            QueuedPiece::Own(_) => 0,
            QueuedPiece::Shared(slice) => slice.weight(),
        });
        self.own_bytes() + shared.sum::<usize>()
    }

    /// Heap bytes of the queue, without large messages.
    pub fn own_bytes(&self) -> usize {
        let own = |piece: &QueuedPiece| match piece {
            QueuedPiece::Own(bytes) => bytes.capacity(),
            QueuedPiece::Shared(_) => size_of::<QueuedPiece>(),
        };
        self.pieces.iter().map(own).sum()
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.waiting_bytes += bytes.len();
        match self.pieces.back_mut() {
            _ if bytes.is_empty() => {}
            Some(QueuedPiece::Own(last))
                if last.len() < PIECE_BYTES || last.capacity() - last.len() >= bytes.len() =>
            {
                last.extend_from_slice(bytes);
            }
            Some(QueuedPiece::Own(_)) => {
                let mut next = Vec::with_capacity(bytes.len().max(PIECE_BYTES));
                next.extend_from_slice(bytes);
                self.pieces.push_back(QueuedPiece::Own(next));
            }
            _ => self.pieces.push_back(QueuedPiece::Own(bytes.to_vec())),
        }
    }

    /// Adds the bytes `from..to` of a rope.
    pub fn append(&mut self, rope: &Rope, from: usize, to: usize) {
        rope.for_each_part_of(from, to, |cut| match cut {
            RopePart::Own(bytes) => self.push(bytes),
            RopePart::Shared(slice) => self.push_slice(slice),
        });
    }

    /// Adds a slice of a message, by reference if it is large.
    pub fn push_slice(&mut self, slice: Slice) {
        if slice.len() < SHARED_MIN {
            return self.push(&slice);
        }
        self.waiting_bytes += slice.len();
        self.pieces.push_back(QueuedPiece::Shared(slice));
    }

    /// Writes the first pieces into `parts`, at most `bytes_max` bytes. Returns the number of parts.
    pub fn fill_parts<'a>(&'a self, bytes_max: usize, parts: &mut [OutputPart<'a>]) -> usize {
        let (mut sent_bytes, mut bytes_left, mut part_count) = (self.sent_bytes, bytes_max, 0);
        for (part, piece) in parts.iter_mut().zip(&self.pieces) {
            if bytes_left == 0 {
                break;
            }
            let unsent = piece.unsent(sent_bytes);
            sent_bytes = 0;
            *part = match unsent {
                OutputPart::Bytes(bytes) if bytes.len() > bytes_left => {
                    OutputPart::Bytes(&bytes[..bytes_left])
                }
                OutputPart::Shared(slice) if slice.len() > bytes_left => {
                    OutputPart::Bytes(&slice[..bytes_left])
                }
                _ => unsent,
            };
            bytes_left -= part.as_ref().len();
            part_count += 1;
        }
        part_count
    }

    /// Removes sent bytes. The sent bytes of a piece are freed once they are half of the piece. So at most one byte is moved for each sent byte. If a
    /// peer always lags by the same amount, its queue needs constant memory.
    pub fn remove_sent(&mut self, mut bytes: usize) {
        self.waiting_bytes -= bytes;
        while let Some(first) = self.pieces.front_mut() {
            let unsent_bytes = first.unsent(self.sent_bytes).as_ref().len();
            if bytes < unsent_bytes {
                match first {
                    QueuedPiece::Shared(slice) => slice.advance(bytes),
                    QueuedPiece::Own(own) => {
                        self.sent_bytes += bytes;
                        if self.sent_bytes >= own.len() - self.sent_bytes {
                            own.drain(..self.sent_bytes);
                            self.sent_bytes = 0;
                        }
                    }
                }
                return;
            }
            bytes -= unsent_bytes;
            self.sent_bytes = 0;
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Settings;
    use crate::budget::admission::Admission;
    use crate::store::shared::Shared;
    use alloc::boxed::Box;
    use proptest::prelude::*;

    fn flat(parts: &[OutputPart<'_>]) -> Vec<u8> {
        parts.iter().flat_map(AsRef::as_ref).copied().collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Own(u8, usize),
        Share(usize, usize),
        Prepend(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (any::<u8>(), 0..50usize).prop_map(|(byte, len)| Step::Own(byte, len)),
            (0..100usize, 0..3 * SHARED_MIN).prop_map(|(from, len)| Step::Share(from, len)),
            (1..20usize).prop_map(Step::Prepend),
        ]
    }

    proptest! {
        /// Tests that ropes and queues behave like plain bytes, whatever is added, cut, queued and sent.
        #[test]
        fn rope_and_queue_return_their_bytes(
            steps in prop::collection::vec(step(), 1..12),
            cut in (0..100_000usize, 0..100_000usize),
            takes in prop::collection::vec(1..20_000usize, 1..8),
            bytes_max in 1..100_000usize,
        ) {
            let admission = Admission::new(&Settings::default(), 7);
            let bytes: Vec<u8> = (0..4 * SHARED_MIN).map(|n| (n % 251) as u8).collect();
            let shared = Shared::new(bytes.clone().into_boxed_slice(), &admission);
            let (mut rope, mut plain) = (Rope::default(), Vec::new());
            let (mut mark, mut start) = (rope.end(), 0);
            for step in steps {
                match step {
                    Step::Own(byte, len) => {
                        rope.own.extend(core::iter::repeat_n(byte, len));
                        plain.extend(core::iter::repeat_n(byte, len));
                        (mark, start) = (rope.end(), plain.len());
                    }
                    Step::Share(from, len) => {
                        rope.push_slice(shared.slice(from..from + len));
                        plain.extend_from_slice(&bytes[from..from + len]);
                    }
                    Step::Prepend(len) => {
                        prop_assert_eq!(rope.len_after(mark), plain.len() - start);
                        rope.insert_at(mark, &[9; 20][..len]);
                        plain.splice(start..start, core::iter::repeat_n(9, len));
                        (mark, start) = (rope.end(), plain.len());
                    }
                }
                prop_assert_eq!(rope.len(), plain.len());
                prop_assert_eq!(&flat(&rope.parts()), &plain);
            }
            let to = cut.0.max(cut.1).min(plain.len());
            let from = cut.0.min(cut.1).min(to);
            let mut part = Rope::default();
            part.append(&rope, from, to);
            prop_assert_eq!(&flat(&part.parts()), &plain[from..to]);
            let mut queue = Queue::default();
            queue.push(b"first");
            queue.append(&rope, from, to);
            queue.push(b"last");
            let mut left = [b"first", &plain[from..to], b"last"].concat();
            for take in takes {
                let mut parts = [OutputPart::Bytes(&[]); 16];
                let used = queue.fill_parts(bytes_max, &mut parts);
                let seen = flat(&parts[..used]);
                prop_assert!(left.starts_with(&seen));
                prop_assert!(seen.len() == left.len().min(bytes_max) || used == 16 && seen.len() < bytes_max);
                let take = take.min(seen.len());
                queue.remove_sent(take);
                left.drain(..take);
                prop_assert_eq!(queue.waiting_bytes(), left.len());
            }
            drop((rope, part, queue, shared));
            prop_assert_eq!(admission.account.unowned_bytes(), 0);
        }

        /// Tests that the queue of a peer that always lags needs constant memory.
        #[test]
        fn bytes_that_were_sent_are_released(behind in 1..2000usize) {
            let mut queue = Queue::default();
            queue.push(&alloc::vec![0; behind]);
            for _ in 0..300 {
                queue.push(&[0; 10]);
                queue.remove_sent(10);
                prop_assert_eq!(queue.waiting_bytes(), behind);
                prop_assert!(queue.own_bytes() <= 4 * (behind + 10) + 64);
            }
        }
    }

    #[test]
    fn large_parts_are_not_copied() {
        let admission = Admission::new(&Settings::default(), 7);
        let shared = Shared::new(Box::from([1; 2 * SHARED_MIN]), &admission);
        let (mut rope, mut queue) = (Rope::default(), Queue::default());
        rope.push_slice(shared.slice(0..2 * SHARED_MIN));
        queue.append(&rope, 5, 2 * SHARED_MIN);
        assert!(rope.own.is_empty() && rope.is_shared());
        assert!(queue.own_bytes() < 100);
        assert_eq!(queue.waiting_bytes(), 2 * SHARED_MIN - 5);
    }
}
