//! A *run* is a group of live messages (sent when they are published) that are delivered together. They have one topic, or several topics
//! for subscribers by filter.
//!
//! Invariant: each encoding of a run is made at most once, when the first subscriber needs it.

use alloc::vec::Vec;
use core::ops::Range;

use crate::base::ids::PartitionId;
use crate::mail::{Frames, Record};
use crate::store::rope::Rope;
use crate::store::shared::OutputPart;

/// The bytes that the kernel copies in the time that a write takes anyway.
const VISIT_BYTES: usize = 4096;

/// The cost of sending `bytes` bytes to one connection, in visits (writes of one short message).
#[inline]
pub fn visits_for_bytes(bytes: usize) -> u32 {
    1 + (bytes / VISIT_BYTES) as u32
}

/// The encodings in which protocols send a message. Number 0 is the frame that homes (the parts of shards that keep topics) make.
pub(crate) trait Encodings: Copy {
    /// The number of encodings.
    const COUNT: usize;
    /// The number of this encoding.
    fn number(self) -> usize;
    /// Whether this is the frame that homes make.
    #[inline]
    fn is_frame(self) -> bool {
        self.number() == 0
    }
}

/// One encoding of the messages of a run, made on demand.
#[derive(Default)]
pub struct Encoded {
    rope: Rope,
    ends: Vec<usize>,
}

impl Encoded {
    /// Removes the messages.
    pub fn clear(&mut self) {
        self.rope.clear();
        self.ends.clear();
    }

    /// Whether nothing was encoded yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether a message is large, so that its bytes are shared.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.rope.is_shared()
    }

    /// Adds the message that `write` writes.
    #[inline]
    pub fn push(&mut self, write: impl FnOnce(&mut Rope)) {
        write(&mut self.rope);
        self.ends.push(self.rope.len());
    }

    /// The bytes of adjacent messages with these numbers. None of them may be large.
    #[inline]
    pub fn span(&self, messages: Range<usize>) -> &[u8] {
        &self.rope.own[self.start(messages.start)..self.start(messages.end)]
    }

    /// Adds one message to a rope.
    #[inline]
    pub fn append(&self, message: usize, out: &mut Rope) {
        out.append(&self.rope, self.start(message), self.start(message + 1));
    }

    /// The length of one message.
    #[inline]
    pub fn len(&self, message: usize) -> usize {
        self.start(message + 1) - self.start(message)
    }

    #[inline]
    fn start(&self, message: usize) -> usize {
        match message {
            0 => 0,
            n => self.ends[n - 1],
        }
    }
}

fn are_adjacent(records: &[Record]) -> bool {
    records
        .windows(2)
        .all(|pair| pair[0].is_followed_by(&pair[1]))
}

/// Live messages that are delivered together.
#[derive(Default)]
pub struct Run {
    records: Vec<Record>,
    /// The number of first messages that the next subscribers have received already. Messages are numbered from the one after them.
    skipped: usize,
    /// Whether each message is adjacent to the next one in memory. It is known once for all subscribers.
    is_adjacent: bool,
    encoded: Vec<Encoded>,
    /// The encodings that may have been made since the run began, one bit each.
    made_encodings: u32,
    /// The bytes of the messages as frames.
    pub bytes: usize,
    /// For subscribers by filter: each message's partition, and the place of its topic's name in the frames. Otherwise empty.
    pub topics: Vec<(PartitionId, u32)>,
}

impl Run {
    /// An empty run with `encodings` possible encodings.
    pub fn new(encodings: usize) -> Run {
        assert!(encodings <= u32::BITS as usize);
        let mut run = Run::default();
        run.encoded.resize_with(encodings, Encoded::default);
        run
    }

    /// Starts a run of these messages.
    pub fn begin(&mut self, records: impl Iterator<Item = Record>) {
        self.topics.clear();
        self.records.clear();
        self.records.extend(records);
        self.skipped = 0;
        self.is_adjacent = are_adjacent(&self.records);
        self.bytes = self.records.iter().map(Record::frame_bytes).sum();
        while self.made_encodings != 0 {
            self.encoded[self.made_encodings.trailing_zeros() as usize].clear();
            self.made_encodings &= self.made_encodings - 1;
        }
    }

    /// Skips the first `messages` messages, because the next subscribers have received them already.
    pub fn skip(&mut self, messages: usize) {
        let passed = self.records()[..messages].iter();
        self.bytes -= passed.map(Record::frame_bytes).sum::<usize>();
        self.skipped += messages;
    }

    /// The messages that are not skipped.
    #[inline]
    pub fn records(&self) -> &[Record] {
        &self.records[self.skipped..]
    }

    /// All messages, with the skipped ones. An encoding of the run contains them all.
    #[inline]
    pub fn all_records(&self) -> &[Record] {
        &self.records
    }

    /// The messages in this encoding.
    #[inline]
    pub fn encoded(&mut self, encoding: impl Encodings) -> &mut Encoded {
        self.made_encodings |= 1 << encoding.number();
        &mut self.encoded[encoding.number()]
    }

    /// Whether these messages are adjacent in memory.
    #[inline]
    pub(crate) fn is_contiguous(&self, encoding: impl Encodings, messages: Range<usize>) -> bool {
        match encoding.is_frame() {
            true => self.is_adjacent || are_adjacent(&self.records()[messages]),
            false => !self.encoded[encoding.number()].is_shared(),
        }
    }

    /// The bytes of adjacent messages.
    pub(crate) fn joined<'a>(
        &'a self,
        encoding: impl Encodings,
        messages: Range<usize>,
        frames: &'a Frames,
    ) -> OutputPart<'a> {
        match encoding.is_frame() {
            true => frames.joined(
                &self.records()[messages.start],
                &self.records()[messages.end - 1],
            ),
            false => {
                let messages = messages.start + self.skipped..messages.end + self.skipped;
                OutputPart::Bytes(self.encoded[encoding.number()].span(messages))
            }
        }
    }

    /// The length of one message.
    pub(crate) fn len(&self, encoding: impl Encodings, n: usize, frames: &Frames) -> usize {
        match encoding.is_frame() {
            true => frames.frame(&self.records()[n]).len(),
            false => self.encoded[encoding.number()].len(n + self.skipped),
        }
    }

    /// Adds one message to a rope.
    pub(crate) fn append(
        &self,
        encoding: impl Encodings,
        n: usize,
        frames: &Frames,
        out: &mut Rope,
    ) {
        match (encoding.is_frame(), frames.large(&self.records()[n])) {
            (true, Some(frame)) => out.push_slice(frame.clone()),
            (true, None) => out.own.extend_from_slice(frames.frame(&self.records()[n])),
            (false, _) => self.encoded[encoding.number()].append(n + self.skipped, out),
        }
    }
}
