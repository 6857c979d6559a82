//! The bytes that a connection has received: in order and not read yet, and out of order.
//!
//! Invariants: the first arrival of a byte decides its value. Later segments never change it. The ranges out of order are sorted, apart from one
//! another, behind the next expected byte, and within the window.

use alloc::vec::Vec;

use crate::packet::Options;
use crate::planted::{self, Fault};
use crate::sequence::{earlier, is_after, is_from};

/// A buffer that was larger than this is freed when it is empty.
const KEPT_BYTES: usize = 2_048;

/// Bytes that have arrived, but not all bytes before them.
#[derive(Debug)]
struct Range {
    start: u32,
    bytes: Vec<u8>,
}

impl Range {
    fn end(&self) -> u32 {
        self.start.wrapping_add(self.bytes.len() as u32)
    }
}

/// Received bytes.
#[derive(Debug, Default)]
pub struct ReceiveBuffer {
    /// Bytes in order, of which the first `read` were read.
    in_order: Vec<u8>,
    read: usize,
    /// Ranges out of order, which are apart from one another.
    ranges: Vec<Range>,
    /// The range that changed last.
    recent: u32,
    /// The sequence number of the peer's FIN, if it has arrived.
    pub fin: Option<u32>,
}

impl ReceiveBuffer {
    /// The number of bytes that can be read.
    pub fn unread(&self) -> usize {
        self.in_order.len() - self.read
    }

    /// The number of bytes that are held.
    pub fn held(&self) -> usize {
        self.unread()
            + self
                .ranges
                .iter()
                .map(|range| range.bytes.len())
                .sum::<usize>()
    }

    /// Bytes of the list of ranges.
    pub fn list_bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<Range>()
    }

    /// Whether bytes or a FIN out of order are held.
    pub fn has_gaps(&self) -> bool {
        !self.ranges.is_empty() || self.fin.is_some()
    }

    /// Takes bytes in order.
    pub fn take(&mut self, out: &mut [u8]) -> usize {
        let count = self.unread().min(out.len());
        out[..count].copy_from_slice(&self.in_order[self.read..self.read + count]);
        self.read += count;
        if self.read == self.in_order.len() {
            self.in_order.clear();
            self.in_order.shrink_to(KEPT_BYTES);
            self.read = 0;
        }
        count
    }

    /// Appends bytes in order, and those ranges that they reach. Returns the number of bytes that are in order now and were not before.
    pub fn append(&mut self, next: u32, bytes: &[u8]) -> u32 {
        if self.read > self.in_order.len() / 2 {
            self.in_order.drain(..self.read);
            self.read = 0;
        }
        let (mut at, mut rest) = (next, bytes);
        let reach = |at: u32, rest: &[u8]| at.wrapping_add(rest.len() as u32);
        while let Some(range) = self.ranges.first()
            && !is_after(range.start, reach(at, rest))
        {
            let range = self.ranges.remove(0);
            let before = range.start.wrapping_sub(at) as usize;
            self.in_order.extend_from_slice(&rest[..before]);
            self.in_order.extend_from_slice(&range.bytes);
            let covered = before + range.bytes.len();
            if planted::is_planted(Fault::LaterOverlapWins) {
                let from = self.in_order.len() - range.bytes.len();
                let over = &rest[before..covered.min(rest.len())];
                self.in_order[from..from + over.len()].copy_from_slice(over);
            }
            rest = rest.get(covered..).unwrap_or_default();
            at = range.end();
        }
        self.in_order.extend_from_slice(rest);
        reach(at, rest).wrapping_sub(next)
    }

    /// The bytes that are new of a segment out of order: the largest part of it that no range has. A segment that surrounds a range gives the
    /// part before it; the rest comes again.
    pub fn new_part(&self, start: u32, end: u32) -> (u32, u32) {
        let (mut start, mut end) = (start, end);
        for range in &self.ranges {
            if is_from(start, range.start) && is_after(range.end(), start) {
                start = earlier(range.end(), end);
            } else if is_after(range.start, start) && is_after(end, range.start) {
                end = range.start;
            }
        }
        (start, end)
    }

    /// Keeps bytes out of order that no range has. `false` if they would be one range too many.
    pub fn keep(&mut self, start: u32, bytes: &[u8], ranges_max: usize) -> bool {
        let place = self
            .ranges
            .partition_point(|range| is_after(start, range.start));
        let end = start.wrapping_add(bytes.len() as u32);
        let joins_left = place > 0 && self.ranges[place - 1].end() == start;
        let joins_right = self
            .ranges
            .get(place)
            .is_some_and(|range| range.start == end);
        match (joins_left, joins_right) {
            (true, true) => {
                let right = self.ranges.remove(place);
                let left = &mut self.ranges[place - 1];
                left.bytes.extend_from_slice(bytes);
                left.bytes.extend_from_slice(&right.bytes);
            }
            (true, false) => self.ranges[place - 1].bytes.extend_from_slice(bytes),
            (false, true) => {
                let right = &mut self.ranges[place];
                right.bytes.splice(..0, bytes.iter().copied());
                right.start = start;
            }
            (false, false) => {
                if self.ranges.len() >= ranges_max {
                    return false;
                }
                let bytes = bytes.to_vec();
                self.ranges.insert(place, Range { start, bytes });
            }
        }
        self.recent = start;
        true
    }

    /// Adds the ranges as selective acknowledgements, the most recent one first (RFC 2018 §4).
    pub fn report(&self, options: &mut Options) {
        let is_recent = |range: &&Range| {
            is_from(self.recent, range.start) && is_after(range.end(), self.recent)
        };
        let recent = self.ranges.iter().filter(is_recent);
        let others = self.ranges.iter().filter(|range| !is_recent(range));
        for range in recent.chain(others) {
            if !options.add_sack((range.start, range.end())) {
                return;
            }
        }
    }

    /// Forgets all bytes.
    pub fn clear(&mut self) {
        self.drop_ranges();
        self.in_order.clear();
        self.in_order.shrink_to(KEPT_BYTES);
        self.read = 0;
        self.fin = None;
    }

    /// Forgets all bytes out of order and returns their number.
    pub fn drop_ranges(&mut self) -> usize {
        let count = self.held() - self.unread();
        self.ranges = Vec::new();
        count
    }
}

#[cfg(test)]
impl ReceiveBuffer {
    /// Checks the invariants of a connection that expects `next`, and has promised a window up to `edge`.
    pub fn check(&self, next: u32, edge: u32, ranges_max: usize) -> Result<(), &'static str> {
        if self.ranges.len() > ranges_max {
            return Err("too many ranges out of order");
        }
        let mut at = next;
        for range in &self.ranges {
            if range.bytes.is_empty() || !is_after(range.start, at) {
                return Err("ranges out of order are not apart");
            }
            at = range.end();
        }
        match is_after(at, edge) {
            true => Err("bytes from behind the window are kept"),
            false => Ok(()),
        }
    }
}
