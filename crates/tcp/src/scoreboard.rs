//! The segments of a connection that were sent and not acknowledged, with what is known about each (RFC 6675 §3).
//!
//! Invariants: the segments follow one another without a gap, from the first sequence number that is not acknowledged to the next one to send.
//! A segment is not both lost and selectively acknowledged. The three sums are those of the list.

use alloc::collections::VecDeque;

use crate::sequence::is_after;

/// An empty board keeps room for this many segments.
const KEPT_SEGMENTS: usize = 16;

/// What is known about a segment.
pub mod mark {
    /// It is a SYN.
    pub const SYN: u8 = 1;
    /// It has a FIN.
    pub const FIN: u8 = 2;
    /// It was acknowledged selectively.
    pub const SACKED: u8 = 4;
    /// It is lost and was not retransmitted since.
    pub const LOST: u8 = 8;
    /// It was retransmitted.
    pub const RETRANSMITTED: u8 = 16;
    /// It is a SYN that was never sent.
    pub const UNSENT: u8 = 32;
}

/// A segment that was sent.
#[derive(Clone, Copy, Debug)]
pub struct SentSegment {
    /// The first sequence number, and the one after the last.
    pub start: u32,
    pub end: u32,
    /// When it was sent last.
    pub at_us: u64,
    /// What is known about it.
    pub marks: u8,
}

impl SentSegment {
    /// The sequence numbers that it takes.
    pub fn len(&self) -> u32 {
        self.end.wrapping_sub(self.start)
    }

    /// Whether it has this mark.
    pub fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }
}

/// All segments that were sent and not acknowledged, in the order of their sequence numbers.
#[derive(Debug, Default)]
pub struct Scoreboard {
    list: VecDeque<SentSegment>,
    /// Sequence numbers that are in the network.
    in_flight: u32,
    lost: u32,
    sacked: u32,
}

impl Scoreboard {
    /// Forgets all segments.
    pub fn clear(&mut self) {
        self.list.clear();
        self.list.shrink_to(KEPT_SEGMENTS);
        (self.in_flight, self.lost, self.sacked) = (0, 0, 0);
    }

    /// Bytes of the list.
    pub fn list_bytes(&self) -> usize {
        self.list.capacity() * size_of::<SentSegment>()
    }

    /// The number of segments.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether everything is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The number of sequence numbers in the network: sent and neither acknowledged nor lost.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The number of segments that were acknowledged selectively.
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// The number of segments that are lost and not retransmitted.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// The first segment.
    pub fn first(&self) -> Option<&SentSegment> {
        self.list.front()
    }

    /// Adds a segment that was sent for the first time.
    pub fn push(&mut self, segment: SentSegment) {
        self.in_flight += segment.len();
        self.list.push_back(segment);
    }

    /// Removes what is acknowledged. Calls `arrived` with each part that was not known to have arrived.
    pub fn acknowledge(&mut self, until: u32, mut arrived: impl FnMut(&SentSegment)) {
        while let Some(front) = self.list.front_mut()
            && is_after(until, front.start)
        {
            let mut part = *front;
            let is_whole = !is_after(front.end, until);
            if !is_whole {
                part.end = until;
                front.start = until;
            }
            if !part.is(mark::SACKED | mark::LOST) {
                self.in_flight -= part.len();
            }
            if is_whole {
                self.sacked -= u32::from(part.is(mark::SACKED));
                self.lost -= u32::from(part.is(mark::LOST));
                self.list.pop_front();
            }
            if !part.is(mark::SACKED) {
                arrived(&part);
            }
        }
    }

    /// Marks the segments of a range that has arrived out of order. Calls `arrived` with each that was not marked.
    pub fn sack(&mut self, range: (u32, u32), mut arrived: impl FnMut(&SentSegment)) {
        let first = self
            .list
            .partition_point(|segment| is_after(range.0, segment.start));
        for segment in self.list.iter_mut().skip(first) {
            if is_after(segment.end, range.1) {
                break;
            }
            if segment.is(mark::SACKED) {
                continue;
            }
            if segment.is(mark::LOST) {
                self.lost -= 1;
            } else {
                self.in_flight -= segment.len();
            }
            segment.marks = segment.marks & !mark::LOST | mark::SACKED;
            self.sacked += 1;
            arrived(segment);
        }
    }

    /// Marks as lost each segment for which `is_lost` says so, of those that may still be in the network. Returns whether there was one.
    pub fn mark_lost(&mut self, mut is_lost: impl FnMut(&SentSegment) -> bool) -> bool {
        let before = self.lost;
        for segment in &mut self.list {
            if !segment.is(mark::SACKED | mark::LOST) && is_lost(segment) {
                segment.marks |= mark::LOST;
                self.lost += 1;
                self.in_flight -= segment.len();
            }
        }
        self.lost > before
    }

    /// Forgets what was acknowledged selectively, since the peer may have dropped it (RFC 2018 §8), and marks all segments as lost.
    pub fn forget(&mut self) {
        self.sacked = 0;
        self.in_flight = 0;
        for segment in &mut self.list {
            segment.marks = segment.marks & !mark::SACKED | mark::LOST;
        }
        self.lost = self.list.len() as u32;
    }

    /// The first lost segment. One that is longer than `bytes` is split first.
    pub fn next_lost(&mut self, bytes: u32) -> Option<SentSegment> {
        if self.lost == 0 {
            return None;
        }
        let index = self
            .list
            .iter()
            .position(|segment| segment.is(mark::LOST))?;
        self.split(index, bytes);
        Some(self.list[index])
    }

    /// The last segment, of at most `bytes`, to send it as a probe.
    pub fn probe(&mut self, bytes: u32) -> Option<SentSegment> {
        let mut index = self.list.len().checked_sub(1)?;
        loop {
            let before = self.list.len();
            self.split(index, bytes);
            if self.list.len() == before {
                break;
            }
            index += 1;
        }
        Some(self.list[index])
    }

    /// Splits a segment that is longer than `bytes`. A FIN stays with the second part.
    fn split(&mut self, index: usize, bytes: u32) {
        let segment = &mut self.list[index];
        let data = segment.len() - u32::from(segment.is(mark::FIN));
        if data <= bytes || segment.is(mark::SYN) {
            return;
        }
        let mut rest = *segment;
        segment.end = segment.start.wrapping_add(bytes);
        segment.marks &= !mark::FIN;
        rest.start = segment.end;
        self.lost += u32::from(rest.is(mark::LOST));
        self.sacked += u32::from(rest.is(mark::SACKED));
        self.list.insert(index + 1, rest);
    }

    /// Notes that the segment that begins here was retransmitted, or sent for the first time.
    pub fn retransmitted(&mut self, start: u32, now_us: u64) {
        let index = self
            .list
            .partition_point(|segment| is_after(start, segment.start));
        if let Some(segment) = self.list.get_mut(index) {
            if segment.is(mark::LOST) {
                self.lost -= 1;
                self.in_flight += segment.len();
            }
            if !segment.is(mark::UNSENT) {
                segment.marks |= mark::RETRANSMITTED;
            }
            segment.marks &= !(mark::LOST | mark::UNSENT);
            segment.at_us = now_us;
        }
    }
}

#[cfg(test)]
impl Scoreboard {
    /// Checks the invariants of a board whose segments lie between these numbers.
    pub fn check(&self, unacknowledged: u32, send_next: u32) -> Result<(), &'static str> {
        let (mut at, mut in_flight, mut lost, mut sacked) = (unacknowledged, 0, 0, 0);
        for segment in &self.list {
            if segment.start != at || segment.len() == 0 {
                return Err("segments in flight leave a gap");
            }
            at = segment.end;
            match (segment.is(mark::LOST), segment.is(mark::SACKED)) {
                (true, true) => return Err("a segment is lost and has arrived"),
                (true, false) => lost += 1,
                (false, true) => sacked += 1,
                (false, false) => in_flight += segment.len(),
            }
        }
        if !self.list.is_empty() && at != send_next {
            return Err("what was sent last is not on the board");
        }
        if (in_flight, lost, sacked) != (self.in_flight, self.lost, self.sacked) {
            return Err("a sum of the board is wrong");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_board_keeps_little_room() {
        let mut board = Scoreboard::default();
        for start in 0..10_000 {
            let end = start + 1;
            board.push(SentSegment {
                start,
                end,
                at_us: 0,
                marks: 0,
            });
        }
        board.clear();
        assert!(board.list.capacity() < 4 * KEPT_SEGMENTS);
    }
}
