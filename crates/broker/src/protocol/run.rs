//! The run of live messages at hand: of one topic, or of several for subscribers by filter.
//!
//! Invariant: an encoding of the run is made once, when the first subscriber needs it.

use alloc::vec::Vec;
use core::ops::Range;

use crate::base::ids::PartitionId;
use crate::mail::{Frames, Record};
use crate::protocol::encode::{Encoded, Encoding};
use crate::store::rope::Rope;
use crate::store::shared::Part;

/// Bytes that the kernel copies in the time that a write takes anyway.
const VISIT_BYTES: usize = 4096;

/// The cost of sending so many bytes to one connection, in visits.
#[inline]
pub fn cost_of_bytes(bytes: usize) -> u32 {
    1 + (bytes / VISIT_BYTES) as u32
}

/// Live messages that are delivered together, of one topic or for subscribers by filter.
#[derive(Default)]
pub struct Run {
    records: Vec<Record>,
    encoded: [Encoded; Encoding::COUNT],
    /// Bytes of the messages.
    pub bytes: usize,
    /// For subscribers by filter: of each message the partition, and where its topic's name lies in the frames. Else empty.
    pub topics: Vec<(PartitionId, u32)>,
}

impl Run {
    /// Starts a run of other messages.
    pub fn begin(&mut self, records: impl Iterator<Item = Record>) {
        self.topics.clear();
        self.records.clear();
        self.records.extend(records);
        self.bytes = self.records.iter().map(Record::frame_bytes).sum();
        self.encoded.iter_mut().for_each(Encoded::clear);
    }

    /// The messages.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The messages in one encoding.
    pub fn encoded(&mut self, encoding: Encoding) -> &mut Encoded {
        &mut self.encoded[encoding as usize]
    }

    /// Whether these messages lie side by side.
    pub(super) fn is_joined(&self, encoding: Encoding, messages: Range<usize>) -> bool {
        let touches = |pair: &[Record]| pair[0].touches(&pair[1]);
        match encoding {
            Encoding::Frame => self.records[messages].windows(2).all(touches),
            encoding => !self.encoded[encoding as usize].is_shared(),
        }
    }

    /// Messages that lie side by side.
    pub(super) fn joined<'a>(
        &'a self,
        encoding: Encoding,
        messages: Range<usize>,
        frames: &'a Frames,
    ) -> Part<'a> {
        match encoding {
            Encoding::Frame => frames.joined(
                &self.records[messages.start],
                &self.records[messages.end - 1],
            ),
            encoding => Part::Bytes(self.encoded[encoding as usize].span(messages)),
        }
    }

    /// Bytes of one message.
    pub(super) fn len(&self, encoding: Encoding, n: usize, frames: &Frames) -> usize {
        match encoding {
            Encoding::Frame => frames.frame(&self.records[n]).len(),
            encoding => self.encoded[encoding as usize].len(n),
        }
    }

    /// Adds one message to a rope.
    pub(super) fn append(&self, encoding: Encoding, n: usize, frames: &Frames, out: &mut Rope) {
        match (encoding, frames.large(&self.records[n])) {
            (Encoding::Frame, Some(frame)) => out.share(frame.clone()),
            (Encoding::Frame, None) => out.own.extend_from_slice(frames.frame(&self.records[n])),
            (encoding, _) => self.encoded[encoding as usize].append(n, out),
        }
    }
}
